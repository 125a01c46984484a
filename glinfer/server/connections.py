"""Limits on the number and duration of connections, so that clients that hold them open cannot block others.

Uvicorn itself closes only connections that are silent for five seconds after an answer. A connection that sends a
header one byte at a time, or never reads its answer, would stay open forever. Here silence and slow headers have one
deadline.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from glinfer.server.errors import ApiError
from glinfer.server.limits import ConnectionLimits
from glinfer.server.metrics import Metrics


class _Open:
    """A transport that drops writes after its end, for which asyncio's would log a line."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


_PIECE = 4096
"""Bytes to parse at once; the requests in them that wait for an earlier answer take memory."""
_MAX_HEADER = 1 << 16


class BoundedConnection(HttpToolsProtocol):
    """An HTTP/1.1 connection; :func:`bounded` makes the class for one server.

    A connection is idle until the header of a request is complete. At the limit of connections, a new one ends the one
    that has been idle longest. If none is idle, it ends the newest connection of the address with the most connections.
    If that is its own address, it is refused with 503 instead.
    """

    limits: ClassVar[ConnectionLimits]
    metrics: ClassVar[Metrics]
    idle: ClassVar[dict[BoundedConnection, None]]
    addresses: ClassVar[dict[str | None, dict[BoundedConnection, None]]]
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _received = b""
    _header: int | None = None
    """Bytes of the incomplete header so far."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or refuse it."""
        super().connection_made(_Open(transport))  # type: ignore[arg-type]
        address = self.client[0] if self.client else None
        self.addresses.setdefault(address, {})[self] = None
        if len(self.connections) > self.limits.connections:
            self.metrics.rejected.labels("connections").inc()
            most = max(self.addresses.values(), key=len)
            if self.idle:
                next(iter(self.idle)).end()
            elif len(most) > len(self.addresses[address]):
                next(reversed(most)).end()
            else:
                self._refuse(_FULL)
                return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._settle()
        self.resume_writing()
        address = self.client[0] if self.client else None
        self.addresses[address].pop(self, None)
        if not self.addresses[address]:
            del self.addresses[address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, up to a request that waits for the answers of earlier ones."""
        data, at = self._received + data, 0
        while at < len(data) and not self.pipeline and not self.transport.is_closing():
            piece, at = data[at : at + _PIECE], at + _PIECE
            if again := self._parse(piece):
                data, at = again + data[at:], 0
            if self._header is not None:
                self._header += len(piece)
                if self._header > _MAX_HEADER:
                    self.send_400_response(f"the header has more than {_MAX_HEADER} bytes")
        self._received = data[at:]
        if self._received:
            self.flow.pause_reading()

    def _parse(self, piece: bytes) -> bytes:
        """Parse a piece; returns what another parser has to read instead of its end."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as end:
            # Offers of other protocols are ignored, but this parser would skip the body.
            head = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
            head += [b"%s: %s" % each for each in self.headers if each[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            return b"\r\n".join((*head, b"", b"")) + piece[end.args[0] :]
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        return b""

    def on_message_begin(self) -> None:
        """Begin a header."""
        self._header = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the header, and ignore those after a body."""
        if self._header is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin a request; a complete header ends its deadline.

        Raises:
            ValueError: the header is ambiguous or asks for a tunnel; the parser reports it as malformed.
        """
        hosts = [value for name, value in self.headers if name == b"host"]
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if len(hosts) != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            raise ValueError
        if codings not in ([], [b"chunked"]) or self.parser.get_method() == b"CONNECT":
            raise ValueError
        self._header = None
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            self._settle()

    def on_message_complete(self) -> None:
        """End a request."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, even if the rest of this one still arrives."""
        if not self.pipeline:
            self._await_request()
        super().on_response_complete()
        self.data_received(b"")

    def timeout_keep_alive_handler(self) -> None:
        """Keep a silent connection up to its deadline; clients and proxies that reuse it later would get an error."""

    def pause_writing(self) -> None:
        """Start the deadline of a client that does not read its answer."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.unread_seconds, self.end)

    def resume_writing(self) -> None:
        """Stop that deadline, since the client reads again."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP, in the form of all errors."""
        self._refuse(ApiError(msg, code="invalid_http"))

    def end(self) -> None:
        """End the connection at once, and drop unsent data."""
        self._settle()
        self.transport.abort()

    def _await_request(self) -> None:
        self._settle()
        self.idle[self] = None
        self._deadline = self.loop.call_later(self.limits.header_seconds, self.end)

    def _settle(self) -> None:
        """Stop waiting for a request."""
        self.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, unless another answer has begun, and close."""
        body = bytes(error.response().body)
        headers = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
        lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in (headers | error.headers).items()]
        answering = self.cycle is not None and not self.cycle.response_complete
        if not self.pipeline and not (answering and self.cycle.response_started):
            self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        if answering:
            self.cycle.disconnected = True
        self.transport.close()


_FULL = ApiError(
    "the server has reached its limit of connections; try again",
    status=503,
    code="too_many_connections",
    headers={"Retry-After": "1"},
)


def bounded(limits: ConnectionLimits, metrics: Metrics) -> type[BoundedConnection]:
    """Make the class of one server's connections."""
    own = {"limits": limits, "metrics": metrics, "idle": {}, "addresses": {}}
    return type("Connection", (BoundedConnection,), own)
