"""One request's sequences on their way: what came of each, as it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from ..engine import DraftSettings, Sampling, TokenLogprob
from ..errors import ContextFullError
from .errors import ApiError, failed, invalid, out_of_memory, too_long
from .figures import Figures
from .schema import Completion
from .worker import End, Event, Job, Token, Worker

_LONG = 1e6  # seconds


@dataclass(slots=True)
class Answer:
    """What has come of one sequence."""

    index: int
    prompt: list[int]
    completion: Completion
    sampling: Sampling
    draft: DraftSettings
    figures: Figures
    n_ctx: int
    prompt_logprobs: list[TokenLogprob] | None = None
    """Of the prompt's tokens from the second one on, if they were asked for; they are there with the first event."""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    probs: list[tuple[str, TokenLogprob]] = field(default_factory=list)
    """Text and probabilities of each token."""
    end: End | None = None

    def take(self, event: Event) -> None:
        """Something came."""
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
        n_tokens = len(self.prompt) + self.figures.n_tokens
        return n_tokens > self.n_ctx or (n_tokens == self.n_ctx and self.stop_type == "limit")


class Generation:
    """The sequences of one request. It ends them when it is left."""

    def __init__(self, worker: Worker, id: str, model: str):
        self.worker = worker
        self.id, self.model = id, model
        self.created = int(time.time())
        self.answers: list[Answer] = []
        self.n_per_prompt = 1
        self.jobs: list[Job] = []
        self._heard: list[tuple[Answer, Event]] = []
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Have the jobs done."""
        for job in self.jobs:
            self.worker.submit(job)

    def hear(self, job: Job, events: list[Event]) -> None:
        """From the worker, in the event loop."""
        answer = self.answers[job.index]
        self._heard += [(answer, event) for event in events]
        self._wake.set()

    async def batches(self, idle_seconds: float = _LONG) -> AsyncGenerator[list[tuple[Answer, Event]], None]:
        """What came, all that came at once together; answers have taken it in.

        Args:
            idle_seconds: silence after which nothing is told to have come.

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
                heard, self._heard = self._heard, []
                for answer, event in heard:
                    answer.take(event)
                    if isinstance(event, End):
                        n_left -= 1
                        if event.reason == "error":
                            raise _error_of(event.error, answer)
                yield heard
        finally:
            if n_left:
                self.cancel()

    async def run(self) -> list[Answer]:
        """Wait for all."""
        async for _ in self.batches():
            pass
        return self.answers

    def cancel(self) -> None:
        """End all that runs."""
        for job in self.jobs:
            if self.answers[job.index].end is None:
                self.worker.cancel(job)

    @property
    def prompt_figures(self) -> list[Figures]:
        """One of each prompt."""
        return [answer.figures for answer in self.answers[:: self.n_per_prompt]]

    @property
    def figures(self) -> list[Figures]:
        """Of all."""
        return [answer.figures for answer in self.answers]

    def log_fields(self) -> dict[str, Any]:
        """For the access log."""
        figures = self.figures
        return {
            "n_prompt": sum(f.n_prompt for f in self.prompt_figures),
            "n_cached": sum(f.n_cached for f in self.prompt_figures),
            "n_tokens": sum(f.n_tokens for f in figures),
            "n_drafted": sum(f.stats.drafted for f in figures),
            "n_accepted": sum(f.stats.accepted for f in figures),
            "ttft_ms": round(1e3 * min((f.t_first - f.t_submit for f in figures if f.t_first), default=0.0), 1),
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
