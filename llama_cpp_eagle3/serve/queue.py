"""The queue: what requests hold until they run, room for their bodies and places among the sequences."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable
from types import TracebackType

from .answer import Answer
from .engine_thread import EngineThread
from .errors import ApiError, failed, invalid, no_room, too_busy
from .metrics import Metrics

_N_BODIES = 4  # of the largest size, at once
_N_SMALL = 64 << 10  # bytes of a body: as many as there are connections hold little memory together


class Queue:
    """Bounds bodies that are read or prepared, and sequences that are prepared, wait or run, each together."""

    def __init__(self, engine_thread: EngineThread, metrics: Metrics, n_waiting_max: int, n_body_max: int):
        """Args beside the thread that runs the sequences.

        metrics: know how long requests take.
        n_waiting_max: sequences that may wait beside those that run.
        n_body_max: bytes of a body.
        """
        self._engine_thread, self._metrics = engine_thread, metrics
        self.n_slots, self.n_waiting_max = engine_thread.engine.target.n_seq, n_waiting_max
        self.n_bytes_max, self.n_bytes = _N_BODIES * n_body_max, 0
        self.n_preparing = 0
        """Sequences that have a place and do not run or wait yet."""
        self._lock = threading.Lock()

    def place(self, n: int = 0) -> Place:
        """A place for a request: `async with queue.place(n)`. n: its sequences, as far as they are known yet."""
        return Place(self, n)

    @property
    def n_waiting(self) -> int:
        """Sequences that wait for a slot."""
        return max(0, len(self._engine_thread.answers) + self.n_preparing - self.n_slots)

    def take(self, n: int) -> None:
        """Take places for n sequences. From any thread.

        Raises:
            ApiError: there are too many for the queue, now or ever; or the model is gone.
        """
        if self._engine_thread.failure:
            raise failed(self._engine_thread.failure)
        n_most = self.n_slots + self.n_waiting_max
        if n > n_most:
            raise invalid(
                f"the request asks for {n} texts (prompts x n) and never fits: this server has {self.n_slots} slots "
                f"and a queue of {self.n_waiting_max} (--max-queued-requests); send at most {n_most} at once"
            )
        with self._lock:
            if len(self._engine_thread.answers) + self.n_preparing + n > n_most:
                seconds = self.n_waiting * self._metrics.mean_request_seconds / self.n_slots
                raise too_busy(self.n_waiting, min(60, max(1, round(seconds))))
            self.n_preparing += n

    def give_back(self, n: int, answers: Iterable[Answer] = ()) -> None:
        """Give places back; answers: their sequences run or wait in their stead."""
        with self._lock:
            self.n_preparing -= n
            for answer in answers:
                self._engine_thread.submit(answer)


class Place:
    """What one request holds of the queue until it has been prepared."""

    def __init__(self, queue: Queue, n: int):
        """See `Queue.place`."""
        self._queue, self._n_first = queue, n
        self._n = self._n_bytes = 0
        self._is_over = False
        self._lock = threading.Lock()

    async def __aenter__(self) -> Place:
        self.take(self._n_first)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.n_bytes -= self._n_bytes
        with self._lock:
            self._is_over = True
            self._queue.give_back(self._n)

    async def read(self, stream: AsyncIterator[bytes]) -> bytes:
        """Read the request's body; it counts as long as the place is held. Small ones always have room.

        Raises:
            ApiError: those of other requests leave no room.
        """
        queue, parts, n = self._queue, list[bytes](), 0
        async for part in stream:
            parts.append(part)
            n += len(part)
            if n > _N_SMALL:
                if queue.n_bytes + n - self._n_bytes > queue.n_bytes_max:
                    raise no_room(queue.n_bytes_max)
                queue.n_bytes += n - self._n_bytes
                self._n_bytes = n
        return b"".join(parts)

    def take(self, n: int) -> None:
        """Take places for n sequences more, or refuse the request before it costs anything. From any thread.

        Raises:
            ApiError: as `Queue.take`; or the client has gone.
        """
        with self._lock:
            if self._is_over:
                raise ApiError(499, "invalid_request_error", "the client has left, or the request's time is over")
            self._queue.take(n)
            self._n += n

    def start(self, answers: Iterable[Answer]) -> None:
        """Have sequences run, or wait, in the places that were taken."""
        n, self._n = self._n, 0
        self._queue.give_back(n, answers)
