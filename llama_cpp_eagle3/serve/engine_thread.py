"""The thread that owns the model: it takes jobs from an inbox, steps the engine, and sends the events of each step."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol, TypeVar

from ..engine import Engine, Output, Sequence, TokenLogprob
from .request_metrics import RequestMetrics

_N_FAILURES_MAX = 3
_STOP_SECONDS = 60.0  # a pass may take long, but a device that hangs never comes back
_QUIET_SECONDS = 0.2  # agents come back at once
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class Token:
    """A token was sampled."""

    token: int
    text: str
    n: int
    """Its number, from 1."""
    drafted: bool
    """Whether it had been drafted."""
    logprob: TokenLogprob | None
    timings: dict[str, Any] | None


@dataclass(slots=True)
class Progress:
    """A chunk of the prompt was evaluated."""

    n_prefilled: int
    """Tokens of the prompt that are evaluated, the cached ones included."""
    seconds: float
    timings: dict[str, Any]


@dataclass(slots=True)
class End:
    """The sequence is finished. The rest of its text comes with it."""

    reason: str
    """Of the sequence: "stop", "length", "cancelled" or "error"."""
    text: str = ""
    error: BaseException | None = None
    stopping_word: str = ""
    is_eos: bool = False


Event = Token | Progress | End


class Listener(Protocol):
    """Receives the events of a job, in the event loop."""

    def on_events(self, job: Job, events: list[Event]) -> None:
        """Receive the events of one step."""


@dataclass(slots=True, eq=False)
class Job:
    """A sequence, and who receives its events."""

    index: int
    sequence: Sequence
    listener: Listener
    metrics: RequestMetrics
    wants_timings: bool = False
    wants_progress: bool = False
    prompt_only: bool = False
    """Only the prompt is evaluated, and no token is sent."""
    t_max: float = 0.0
    """Seconds after which it ends with the next line; 0 = no limit."""
    parent: Job | None = None
    """A job with the same prompt: this one waits until that prompt is in the prefix cache."""
    children: list[Job] = field(default_factory=list)
    n_progress: int = -1
    saw_newline: bool = False
    timed_out: bool = False
    """It generated for longer than `t_max`."""


@dataclass(slots=True)
class _Call:
    seq_id: int | None
    function: Callable[[], Any]
    future: Future[Any]


class Observer(Protocol):
    """Counts what the engine does."""

    def on_step(self, engine: Engine) -> None:
        """Count a step."""

    def on_tokens(self, job: Job, n: int, now: float, before: float) -> None:
        """Count n tokens of one step; the job's last ones before were sampled at `before`, 0.0 if it had none."""

    def on_end(self, job: Job, reason: str) -> None:
        """Count a finished job."""


