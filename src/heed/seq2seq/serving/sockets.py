"""Where a server listens. Nothing here waits for TensorFlow, so that a port in use is known at once."""

from __future__ import annotations

import ipaddress
import socket

from heed.seq2seq.errors import TaskError


def bind(host: str, port: int) -> socket.socket:
    """A socket that nobody else can have, on which nothing is listened to yet.

    Args:
        host: an address of this machine, or a name that it has; "0.0.0.0" or "::" for all of them.
        port: 0 to 65,535; 0 takes a free one.

    Raises:
        TaskError: if it is in use, or cannot be had.
    """
    if not 0 <= port <= 65_535:
        raise TaskError(f"--port must be from 0 to 65535. Received: {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise TaskError(f"--host must be an address of this machine. Received: {host!r}") from None
    # asyncio switches off Nagle's algorithm, which holds answers back for 40 ms, where a socket is said to be TCP.
    listener = socket.socket(family, kind, protocol)
    try:
        # After a server has stopped its port is free at once; one that listens keeps it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise TaskError(
            f"cannot serve at {host}, port {port}: {error.strerror or error}; "
            "--port chooses another (0: any that is free)"
        ) from None
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def get_url(listener: socket.socket) -> str:
    """Where a browser on this machine finds it."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def get_network(host: str) -> str:
    """Whose address it is: an IPv4 address by itself; of IPv6, where one person has 2^64 of them, the first half."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
