"""One object, one thread at a time."""

from __future__ import annotations

import threading
from types import TracebackType

from .errors import BusyError, Eagle3Error


class Guard:
    """A lock that nobody waits for: whoever comes second gets a `BusyError`, the same thread included."""

    __slots__ = ("_lock", "_name", "closed")

    def __init__(self, name: str):
        self._lock = threading.Lock()
        self._name = name
        self.closed = False

    def try_acquire(self) -> bool:
        """Enter without an error; whoever gets True must `release`."""
        return not self.closed and self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Leave."""
        self._lock.release()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise BusyError(
                f"this {self._name} is in use: by another thread, or by the call whose callback you are in. "
                "Give each thread its own, or take turns."
            )
        if self.closed:
            self._lock.release()
            raise Eagle3Error(f"this {self._name} is closed")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()
