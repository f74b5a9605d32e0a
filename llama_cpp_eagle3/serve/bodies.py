"""Bodies of requests: bounded together while they are read and prepared, then JSON within limits."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from .errors import no_room
from .jsons import loads
from .limits import check_body, check_text

_PARSING = threading.Lock()
"""The parser holds the GIL: between two bodies all other threads have their turn."""
_N_SMALL = 64 << 10  # bytes of a body: as many as there are connections hold little memory together


class Bodies:
    """The bodies of all requests that are being read or prepared: bounded together."""

    def __init__(self, n_bytes_max: int):
        self.n_bytes_max, self.n_bytes = n_bytes_max, 0

    @asynccontextmanager
    async def read(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Read a request's body; it counts until the block ends. Small ones always have room.

        Raises:
            ApiError: those of other requests leave no room.
        """
        parts: list[bytes] = []
        n_bytes = n_counted = 0
        try:
            async for part in stream:
                parts.append(part)
                n_bytes += len(part)
                if n_bytes > _N_SMALL:
                    if self.n_bytes + n_bytes - n_counted > self.n_bytes_max:
                        raise no_room(self.n_bytes_max)
                    self.n_bytes += n_bytes - n_counted
                    n_counted = n_bytes
            text = b"".join(parts)
            parts.clear()
            yield text
        finally:
            self.n_bytes -= n_counted


def parse_json(text: bytes) -> Any:
    """A request's body. An empty one is an empty object.

    Raises:
        ApiError: it is not JSON, or exceeds a limit of requests.
    """
    check_text(text)
    with _PARSING:
        body = loads(text) if text.strip() else {}
    check_body(body)
    return body
