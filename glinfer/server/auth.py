"""Access control: the Host and Origin of a request, against DNS rebinding and other sites, and its API key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from glinfer.server.errors import ApiError
from glinfer.server.state import CLIENT

OPEN_ROUTES = frozenset({"/health"})
"""Routes that never require a key."""


@dataclass(frozen=True)
class Access:
    """The access settings of a server.

    Attributes:
        host: the address that it listens on.
        keys: the accepted API keys; if empty, requests need no key.
        hosts: further names accepted in the Host header.
        origins: origins of other sites that may send requests; ``*`` for all.
    """

    host: str = "127.0.0.1"
    keys: Sequence[str] = ()
    hosts: Collection[str] = ()
    origins: Collection[str] = ()

    def knows_host(self, host: str) -> bool:
        """Whether a Host header is an address, localhost, or a name of this server.

        Other names that resolve to this server (DNS rebinding) are refused.
        """
        name = _host_name(host)
        if name in {"localhost", self.host.lower(), *(each.lower() for each in self.hosts)}:
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or not is_loopback(self.host))

    def knows_origin(self, origin: str, host: str) -> bool:
        """Whether pages of ``origin`` may send requests: this server's, and those of ``origins``."""
        if "*" in self.origins or origin in self.origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() != ""

    def client(self, given: str) -> int | None:
        """The index of the key in an ``Authorization`` header, compared in constant time; None for other keys."""
        found = _key_of(given)
        if found is None:
            return None
        digest, known = hashlib.sha256(found).digest(), [hashlib.sha256(key.encode()).digest() for key in self.keys]
        return max((index for index, each in enumerate(known) if hmac.compare_digest(digest, each)), default=None)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def is_host_name(text: str) -> bool:
    """Whether the Host header of a request can have this name or address."""
    possible = bool(text) and "*" not in text and " " not in text
    return possible and text.lower() in (_host_name(text), str(_address(text)))


def is_origin(text: str) -> bool:
    """Whether browsers can send this Origin; ``*`` stands for all."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    exact = f"{parts.scheme}://{parts.netloc.lower()}"  # browsers send neither capitals nor a path
    return text in ("*", "null") or (bool(parts.netloc) and text == exact)


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        parts = urlsplit(f"//{host}")
        return "" if parts.port == 0 else (parts.hostname or "").lower()  # reading a bad port raises ValueError
    except ValueError:
        return ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _key_of(given: str) -> bytes | None:
    """The key in ``Bearer KEY``, or the password in ``Basic …``, which browsers send from their own dialog."""
    scheme, _, rest = given.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode("latin-1", errors="replace")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return None


def check_site(access: Access, headers: Headers) -> None:
    """Refuse unknown hosts and origins; ApiError if the Host or the Origin is not allowed.

    A request without a Host is HTTP/1.0 and not from a browser: the connection refuses others.
    """
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not access.knows_host(host):
        raise ApiError(
            f"the Host {host[:100]!r} is not allowed; use an address, or start the server with --allowed-host NAME",
            status=421,
            code="unknown_host",
        )
    if origin is not None and not access.knows_origin(origin, host or ""):
        raise ApiError(
            f"pages of {origin[:100]!r} may not use this server; start it with --cors-origin ORIGIN",
            status=403,
            code="origin_not_allowed",
        )


def check_key(access: Access, open_paths: Collection[str], scope: Scope, headers: Headers) -> None:
    """Refuse requests without a valid key except to ``open_paths``, and record the client in ``scope``.

    Raises:
        ApiError: the key is missing or invalid.
    """
    client = scope.get("client")
    scope[CLIENT] = ("address", client[0] if client else None)
    if not access.keys or scope["path"] in open_paths or scope["method"] == "OPTIONS":
        return
    number = access.client(headers.get("authorization", ""))
    if number is None:
        missing = "no API key was given" if "authorization" not in headers else "this API key is not valid"
        raise ApiError(
            f"{missing}; send the header 'Authorization: Bearer KEY'",
            status=401,
            code="invalid_api_key",
            headers={"WWW-Authenticate": 'Bearer, Basic realm="glinfer", charset="UTF-8"'},
        )
    scope[CLIENT] = ("key", number)
