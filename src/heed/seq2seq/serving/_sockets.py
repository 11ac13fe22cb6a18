"""The address of a server. Nothing here needs TensorFlow, so that a port in use is known at once."""

from __future__ import annotations

import ipaddress
import socket

from heed.errors import TaskError, UsageError

BACKLOG = 2_048  # connections that wait to be accepted; the system may allow fewer


def bind(host: str, port: int) -> socket.socket:
    """Make a socket for this process only, and listen on it; port 0 takes a free one."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"--port must be from 0 to 65535. Received: {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise UsageError(f"--host must be an address of this machine. Received: {host!r}") from None
    # For TCP sockets asyncio switches off Nagle's algorithm, which delays answers by 40 ms.
    listener = socket.socket(family, kind, protocol)
    try:
        # The port of a stopped server is free at once; a listening server keeps it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise TaskError(
            f"cannot serve at {host}, port {port}: {error.strerror or error}; "
            "--port chooses another (0: any that is free)"
        ) from None
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Return whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def get_url(listener: socket.socket) -> str:
    """Return the URL for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def get_network(host: str) -> str:
    """Return a client's network: an IPv4 address, or the first half of an IPv6 address (a client has 2^64 of them)."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
