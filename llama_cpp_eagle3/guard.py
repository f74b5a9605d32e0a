"""One object, one thread at a time, and not after its end."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, NoReturn

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
            raise closed_error(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()


def closed_error(name: str) -> Eagle3Error:
    """What everything raises that is used after its end."""
    return Eagle3Error(f"this {name} is closed: load the model again, or close it later")


class Closed:
    """What is left of an object that was freed: whatever is asked of it raises."""

    _name: str

    def __getattr__(self, name: str) -> NoReturn:
        raise closed_error(self._name)


def bury(thing: Any, name: str) -> None:
    """Turn a freed object into `Closed`, so that others who hold it get an error and not freed memory."""
    thing.__dict__.clear()
    thing.__dict__["_name"] = name
    thing.__class__ = Closed
