"""Runs long functions in threads, such as preparing a request: a few at a time, each call with a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import monotonic
from typing import Any

from .api_errors import ApiError

_N_WORKERS = 2  # calls that compute at once: JSON, tokens, templates, grammars, images
_N_DETACHED_MAX = 16  # more threads, which wait for other servers or are late


@dataclass(slots=True, eq=False)
class _Task:
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    has_ended: threading.Event = field(default_factory=threading.Event)
    is_worker: bool = False
    """Whether it counts as one of the threads that compute."""


class Executor:
    """Runs functions in threads, each within a deadline. Its own methods run in the loop, without locks.

    A function cannot be interrupted: one that is late goes on detached, and its result is dropped. Threads do not end,
    since later there may be no memory for a new one.
    """

    def __init__(self, seconds: float):
        """seconds: deadline of a call, including the time that it waits for a thread."""
        self._seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Task] = deque()
        """Calls that no thread has begun: here a request waits to be prepared."""
        self._running: set[_Task] = set()
        self._n_workers = 0
        self._threads: list[threading.Thread] = []
        self._handed: SimpleQueue[_Task | None] = SimpleQueue()
        self._current = threading.local()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread, once one is free.

        Raises:
            ApiError: the request's time is over.
        """
        self._loop = loop = asyncio.get_running_loop()
        task = _Task(function, loop.create_future())
        timer = loop.call_later(self._seconds, self._expire, task)
        self._waiting.append(task)
        self._begin()
        try:
            return await task.future
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
            if task not in self._running:  # else the client has left, and the timer stops counting the thread
                timer.cancel()

    def detach(self) -> None:
        """Tell, in such a thread, that it only waits from now on, so that another one may compute."""
        task = getattr(self._current, "task", None)
        if task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._release, task)

    def stop(self, seconds: float) -> bool:
        """Wait for running calls, and end the threads; False if one goes on and may still use the model."""
        self._waiting.clear()
        for _ in self._threads:
            self._handed.put(None)
        end = monotonic() + seconds
        return all(task.has_ended.wait(max(0.0, end - monotonic())) for task in list(self._running))

    def _begin(self) -> None:
        while self._waiting and self._n_workers < _N_WORKERS:
            task, n_threads = self._waiting.popleft(), max(_N_WORKERS, len(self._running) + 1)
            if len(self._threads) < n_threads and not self._start_threads(n_threads):
                if not task.future.done():
                    message = "there is no memory for another thread: send less at once, or try again later"
                    task.future.set_exception(ApiError(503, "unavailable_error", message))
                continue
            task.is_worker = True
            self._n_workers += 1
            self._running.add(task)
            self._handed.put(task)

    def _start_threads(self, n: int) -> bool:
        """Start threads until there are n; False: there is none for another task."""
        try:
            while len(self._threads) < n:
                # not concurrent.futures, whose threads are waited for at the end of the process
                thread = threading.Thread(target=self._serve, name="executor", daemon=True)
                thread.start()
                self._threads.append(thread)
        except (RuntimeError, MemoryError):
            return len(self._threads) > len(self._running)
        return True

    def _serve(self) -> None:
        """Call the functions of tasks, in a thread."""
        while (task := self._handed.get()) is not None:
            self._current.task = task
            result, error = None, None
            try:
                result = task.function()
            except BaseException as e:
                error = e
            self._current.task = None
            task.has_ended.set()
            assert self._loop is not None
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end, task, result, error)
            del task, result, error  # frees what they hold, such as a body

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
