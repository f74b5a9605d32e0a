"""Runs what takes long in threads: a few at a time, each call with a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from .errors import ApiError

_N_WORKERS = 2  # calls that compute at once: JSON, tokens, templates, grammars, images
_N_DETACHED_MAX = 16  # threads beside those: they wait for other servers, or are late


@dataclass(slots=True, eq=False)
class _Task:
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    thread: threading.Thread | None = None
    is_worker: bool = False
    """Whether it counts as one of the threads that compute."""


class Executor:
    """Runs functions in threads, each within a deadline. All but the functions runs in the loop.

    A thread cannot be ended: one that is late goes on detached, and its result is dropped.
    """

    def __init__(self, seconds: float):
        """seconds: deadline of a call, the time in which it waits for a thread included."""
        self._seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Task] = deque()
        self._running: set[_Task] = set()
        self._n_workers = 0
        self._current = threading.local()

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread, once one is free.

        Raises:
            ApiError: the request's time is over.
        """
        self._loop = loop = asyncio.get_running_loop()
        task = _Task(lambda: function(*args), loop.create_future())
        timer = loop.call_later(self._seconds, self._expire, task)
        self._waiting.append(task)
        self._begin()
        try:
            return await task.future
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
            if task not in self._running:  # else its client has left: the thread must not stay a worker for ever
                timer.cancel()

    def detach(self) -> None:
        """From such a thread: it only waits from now on, and another one may compute."""
        task = getattr(self._current, "task", None)
        if task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._release, task)

    def stop(self, seconds: float) -> bool:
        """Wait for the threads; False if one does not end, and may still use the model."""
        self._waiting.clear()
        end = monotonic() + seconds
        threads = [task.thread for task in self._running if task.thread is not None]
        for thread in threads:
            thread.join(max(0.0, end - monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _begin(self) -> None:
        while self._waiting and self._n_workers < _N_WORKERS:
            task = self._waiting.popleft()
            task.is_worker = True
            self._n_workers += 1
            self._running.add(task)
            # not an executor's: those are waited for at the end of the process
            task.thread = threading.Thread(target=self._work, args=(task,), name="executor", daemon=True)
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
        if task.is_worker:
            task.is_worker = False
            self._n_workers -= 1
        self._begin()

    def _expire(self, task: _Task) -> None:
        if not task.future.done():
            what = "was not prepared" if task in self._running else "waited for others to be prepared, and was not"
            message = f"the request {what} within {self._seconds:g} s: send less at once, or try again later"
            task.future.set_exception(ApiError(503, "unavailable_error", message))
        if task in self._running:
            self._release(task)

    def _release(self, task: _Task) -> None:
        """Let another task compute, unless too many are detached."""
        if task.is_worker and len(self._running) - self._n_workers < _N_DETACHED_MAX:
            task.is_worker = False
            self._n_workers -= 1
            self._begin()
