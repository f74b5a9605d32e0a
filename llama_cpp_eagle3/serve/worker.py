"""The thread that owns the model: requests come in by an inbox, what comes of each step goes out in one message."""

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
from .figures import Figures

_N_FAILURES_MAX = 3
_STOP_SECONDS = 60.0  # a pass may take long, but a device that hangs never comes back
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class Token:
    """A token came."""

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
    """More of the prompt has been read."""

    n_read: int
    """Tokens of the prompt that are there, the cached ones too."""
    seconds: float
    timings: dict[str, Any]


@dataclass(slots=True)
class End:
    """Nothing more will come. What is left of the text comes with it."""

    reason: str
    """Of the sequence: "stop", "length", "cancelled" or "error"."""
    text: str = ""
    error: BaseException | None = None
    stopping_word: str = ""
    is_eos: bool = False


Event = Token | Progress | End


class Listener(Protocol):
    """Who wants to hear of a job, in the event loop."""

    def hear(self, job: Job, events: list[Event]) -> None:
        """Something came of it."""


@dataclass(slots=True, eq=False)
class Job:
    """A sequence that somebody waits for."""

    index: int
    sequence: Sequence
    listener: Listener
    figures: Figures
    wants_timings: bool = False
    wants_progress: bool = False
    reads_only: bool = False
    """Only the prompt is to be read."""
    t_max: float = 0.0
    """Seconds after which it ends with the next line; 0 = no limit."""
    parent: Job | None = None
    """Who reads the same prompt: this one waits until that is done."""
    children: list[Job] = field(default_factory=list)
    n_progress: int = -1
    saw_line: bool = False
    ran_out: bool = False
    """Its time is over."""


@dataclass(slots=True)
class _Call:
    seq_id: int | None
    function: Callable[[], Any]
    future: Future[Any]


class Observer(Protocol):
    """Who counts."""

    def step(self, engine: Engine, n_running: int, n_waiting: int) -> None:
        """A step is over."""

    def tokens(self, job: Job, n: int, now: float, before: float) -> None:
        """n tokens came for a job at once; those before them came at `before`, 0.0 if there were none."""

    def end(self, job: Job, reason: str) -> None:
        """A job is done."""


