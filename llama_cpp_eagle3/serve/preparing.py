"""What is done beside the event loop before a request can begin: a few at a time, and none of it for ever."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any

from .errors import ApiError

ARRIVED: ContextVar[float] = ContextVar("ARRIVED")
"""When the body of the request at hand was there, by time.monotonic; set where it is read."""
_N_PLACES = 2  # what is prepared computes: tokens, templates, grammars, images
_N_BESIDE_MAX = 16  # threads beside those that have places: they wait for others' servers, or are late


@dataclass(slots=True, eq=False)
class _Task:
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    thread: threading.Thread | None = None
    has_place: bool = False


class Preparing:
    """Threads for what takes long, with a deadline for each request. All but the functions runs in the loop.

    A thread cannot be ended: one that is late goes on, without its place, and nobody waits for what it finds.
    """

    def __init__(self, seconds: float):
        """seconds: of a request, from its body on, however many functions are called for it."""
        self._seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Task] = deque()
        self._running: set[_Task] = set()
        self._n_placed = 0
        self._current = threading.local()

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread, once there is a place.

        Raises:
            ApiError: the request's time is over.
        """
        self._loop = loop = asyncio.get_running_loop()
        task = _Task(lambda: function(*args), loop.create_future())
        left = ARRIVED.get(monotonic()) + self._seconds - monotonic()
        timer = loop.call_later(max(0.0, left), self._be_late, task)
        self._waiting.append(task)
        self._begin()
        try:
            return await task.future
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
            if task not in self._running:  # else it is a client that has left: its thread must not keep the place
                timer.cancel()

    def step_aside(self) -> None:
        """From such a thread: it only waits from now on, and others may compute."""
        task = getattr(self._current, "task", None)
        if task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._free, task)

    def stop(self, seconds: float) -> bool:
        """Wait for the threads; False if one does not end, and may still use the model."""
        self._waiting.clear()
        end = monotonic() + seconds
        threads = [task.thread for task in self._running if task.thread is not None]
        for thread in threads:
            thread.join(max(0.0, end - monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _begin(self) -> None:
        while self._waiting and self._n_placed < _N_PLACES:
            task = self._waiting.popleft()
            task.has_place = True
            self._n_placed += 1
            self._running.add(task)
            # not an executor's: those are waited for at the end of the process
            task.thread = threading.Thread(target=self._work, args=(task,), name="prepare", daemon=True)
            task.thread.start()

    def _work(self, task: _Task) -> None:
        self._current.task = task
        result, error = None, None
        try:
            result = task.function()
        except BaseException as e:
            error = e
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end, task, result, error)

    def _end(self, task: _Task, result: Any, error: BaseException | None) -> None:
        self._running.discard(task)
        if not task.future.done():
            if error is None:
                task.future.set_result(result)
            else:
                task.future.set_exception(error)
        if task.has_place:
            task.has_place = False
            self._n_placed -= 1
        self._begin()

    def _be_late(self, task: _Task) -> None:
        if not task.future.done():
            what = "was not prepared" if task in self._running else "waited for others to be prepared, and was not"
            message = f"the request {what} within {self._seconds:g} s: send less at once, or try again later"
            task.future.set_exception(ApiError(503, "unavailable_error", message))
        if task in self._running:
            self._free(task)

    def _free(self, task: _Task) -> None:
        """Let another one have its place, unless too many go on without one."""
        if task.has_place and len(self._running) - self._n_placed < _N_BESIDE_MAX:
            task.has_place = False
            self._n_placed -= 1
            self._begin()