class EngineThread:
    """Steps an engine while it has work."""

    def __init__(self, engine: Engine, observer: Observer):
        self.engine = engine
        self.jobs: set[Job] = set()
        """All unfinished jobs. Two threads change it: iterate over a copy."""
        self.failure = ""
        """Why the model cannot be used any more; empty as long as it can."""
        self._observer = observer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._by_sequence: dict[Sequence, Job] = {}
        self._inbox: queue.SimpleQueue[Job | _Call | None] = queue.SimpleQueue()
        self._deferred: list[_Call] = []
        self._stopping = False
        self._has_ended = False
        """The engine's thread does not read the inbox any more."""
        self._lock = threading.Lock()
        self._n_failures = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread. Listeners receive their events in this loop."""
        self._loop = loop
        self._thread.start()

    def stop(self, seconds: float = _STOP_SECONDS) -> bool:
        """End all jobs, and wait for the thread; False if it does not end and may still use the model."""
        self._stopping = True
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join(seconds)
        else:
            self._finish()  # it was never started
        return not self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Run a job. After `stop` it fails at once."""
        with self._lock:
            if not self._has_ended:
                self.jobs.add(job)
                self._inbox.put(job)
                return
        self._send_events({job: [End("error", error=_shut_down())]})

    def cancel(self, job: Job) -> None:
        """End a job with the next step, wherever it is."""
        self.engine.cancel(job.sequence)
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
            while not self._stopping:
                try:
                    self._run_calls()  # those that waited for a slot: the inbox may stay empty
                    self._read_inbox()
                    self._run_calls()
                    if self.engine.has_work and not self._stopping:
                        self._step()
                except MemoryError as e:  # another try would meet the same, unless those who run give theirs back
                    _log.error("the memory does not suffice: all requests end")
                    self._fail_jobs(e)
                except Exception as e:
                    _log.exception("the engine thread failed")
                    self._fail(e)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Fail all jobs, and refuse those that are submitted from now on."""
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
        self._observer.on_step(self.engine)

    def _read_inbox(self) -> None:
        is_idle = not self.engine.has_work
        while True:
            try:
                item = self._wait() if is_idle else self._inbox.get(block=False)
            except queue.Empty:
                return
            is_idle = False
            if isinstance(item, Job):
                if item not in self.jobs:
                    continue  # it failed while it was in the inbox
                if item.parent is not None and item.parent in self.jobs and not item.parent.metrics.t_first:
                    item.parent.children.append(item)
                else:
                    self._admit(item)
            elif item is not None:
                self._deferred.append(item)

    def _wait(self) -> Job | _Call | None:
        """The next item. While none comes, the engine writes on what is kept over restarts."""
        may_keep = True
        while True:
            try:
                return self._inbox.get(timeout=_QUIET_SECONDS if may_keep else None)
            except queue.Empty:
                may_keep = self.engine.keep()

    def _admit(self, job: Job) -> None:
        self._by_sequence[job.sequence] = job
        self.engine.submit(job.sequence)

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
        events: dict[Job, list[Event]] = defaultdict(list)
        for job in self._by_sequence.values():
            self._update_prefill(job, start, now, events)
        rests: dict[Job, str] = {}
        before: dict[Job, tuple[float, int]] = {}
        for output in outputs:
            found = self._by_sequence.get(output.sequence)
            if found is None:
                continue
            rests[found] = ""
            before.setdefault(found, (found.metrics.t_last, found.metrics.n_tokens))
            if output.token is None:
                rests[found] = output.text
            elif not found.prompt_only:
                events[found].append(self._token_event(found, output, now))
        for job, rest in rests.items():
            t_before, n_before = before[job]
            n_tokens = job.metrics.n_tokens - n_before
            if not t_before:
                self._on_first_token(job, now)
            if n_tokens:
                self._observer.on_tokens(job, n_tokens, now, t_before)
            if job.sequence.is_done:
                events[job].append(self._end_event(job, rest))
        self._send_events(events)

    def _update_prefill(self, job: Job, start: float, now: float, events: dict[Job, list[Event]]) -> None:
        """Record how much of the prompt is evaluated."""
        sequence, metrics = job.sequence, job.metrics
        if sequence.seq_id >= 0:
            metrics.id_slot = sequence.seq_id
        if metrics.t_first or sequence.n_cached < 0:
            return
        if not metrics.t_start:
            metrics.t_start, metrics.n_cached = start, min(sequence.n_cached, metrics.n_prompt)
            metrics.cached_in = sequence.cached_in
            if job.wants_progress:
                events[job].append(Progress(metrics.n_cached, 0.0, metrics.timings()))
        n_past = min(sequence.n_past, metrics.n_prompt)
        metrics.n_prefilled = max(0, n_past - metrics.n_cached)
        if job.wants_progress and job.n_progress < n_past:
            job.n_progress = n_past
            timings = metrics.timings() | {"prompt_ms": 1e3 * (now - metrics.t_start)}
            events[job].append(Progress(n_past, now - metrics.t_start, timings))

    def _token_event(self, job: Job, output: Output, now: float) -> Token:
        sequence, metrics = job.sequence, job.metrics
        assert output.token is not None
        metrics.n_tokens += 1
        metrics.t_first = metrics.t_first or now
        metrics.t_last = now
        n = metrics.n_tokens
        timings = None
        if job.wants_timings:
            metrics.stats = sequence.result.stats
            timings = metrics.timings()
        if job.t_max and "\n" in output.text:
            if job.saw_newline and now - metrics.t_first > job.t_max:
                job.timed_out = True
                self.engine.cancel(sequence)
            job.saw_newline = True
        return Token(output.token, output.text, n, output.drafted, output.logprob, timings)

    def _on_first_token(self, job: Job, now: float) -> None:
        """The prompt is evaluated, or the job has ended: submit the jobs that wait for it."""
        metrics = job.metrics
        metrics.t_start = metrics.t_start or now
        metrics.t_first = metrics.t_first or now
        metrics.t_last = metrics.t_last or now
        for child in job.children:
            self._admit(child)
        job.children.clear()

    def _end_event(self, job: Job, rest: str) -> End:
        sequence = job.sequence
        result = sequence.result
        job.metrics.stats = result.stats
        del self._by_sequence[sequence]
        self.jobs.discard(job)
        reason = "length" if job.timed_out and result.finish_reason == "cancelled" else result.finish_reason
        word = "" if sequence.detokenizer is None else sequence.detokenizer.stopping_word
        self._observer.on_end(job, reason)
        return End(reason, "" if job.prompt_only else rest, result.error, word, reason == "stop" and not word)

    def _send_events(self, events: dict[Job, list[Event]]) -> None:
        if events and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(_deliver, list(events.items()))
            except RuntimeError:
                self._loop = None  # it is closed

    def _fail(self, error: Exception) -> None:
        """End all jobs with an error."""
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
        self._fail_jobs(error)

    def _fail_jobs(self, error: BaseException) -> None:
        left = list(self._by_sequence)
        try:
            self.engine.drop(left)
        except Exception as e:
            _log.error("cannot end what was running: %s", e)
        jobs = set(self.jobs)  # the loop adds to it meanwhile: those go on
        events: dict[Job, list[Event]] = {job: [End("error", error=error)] for job in jobs}
        self._by_sequence.clear()
        self.jobs -= jobs
        self._n_failures = 0
        self._send_events(events)


def _shut_down() -> RuntimeError:
    return RuntimeError("the server is shutting down")


def _deliver(events: list[tuple[Job, list[Event]]]) -> None:
    for job, job_events in events:
        job.listener.on_events(job, job_events)
