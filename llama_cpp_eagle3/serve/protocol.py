"""HTTP as uvicorn speaks it, with limits of time and size for what comes before a body."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEADER_SECONDS = 20.0
_N_HEADER_MAX = 64 << 10  # bytes of a request line and its headers
_PROBE_SECONDS = (0.1, 1.0)  # between the first two, and then
_PROBE = b"HTTP/1.1 102 Processing\r\n\r\n"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 49\r\n\r\nthe request's headers are larger than 65536 bytes"
)


class Protocol(HttpToolsProtocol):
    """uvicorn's, which does not wait forever for the headers of a request, nor takes any number of them."""

    _timer: asyncio.TimerHandle | None = None
    _is_in_headers = True
    _n_header = 0
    _probe_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(_HEADER_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Read on; the limit is looked at between two reads, and the first one may hold the end of another request."""
        self._n_header += len(data)
        super().data_received(data)
        if self._is_in_headers and self._n_header > _N_HEADER_MAX and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """A body may follow."""
        self._is_in_headers = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_in_headers, self._n_header = True, 0
        self._stop_timer()
        self._timer = self.loop.call_later(_HEADER_SECONDS, self.transport.close)
        super().on_message_begin()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Nothing more will be sent; True if the client may wait for an answer, else the connection is closed.

        One that has left looks the same until something is written to it: interim responses, which clients skip.
        """
        cycle = self.cycle
        waits = cycle is not None and not cycle.more_body and not cycle.response_started and not self.pipeline
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
        """The client has left."""
        self._stop_timer()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
