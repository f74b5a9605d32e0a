"""uvicorn's HTTP protocol, with limits for headers and support for clients that close their sending half."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEADER_SECONDS = 20.0
_N_HEADER_MAX = 64 << 10  # bytes of a request line and its headers
_PROBE_SECONDS = (0.1, 1.0)  # before the second probe, and before each later one
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"  # Python's http.client skips no other interim response
_UPGRADE = re.compile(rb"(?i)\r\n(?=upgrade:)")
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 58\r\n\r\nthe request's path and headers are larger than 65536 bytes"
)

_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 66\r\n\r\n"
    b"the server has as many connections as it may (--limit-concurrency)"
)


class _UntilClosed(int):
    """The bytes that uvicorn still expects of an answer which ends with its connection: any number."""

    def __lt__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> _UntilClosed:
        return self

    __hash__ = int.__hash__


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits for the time and the bytes of a request's headers and trailers."""

    _timer: asyncio.TimerHandle | None = None
    _is_in_body = False
    _n_head = 0
    """Bytes of a request line and its headers."""
    _n_waste = 0
    """Bytes received since the last complete header or part of a body: headers, trailers, or anything else."""
    _probe_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or refuse it with a 503 beyond the limit."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self.connections.discard(self)  # else uvicorn counts it, and refuses others' requests
            transport.write(_TOO_MANY)
            transport.close()
            return
        self._timer = self.loop.call_later(_HEADER_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Receive bytes, and check the limit of headers; a read may begin with the end of another request."""
        self._n_waste += len(data)
        if not self._is_in_body:
            # the parser drops the body of a request to change to HTTP/2, as Java's clients send it
            head, blank, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"\r\nx-", head) + blank + rest
        super().data_received(data)
        if self._n_waste > _N_HEADER_MAX and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_url(self, url: bytes) -> None:
        """Keep a part of the path."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, or drop a trailer."""
        if not self._is_in_body:
            self._count(len(name) + len(value))
            super().on_header(name, value)

    def _count(self, n: int) -> None:
        """Count bytes of a request's head; one that is too large is no valid request for the parser."""
        self._n_head += n
        if self._n_head > _N_HEADER_MAX:
            raise ValueError

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or has too large a head."""
        if self._n_head <= _N_HEADER_MAX:
            super().send_400_response(msg)
        elif not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin to receive a body: the headers are complete."""
        self._is_in_body, self._n_waste = True, 0
        self._stop_timer()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":  # whose clients cannot read chunks, which uvicorn would send
            self.cycle.chunked_encoding, self.cycle.expected_content_length = False, _UntilClosed()

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body."""
        self._n_waste = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has all come: headers of another follow."""
        self._is_in_body = False
        super().on_message_complete()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_in_body, self._n_head, self._n_waste = False, 0, 0
        self._stop_timer()
        self._timer = self.loop.call_later(_HEADER_SECONDS, self.transport.close)
        super().on_message_begin()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Handle the end of what the client sends; True = it may wait for an answer, else the connection is closed.

        A client that has left looks the same until something is written to it: interim responses, which clients skip.
        """
        cycle = self.cycle
        waits = cycle is not None and not cycle.more_body and not cycle.response_complete and not self.pipeline
        if not waits or self.scheme != "http" or self.scope["http_version"] != "1.1":
            return None
        cycle.keep_alive = False
        self._probe(_PROBE_SECONDS[0])
        return True

    def _probe(self, seconds: float) -> None:
        if not self.cycle.response_started and not self.transport.is_closing():
            self.transport.write(_PROBE)
            self._probe_timer = self.loop.call_later(seconds, self._probe, _PROBE_SECONDS[1])

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop: the connection is closed."""
        self._stop_timer()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def http_config(app: ASGIApp, n_connections: int, **more: Any) -> uvicorn.Config:
    """Return uvicorn's configuration for an application; more: uvicorn's own options."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        limit_concurrency=n_connections + 1,  # uvicorn refuses requests once it is reached
        **more,
    )
