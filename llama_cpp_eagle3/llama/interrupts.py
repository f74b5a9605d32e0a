"""A Ctrl-C while llama.cpp calls Python."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_at_end() -> Iterator[None]:
    """Handle a first Ctrl-C inside at the end: an exception in a callback of llama.cpp, as that of its log, is lost."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    def keep(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if len(came) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])
