"""The sequences of one request: their events as they come, and the answers that they make."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from ..engine import DraftSettings, Sampling, TokenLogprob
from ..errors import ContextFullError
from .engine_thread import End, EngineThread, Event, Job, Token
from .errors import ApiError, failed, invalid, out_of_memory, too_long
from .request_metrics import RequestMetrics
from .schema import Completion

_LONG = 1e6  # seconds


@dataclass(slots=True)
class Answer:
    """The output of one sequence so far."""

    index: int
    prompt: list[int]
    completion: Completion
    sampling: Sampling
    draft: DraftSettings
    metrics: RequestMetrics
    n_ctx: int
    prompt_logprobs: list[TokenLogprob] | None = None
    """Of the prompt's tokens from the second one on, if they were asked for; they are there with the first event."""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    probs: list[tuple[str, TokenLogprob]] = field(default_factory=list)
    """Text and probabilities of each token."""
    end: End | None = None

    def add(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, Token):
            self.text += event.text
            self.tokens.append(event.token)
            if event.logprob is not None:
                self.probs.append((event.text, event.logprob))
        elif isinstance(event, End):
            self.text += event.text
            self.end = event

    @property
    def stop_type(self) -> str:
        """llama-server's word for why it ended."""
        if self.end is None or self.end.reason not in ("stop", "length"):
            return "none"
        if self.end.reason == "length":
            return "limit"
        return "eos" if self.end.is_eos else "word"

    @property
    def finish_reason(self) -> str:
        """OpenAI's word."""
        return "stop" if self.end is not None and self.end.reason == "stop" else "length"

    @property
    def truncated(self) -> bool:
        """Whether the context is full, or was and lost tokens."""
        n_tokens = len(self.prompt) + self.metrics.n_tokens
        return n_tokens > self.n_ctx or (n_tokens == self.n_ctx and self.stop_type == "limit")


class Generation:
    """The sequences of one request. They are cancelled when the client has gone."""

    def __init__(self, engine_thread: EngineThread, id: str, model: str):
        self.engine_thread = engine_thread
        self.id, self.model = id, model
        self.created = int(time.time())
        self.answers: list[Answer] = []
        self.n_per_prompt = 1
        self.jobs: list[Job] = []
        self._batch: list[tuple[Answer, Event]] = []
        self._wake = asyncio.Event()
        self.on_end: Callable[[Generation], None] | None = None
        """Called when all have ended and none was an error."""

    def start(self) -> None:
        """Submit the jobs to the engine thread."""
        for job in self.jobs:
            self.engine_thread.submit(job)

    def on_events(self, job: Job, events: list[Event]) -> None:
        """Add events to their answer, and wake `batches`. Called in the event loop."""
        answer = self.answers[job.index]
        for event in events:
            answer.add(event)
            self._batch.append((answer, event))
        self._wake.set()

    async def batches(self, idle_seconds: float = _LONG) -> AsyncGenerator[list[tuple[Answer, Event]], None]:
        """Events in batches: all of one step of the engine together.

        Args:
            idle_seconds: silence after which an empty batch comes.

        Raises:
            ApiError: a sequence ended with an error.
        """
        n_left = len(self.answers)
        try:
            while n_left:
                # a timer and not a timeout, which would make a task of every wait
                timer = asyncio.get_running_loop().call_later(idle_seconds, self._wake.set)
                try:
                    await self._wake.wait()
                finally:
                    timer.cancel()
                self._wake.clear()
                batch, self._batch = self._batch, []
                for answer, event in batch:
                    if isinstance(event, End):
                        n_left -= 1
                        if event.reason == "error":
                            raise _error_of(event.error, answer)
                yield batch
            if self.on_end is not None:
                self.on_end(self)
        finally:
            if n_left:
                self.cancel()

    async def run(self) -> list[Answer]:
        """Wait until all sequences have ended."""
        async for _ in self.batches():
            pass
        return self.answers

    def cancel(self) -> None:
        """Cancel all sequences that run."""
        for job in self.jobs:
            if self.answers[job.index].end is None:
                self.engine_thread.cancel(job)

    @property
    def prompt_metrics(self) -> list[RequestMetrics]:
        """The figures of one sequence of each prompt."""
        return [answer.metrics for answer in self.answers[:: self.n_per_prompt]]

    @property
    def metrics(self) -> list[RequestMetrics]:
        """Figures of all sequences together."""
        return [answer.metrics for answer in self.answers]

    def log_fields(self) -> dict[str, Any]:
        """For the access log."""
        metrics = self.metrics
        return {
            "n_prompt": sum(f.n_prompt for f in self.prompt_metrics),
            "n_cached": sum(f.n_cached for f in self.prompt_metrics),
            "cached_in": ",".join(sorted({f.cached_in for f in self.prompt_metrics} - {""})),
            "n_evaluated": sum(f.stats.prompt_tokens for f in metrics),
            "n_tokens": sum(f.n_tokens for f in metrics),
            "n_drafted": sum(f.stats.drafted for f in metrics),
            "n_accepted": sum(f.stats.accepted for f in metrics),
            "ttft_ms": round(1e3 * min((f.t_first - f.t_submit for f in metrics if f.t_first), default=0.0), 1),
            "finish": ",".join(sorted({answer.end.reason if answer.end else "left" for answer in self.answers})),
        }


def _error_of(error: BaseException | None, answer: Answer) -> ApiError:
    if isinstance(error, ContextFullError):
        return too_long(len(answer.prompt), answer.n_ctx)
    if isinstance(error, ValueError):  # a grammar that is too ambiguous
        return invalid(str(error))
    if isinstance(error, MemoryError):
        return out_of_memory()
    return failed(str(error))
