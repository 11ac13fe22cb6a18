"""The host names that a server answers to, a filter against DNS rebinding."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from heed.errors import UsageError
from heed.seq2seq.serving._sockets import is_loopback

# A name or an IPv4 address, or an IPv6 address in brackets; then perhaps a port.
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s\[\]:/?#@\\,\"'<>]+))(?::\d*)?", re.ASCII)


class Hosts:
    """The hosts that requests may name, with any port.

    A site whose name resolves to 127.0.0.1 (DNS rebinding) makes browsers send its page's requests here and lets the
    page read the answers. Only the Host header tells: it holds the site's name. An address cannot be rebound.

    Args:
        names: besides those of this machine's loopback; "*" for all.
        addresses: whether to accept IP addresses other than the loopback's.

    Example:
        >>> hosts = Hosts(["heed.example"])
        >>> "Heed.Example:8080" in hosts, "[::1]:8000" in hosts, "evil.example" in hosts
        (True, True, False)
    """

    def __init__(self, names: Iterable[str] = (), addresses: bool = False) -> None:
        self._names = {"localhost", *map(_parse_name, names)}
        self._addresses = addresses

    @classmethod
    def of(cls, listener: socket.socket, host: str, names: Iterable[str]) -> Hosts:
        """Return the hosts of a server that listens at the address or name `host`."""
        if is_loopback(listener):
            return cls(names)
        hosts = cls(names, addresses=True)
        hosts._names.update(filter(None, map(parse_host, (host, socket.gethostname()))))
        return hosts

    def __contains__(self, host: str) -> bool:
        """Return whether the server answers to this value of the Host header."""
        name = parse_host(host)
        if name is None:
            return False
        if "*" in self._names or name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None) or address
        return self._addresses or mapped.is_loopback


class HostFilter:
    """ASGI middleware: refuses requests for other hosts, and those without a host."""

    def __init__(self, app: Any, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            status, detail = refusal
            answer = JSONResponse({"detail": detail}, status, {"Connection": "close"})
            return await answer(scope, receive, send)
        return await self._app(scope, receive, send)

    def _refusal(self, scope: Any) -> tuple[HTTPStatus, str] | None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if not hosts and scope["http_version"] == "1.0":  # has no such header
            return None
        if len(hosts) != 1 or parse_host(hosts[0]) is None:
            return HTTPStatus.BAD_REQUEST, "a request must have one Host header, with a host's name"
        if hosts[0] not in self._hosts:
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                "the server does not serve this Host; heed serve --allowed-host NAME adds one",
            )
        return None


def parse_host(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case, without port; None if there is none."""
    match = _HOST.fullmatch(host.strip(" \t").lower())
    if match is None:
        return None
    if match[1] is None:
        return match[2].removesuffix(".") or None
    try:
        return str(ipaddress.IPv6Address(match[1]))
    except ValueError:
        return None


def _parse_name(name: str) -> str:
    with_brackets = f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name
    try:
        encoded = with_brackets.encode("idna").decode("ascii")
    except UnicodeError:
        encoded = ""
    host = parse_host(encoded)
    if host is None or (":" in encoded and not encoded.endswith("]")):
        raise UsageError(
            "--allowed-host must be the name or address of a host, without scheme and port, or *. "
            f"Received: {name!r}"
        )
    return host
