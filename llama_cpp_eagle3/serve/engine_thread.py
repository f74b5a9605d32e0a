"""The thread that owns the model: it takes sequences from an inbox, steps the engine, and sends each step's outputs."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from ..engine import Engine, Output, Sequence
from .answer import Answer, Came
from .metrics import Metrics

_N_FAILURES_MAX = 3
_STOP_SECONDS = 60.0  # a pass may take long, but a device that hangs never comes back
_QUIET_SECONDS = 0.2  # agents come back at once
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class _Call:
    seq_id: int | None
    function: Callable[[], Any]
    future: Future[Any]


class EngineThread:
    """Steps an engine while it has work."""

    def __init__(self, engine: Engine, metrics: Metrics):
        self.engine = engine
        self.answers: set[Answer] = set()
        """The answers that have not ended. Two threads change this: iterate over a copy."""
        self.on_submit: Callable[[], None] = lambda: None
        """Called with each answer that is submitted, before it runs."""
        self.failure = ""
        """Why the model cannot be used any more; empty while it can."""
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._by_sequence: dict[Sequence, Answer] = {}
        self._inbox: queue.SimpleQueue[Answer | _Call | None] = queue.SimpleQueue()
        self._deferred: list[_Call] = []
        self._stopping = False
        self._has_ended = False
        """The engine's thread does not read the inbox any more."""
        self._lock = threading.Lock()
        self._n_failures = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread. loop: where answers receive events."""
        self._loop = loop
        self._thread.start()

    def stop(self, seconds: float = _STOP_SECONDS) -> bool:
        """End all sequences, and wait for the thread; False if it does not end and may still use the model."""
        self._stopping = True
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join(seconds)
        else:
            self._finish()  # it was never started
        return not self._thread.is_alive()

    def submit(self, answer: Answer) -> None:
        """Queue a sequence. After `stop` it fails at once."""
        self.on_submit()
        with self._lock:
            if not self._has_ended:
                self.answers.add(answer)
                self._inbox.put(answer)
                return
        self._send([_failed(answer, _shut_down())])

    def cancel(self, answer: Answer) -> None:
        """End a sequence with the next step, running or waiting."""
        self.engine.cancel(answer.sequence)
        self._inbox.put(None)

    def call(self, function: Callable[[], T], seq_id: int | None = None) -> Future[T]:
        """Call a function between two steps; seq_id: once this slot is free. After `stop` it fails."""
        future: Future[T] = Future()
        with self._lock:
            if not self._has_ended:
                self._inbox.put(_Call(seq_id, function, future))
                return future
        future.set_exception(_shut_down())
        return future

    # in the thread

    def _run(self) -> None:
        try:
            self._keep()
            while not self._stopping:
                try:
                    if self._deferred:  # the slot may be free now, and nothing may come into the inbox
                        self._run_calls()
                    self._read_inbox()
                    if self._deferred:
                        self._run_calls()
                    if self.engine.has_work and not self._stopping:
                        self._step()
                except MemoryError as e:  # a second try would fail too, unless requests free what they hold
                    _log.error("out of memory: all running and waiting requests end")
                    self._fail_answers(e)
                except Exception as e:
                    _log.exception("the engine thread failed")
                    self._fail(e)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Fail all sequences, and refuse those that are submitted from now on."""
        with self._lock:
            self._has_ended = True
        self._fail(_shut_down())

    def _step(self) -> None:
        start = perf_counter()
        try:
            outputs = self.engine.step()
        except MemoryError:
            raise
        except Exception as e:  # a pass failed: the sequences go on from where they are
            self._n_failures += 1
            _log.error("a step failed: %s", e)
            if self._n_failures >= _N_FAILURES_MAX:
                self._fail(e)
            return
        self._n_failures = 0
        self._dispatch(outputs, start, perf_counter())
        self._metrics.on_step(self.engine)

    def _read_inbox(self) -> None:
        is_idle = not self.engine.has_work
        while True:
            try:
                item = self._wait() if is_idle else self._inbox.get(block=False)
            except queue.Empty:
                return
            is_idle = False
            if isinstance(item, _Call):
                self._deferred.append(item)
            elif item is not None and item in self.answers:  # without this it failed while it was in the inbox
                self._by_sequence[item.sequence] = item
                self.engine.submit(item.sequence)

    def _wait(self) -> Answer | _Call | None:
        """The next item of the inbox. While there is none, the engine uses the prefixes' folder."""
        may_keep = True
        while True:
            try:
                return self._inbox.get(timeout=_QUIET_SECONDS if may_keep else None)
            except queue.Empty:
                may_keep = self._keep()

    def _keep(self) -> bool:
        """Use the prefixes' folder; returns whether there is more to do."""
        try:
            return self.engine.keep()
        except Exception as e:  # the requests can go on without it
            _log.error("cannot use the prefix cache's folder: %s", e)
            return False

    def _run_calls(self) -> None:
        waiting, self._deferred = self._deferred, []
        for call in waiting:
            if call.seq_id is not None and not self.engine.slots[call.seq_id].is_free:
                self._deferred.append(call)
            elif call.future.set_running_or_notify_cancel():
                try:
                    call.future.set_result(call.function())
                except BaseException as e:
                    call.future.set_exception(e)

    def _dispatch(self, outputs: list[Output], start: float, now: float) -> None:
        """Count what a step has given, and send it to the event loop."""
        came: list[Came] = []
        for answer in self._by_sequence.values():
            if not answer.t_first:
                came += answer.see_prompt(start, now)
        before: dict[Answer, tuple[float, int]] = {}
        for output in outputs:
            found = self._by_sequence.get(output.sequence)
            if found is None:
                continue
            before.setdefault(found, (found.t_last, found.n_tokens))
            came.append(found.count(output, now))
            if output.finish_reason:
                del self._by_sequence[output.sequence]
                self.answers.discard(found)
                self._metrics.on_end(found, output.finish_reason)
            elif found.is_late:
                self.engine.cancel(output.sequence)
        for answer, (t_before, n_before) in before.items():
            if answer.n_tokens > n_before:
                self._metrics.on_tokens(answer, answer.n_tokens - n_before, now, t_before)
        self._send(came)

    def _send(self, came: list[Came]) -> None:
        if came and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(_deliver, came)
            except RuntimeError:
                self._loop = None  # the loop is closed

    def _fail(self, error: Exception) -> None:
        """End all sequences with an error."""
        if not self._stopping:
            self.failure = f"the server has stopped generating, restart it: {error}"
            _log.critical("%s", self.failure)
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, _Call):
                self._deferred.append(item)
        for call in self._deferred:
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(error)
        self._deferred = []
        self._fail_answers(error)

    def _fail_answers(self, error: BaseException) -> None:
        left = list(self._by_sequence)
        try:
            self.engine.drop(left)
        except Exception as e:
            _log.error("cannot end the running sequences: %s", e)
        answers = set(self.answers)  # a copy: those that the loop adds meanwhile go on
        self._by_sequence.clear()
        self.answers -= answers
        self._n_failures = 0
        self._send([_failed(answer, error) for answer in answers])


def _failed(answer: Answer, error: BaseException) -> Came:
    answer.sequence.result.error = error
    return answer, Output(answer.sequence, None, finish_reason="error"), None


def _shut_down() -> RuntimeError:
    return RuntimeError("the server is shutting down")


def _deliver(came: list[Came]) -> None:
    for one in came:
        one[0].receive(one)