class Worker:
    """Steps an engine for as long as there is something to do."""

    def __init__(self, engine: Engine, observer: Observer):
        self.engine = engine
        self.jobs: set[Job] = set()
        """All that are not done. Two threads change it: a copy is what can be iterated."""
        self.failure = ""
        """Why the model cannot be used any more; empty as long as it can."""
        self._observer = observer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._by_sequence: dict[Sequence, Job] = {}
        self._inbox: queue.SimpleQueue[Job | _Call | None] = queue.SimpleQueue()
        self._deferred: list[_Call] = []
        self._stopping = False
        self._has_ended = False
        """Nobody reads the inbox any more."""
        self._gate = threading.Lock()
        self._n_failures = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin. Listeners are told in this loop."""
        self._loop = loop
        self._thread.start()

    def stop(self, seconds: float = _STOP_SECONDS) -> bool:
        """End all that runs, and wait for the thread; False if it does not end, and may still use the model."""
        self._stopping = True
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join(seconds)
        else:
            self._finish()  # it was never started
        return not self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Have a job done; after the end its listener is told so."""
        with self._gate:
            if not self._has_ended:
                self.jobs.add(job)
                self._inbox.put(job)
                return
        self._tell({job: [End("error", error=_shut_down())]})

    def cancel(self, job: Job) -> None:
        """End a job with the next step, wherever it is."""
        self.engine.cancel(job.sequence)
        self._inbox.put(None)

    def call(self, function: Callable[[], T], seq_id: int | None = None) -> Future[T]:
        """Call a function between two steps; seq_id: when nobody uses this slot any more. After the end it fails."""
        future: Future[T] = Future()
        with self._gate:
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
                    self._call_deferred()  # who waited for a slot: nothing may come in any more that would wake us
                    self._take_in()
                    self._call_deferred()
                    if self.engine.has_work and not self._stopping:
                        self._step()
                except MemoryError as e:  # another try would meet the same, unless those who run give theirs back
                    _log.error("the memory does not suffice: all requests end")
                    self._end_all(e)
                except Exception as e:
                    _log.exception("the worker failed")
                    self._give_up(e)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Answer all that came in, and have what comes from now on refused."""
        with self._gate:
            self._has_ended = True
        self._give_up(_shut_down())

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
                self._give_up(e)
            return
        self._n_failures = 0
        self._hand_out(outputs, start, perf_counter())
        self._observer.step(self.engine, self.engine.n_running, self.engine.n_waiting)

    def _take_in(self) -> None:
        is_idle = not self.engine.has_work
        while True:
            try:
                item = self._inbox.get(block=is_idle)
            except queue.Empty:
                return
            is_idle = False
            if isinstance(item, Job):
                if item not in self.jobs:
                    continue  # it was given up on its way here
                if item.parent is not None and item.parent in self.jobs and not item.parent.figures.t_first:
                    item.parent.children.append(item)
                else:
                    self._admit(item)
            elif item is not None:
                self._deferred.append(item)

    def _admit(self, job: Job) -> None:
        self._by_sequence[job.sequence] = job
        self.engine.submit(job.sequence)

    def _call_deferred(self) -> None:
        waiting, self._deferred = self._deferred, []
        for call in waiting:
            if call.seq_id is not None and not self.engine.memory.slots[call.seq_id].is_free:
                self._deferred.append(call)
            elif call.future.set_running_or_notify_cancel():
                try:
                    call.future.set_result(call.function())
                except BaseException as e:
                    call.future.set_exception(e)

    def _hand_out(self, outputs: list[Output], start: float, now: float) -> None:
        events: dict[Job, list[Event]] = defaultdict(list)
        for job in self._by_sequence.values():
            self._look(job, start, now, events)
        rests: dict[Job, str] = {}
        before: dict[Job, float] = {}
        for output in outputs:
            found = self._by_sequence.get(output.sequence)
            if found is None:
                continue
            rests[found] = ""
            before.setdefault(found, found.figures.t_last)
            if output.token is None:
                rests[found] = output.text
            elif not found.reads_only:
                events[found].append(self._token(found, output, now))
        for job, rest in rests.items():
            n_tokens = sum(isinstance(event, Token) for event in events[job])
            if not before[job]:
                self._first(job, now)
            if n_tokens:
                self._observer.tokens(job, n_tokens, now, before[job])
            if job.sequence.is_done:
                events[job].append(self._end(job, rest))
        self._tell(events)

    def _look(self, job: Job, start: float, now: float, events: dict[Job, list[Event]]) -> None:
        """How far it is with its prompt."""
        sequence, figures = job.sequence, job.figures
        if sequence.seq_id >= 0:
            figures.id_slot = sequence.seq_id
        if figures.t_first or sequence.n_cached < 0:
            return
        if not figures.t_start:
            figures.t_start, figures.n_cached = start, min(sequence.n_cached, figures.n_prompt)
            if job.wants_progress:
                events[job].append(Progress(figures.n_cached, 0.0, figures.timings()))
        n_past = min(sequence.n_past, figures.n_prompt)
        figures.n_read = max(0, n_past - figures.n_cached)
        if job.wants_progress and job.n_progress < n_past:
            job.n_progress = n_past
            timings = figures.timings() | {"prompt_ms": 1e3 * (now - figures.t_start)}
            events[job].append(Progress(n_past, now - figures.t_start, timings))

    def _token(self, job: Job, output: Output, now: float) -> Token:
        sequence, figures = job.sequence, job.figures
        assert output.token is not None
        figures.n_tokens += 1
        figures.t_first = figures.t_first or now
        figures.t_last = now
        n = figures.n_tokens
        logprob = sequence.logprobs[n - 1] if sequence.n_logprobs is not None else None
        timings = None
        if job.wants_timings:
            figures.stats = sequence.stats
            timings = figures.timings()
        if job.t_max and "\n" in output.text:
            if job.saw_line and now - figures.t_first > job.t_max:
                job.ran_out = True
                self.engine.cancel(sequence)
            job.saw_line = True
        return Token(output.token, output.text, n, output.drafted, logprob, timings)

    def _first(self, job: Job, now: float) -> None:
        """Its prompt has been read, or will never be."""
        figures = job.figures
        figures.t_start = figures.t_start or now
        figures.t_first = figures.t_first or now
        figures.t_last = figures.t_last or now
        for child in job.children:
            self._admit(child)
        job.children.clear()

    def _end(self, job: Job, rest: str) -> End:
        sequence = job.sequence
        job.figures.stats = sequence.stats
        del self._by_sequence[sequence]
        self.jobs.discard(job)
        reason = "length" if job.ran_out and sequence.finish_reason == "cancelled" else sequence.finish_reason
        word = "" if sequence.detokenizer is None else sequence.detokenizer.stopping_word
        self._observer.end(job, reason)
        return End(reason, "" if job.reads_only else rest, sequence.error, word, reason == "stop" and not word)

    def _tell(self, events: dict[Job, list[Event]]) -> None:
        if events and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(_hear, list(events.items()))
            except RuntimeError:
                self._loop = None  # it is closed

    def _give_up(self, error: Exception) -> None:
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
        self._end_all(error)

    def _end_all(self, error: BaseException) -> None:
        left = list(self._by_sequence)
        try:
            self.engine.drop(left)
        except Exception as e:
            _log.error("cannot end what was running: %s", e)
        jobs = set(self.jobs)  # the loop adds to it meanwhile: those have not been told
        events: dict[Job, list[Event]] = {job: [End("error", error=error)] for job in jobs}
        self._by_sequence.clear()
        self.jobs -= jobs
        self._n_failures = 0
        self._tell(events)


def _shut_down() -> RuntimeError:
    return RuntimeError("the server is shutting down")


def _hear(events: list[tuple[Job, list[Event]]]) -> None:
    for job, told in events:
        job.listener.hear(job, told)
