"""Addresses of private networks; a hub outside one may not redirect its clients into one."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Any

_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


def is_private(address: str) -> bool:
    """Whether an IP address is not public; IPv6 addresses that embed an IPv4 one are judged by it."""
    found: Any = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 6:
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF) if found in _TRANSLATED else inner or found
    local = found.version == 6 and found.is_site_local
    return bool(not found.is_global or found.is_multicast or found.is_reserved or local)


def addresses_of(host: str) -> list[str]:
    """The IP addresses of a host, in any notation that the system resolves; empty if it does not."""
    try:
        return [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def leads_inside(host: str) -> bool:
    """Whether a host has an address of a private network."""
    return any(map(is_private, addresses_of(host)))


def guard(host: str, refuse: Callable[[], None]) -> Callable[[str, Any], None]:
    """Make a trace for a request's connection that calls ``refuse`` if a private address answers for ``host``.

    A name's address may have changed since it was looked up. Connections to a proxy are not checked.
    """
    asked = ""

    def trace(event: str, info: Any) -> None:
        nonlocal asked
        if event.endswith("connect_tcp.started"):
            asked = info["host"]
        elif event.endswith("connect_tcp.complete") and asked == host:
            stream = info["return_value"]
            if is_private(stream.get_extra_info("server_addr")[0]):
                try:
                    refuse()
                except BaseException:
                    stream.close()
                    raise

    return trace
