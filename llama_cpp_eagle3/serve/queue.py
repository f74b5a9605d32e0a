"""Limits for the bodies of requests, and for the sequences that are prepared, wait or run.

Nothing waits here: requests wait for a thread in `executor`, sequences for a slot in the engine's scheduler.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from .answer import Answer
from .api_errors import failed, gone, invalid, no_room, too_busy, too_large, too_slow
from .engine_thread import EngineThread
from .metrics import Metrics

_N_BODIES = 4  # of the largest size, at once
_N_SMALL = 64 << 10  # bytes of a body; one such body for each connection takes little memory


class Queue:
    """Bounds the bytes of all bodies that are held, and the number of all sequences that are prepared, wait or run."""

    def __init__(
        self,
        engine_thread: EngineThread,
        metrics: Metrics,
        n_waiting_max: int,
        n_body_max: int,
        body_seconds: float,
    ):
        """Make an empty queue.

        Args:
            engine_thread: The thread that runs the sequences.
            metrics: The server's metrics, which estimate how long a refused client has to wait.
            n_waiting_max: Sequences that may wait beside those that run.
            n_body_max: Bytes of a body, at most.
            body_seconds: Seconds that a client may take to send it.
        """
        self.engine_thread, self._metrics = engine_thread, metrics
        self._n_slots, self._n_waiting_max = engine_thread.engine.target.n_seq, n_waiting_max
        self.n_body_max, self.body_seconds = n_body_max, body_seconds
        self.n_bytes_max, self.n_bytes = _N_BODIES * n_body_max, 0
        self.n_preparing = 0
        """Sequences that are reserved and do not run or wait yet."""
        self.lock = threading.Lock()
        """Has to be held to change `n_preparing`."""

    @asynccontextmanager
    async def place(self, n: int = 0) -> AsyncIterator[Place]:
        """Hold a place for a request until it has been prepared; an error cancels the answers that were started.

        n: the request's sequences, if their number is known.

        Raises:
            ApiError: see `Place.take`.
        """
        place, has_ended = Place(self), False
        try:
            if n:
                place.take(n)
            yield place
            has_ended = True
        finally:
            self.n_bytes -= place.n_bytes
            with self.lock:
                place.is_over = True
                self.n_preparing -= place.n
            for answer in () if has_ended else place.started:
                self.engine_thread.cancel(answer)

    @property
    def n_waiting(self) -> int:
        """Sequences that wait for a slot."""
        return max(0, len(self.engine_thread.answers) + self.n_preparing - self._n_slots)

    def check_room(self, n: int) -> None:
        """Raise ApiError if there is no room for n sequences, now or ever, or the engine has stopped."""
        if self.engine_thread.failure:
            raise failed(self.engine_thread.failure)
        n_most = self._n_slots + self._n_waiting_max
        if n > n_most:
            raise invalid(
                f"the request asks for {n} texts (prompts x n) and never fits: this server has {self._n_slots} slots "
                f"and a queue of {self._n_waiting_max} (--max-queued-requests); send at most {n_most} at once"
            )
        if len(self.engine_thread.answers) + self.n_preparing + n > n_most:
            seconds = self.n_waiting * self._metrics.mean_request_seconds / self._n_slots
            raise too_busy(self.n_waiting, min(60, max(1, round(seconds))))


@dataclass(slots=True, eq=False)
class Place:
    """The share of the queue that one request holds until `Queue.place` ends."""

    queue: Queue
    n: int = 0
    """Sequences that it may start."""
    n_bytes: int = 0
    """Bytes of its body, if that is not small."""
    started: Sequence[Answer] = ()
    is_over: bool = False

    async def read(self, stream: AsyncIterator[bytes]) -> bytes:
        """Read the request's body; small ones always have room.

        Raises:
            ApiError: the body is too large or does not come in time, or other requests' bodies leave no room.
        """
        try:
            return await asyncio.wait_for(self._read(stream), self.queue.body_seconds)
        except asyncio.TimeoutError:
            raise too_slow() from None

    async def _read(self, stream: AsyncIterator[bytes]) -> bytes:
        queue, parts, n = self.queue, list[bytes](), 0
        async for part in stream:
            parts.append(part)
            n += len(part)
            if n > queue.n_body_max:
                raise too_large(queue.n_body_max)
            if n > _N_SMALL:
                if queue.n_bytes + n - self.n_bytes > queue.n_bytes_max:
                    raise no_room(queue.n_bytes_max)
                queue.n_bytes += n - self.n_bytes
                self.n_bytes = n
        return b"".join(parts)

    def take(self, n: int) -> None:
        """Reserve n sequences, or refuse the request before it costs anything. From any thread.

        Raises:
            ApiError: the queue has no room for them, now or ever; the client has gone; or the engine has stopped.
        """
        with self.queue.lock:
            if self.is_over:
                raise gone()
            self.queue.check_room(n)
            self.queue.n_preparing += n
            self.n += n

    def start(self, answers: Sequence[Answer]) -> None:
        """Have sequences run or wait, as many as were reserved. From any thread.

        Raises:
            ApiError: the client has gone.
        """
        with self.queue.lock:
            if self.is_over:
                raise gone()
            self.queue.n_preparing -= self.n
            self.n, self.started = 0, answers
            for answer in answers:
                self.queue.engine_thread.submit(answer)
