"""The answer of one sequence: its request, its tokens so far, and its figures.

Figures have llama-server's names (`timings`), OpenAI's (`usage`) and vLLM's (`metrics.speculative_decoding`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from ..chat import Loosened
from ..engine.sequence import Output, Sequence
from .fields import Completion


@dataclass(slots=True)
class Progress:
    """A chunk of the prompt was evaluated."""

    n_prefilled: int
    """Tokens of the prompt that are evaluated, the cached ones included."""
    seconds: float


Event = Output | Progress
Came = tuple["Answer", Event, dict[str, Any] | None]
"""An event of a sequence, with the `timings` of that moment if the request asks for them."""


@dataclass(slots=True, eq=False)
class Answer:
    """A sequence of a request. The engine's thread counts its tokens, the event loop collects its text.

    Times are seconds of `time.perf_counter`, 0.0 as long as they are not known.
    """

    index: int
    sequence: Sequence
    completion: Completion
    """What the request asks for."""
    n_ctx: int
    loosened: tuple[Loosened, ...] = ()
    """Keywords of JSON schemas that its grammar does not enforce."""
    receive: Callable[[Came], None] = lambda came: None
    """Called in the event loop with each event."""

    # counted in the engine's thread
    n_cached: int = 0
    """Tokens of the prompt that the prefix cache had."""
    cached_in: str = ""
    """Where these were, as `llm.prefix_stats` calls it."""
    n_prefilled: int = 0
    n_tokens: int = 0
    """Number of generated tokens, including the one that ended the text."""
    id_slot: int = -1
    t_submit: float = field(default_factory=perf_counter)
    t_start: float = 0.0
    """When the first pass began in which it had a slot."""
    t_first: float = 0.0
    t_last: float = 0.0
    is_late: bool = False
    """Whether it has generated for longer than the request allows: then it ends as if by its length."""
    _has_newline: bool = False
    _n_told: int = -1

    # added in the event loop
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    """What came: each token, and the end."""
    end: Output | None = None

    # in the engine's thread

    def see_prompt(self, start: float, now: float) -> list[Came]:
        """Note how much of the prompt a step from start to now evaluated; returns the events that clients want."""
        sequence = self.sequence
        if sequence.n_cached < 0:
            return []
        self.id_slot = sequence.seq_id if sequence.seq_id >= 0 else self.id_slot
        came: list[Came] = []
        wants_progress = self.completion.return_progress and self.completion.stream
        if not self.t_start:
            self.t_start, self.n_cached = start, min(sequence.n_cached, self.n_prompt)
            self.cached_in = sequence.cached_in
            if wants_progress:
                came.append(self._progress(self.n_cached, start))
        n_past = min(sequence.n_past, self.n_prompt)
        self.n_prefilled = max(0, n_past - self.n_cached)
        if wants_progress and self._n_told < n_past:
            self._n_told = n_past
            came.append(self._progress(n_past, now))
        return came

    def _progress(self, n_prefilled: int, now: float) -> Came:
        seconds = now - self.t_start
        timings = self.timings() | {"prompt_ms": 1e3 * seconds} if self.completion.timings_per_token else None
        return self, Progress(n_prefilled, seconds), timings

    def count(self, output: Output, now: float) -> Came:
        """Count an output."""
        if output.token is not None and self.completion.n_predict == 0:  # the request asks only for the prompt
            output.token, output.text, output.logprob = None, "", None
        if self.sequence.seq_id >= 0:
            self.id_slot = self.sequence.seq_id
        self.t_start = self.t_start or now
        self.t_first = self.t_first or now
        if output.token is None:
            self.t_last = self.t_last or now
            if self.is_late and output.finish_reason == "cancelled":
                output.finish_reason = "length"
            return self, output, None
        self.n_tokens += 1
        self.t_last = now
        if self.completion.t_max_predict_ms > 0 and "\n" in output.text:
            if self._has_newline and 1e3 * (now - self.t_first) > self.completion.t_max_predict_ms:
                self.is_late = True
            self._has_newline = True
        return self, output, self.timings() if self.completion.timings_per_token else None

    # in the event loop

    def add(self, event: Event) -> None:
        """Add an event's text and probabilities."""
        if isinstance(event, Progress):
            return
        self.text += event.text
        self.outputs.append(event)
        if event.token is not None:
            self.tokens.append(event.token)
        if event.finish_reason:
            self.end = event

    @property
    def prompt(self) -> list[int]:
        """Tokens of the prompt."""
        return list(self.sequence.request.tokens)

    @property
    def n_prompt(self) -> int:
        """The number of them."""
        return len(self.sequence.request.tokens)

    @property
    def stopping_word(self) -> str:
        """The stop string that ended the text; empty if none did."""
        detokenizer = self.sequence.detokenizer
        return "" if detokenizer is None else detokenizer.stopping_word

    @property
    def stop_type(self) -> str:
        """llama-server's word for why it ended."""
        if self.end is None or self.end.finish_reason not in ("stop", "length"):
            return "none"
        if self.end.finish_reason == "length":
            return "limit"
        return "word" if self.stopping_word else "eos"

    @property
    def finish_reason(self) -> str:
        """OpenAI's word."""
        return "stop" if self.end is not None and self.end.finish_reason == "stop" else "length"

    @property
    def truncated(self) -> bool:
        """Whether the context is full, or was and lost tokens."""
        n_tokens = self.n_prompt + self.n_tokens
        return n_tokens > self.n_ctx or (n_tokens == self.n_ctx and self.stop_type == "limit")

    def n_tokens_of(self, n_characters: int) -> int:
        """How many of its tokens the first characters of its text have."""
        n_tokens = n_before = 0
        for output in self.outputs:
            if n_before >= n_characters:
                break
            n_tokens += output.token is not None
            n_before += len(output.text)
        return n_tokens

    # figures

    @property
    def prompt_seconds(self) -> float:
        """Seconds from the first pass to the first token."""
        return self.t_first - self.t_start if self.t_first else 0.0

    def timings(self) -> dict[str, Any]:
        """Figures under llama-server's names. The first token comes with the prompt; rates are over those after it."""
        n_prefilled = self.n_prompt - self.n_cached if self.t_first else self.n_prefilled
        prompt_ms = 1e3 * self.prompt_seconds
        predicted_ms = max(1e-3, 1e3 * (self.t_last - self.t_first)) if self.t_first else 0.0
        n_steps = max(0, self.n_tokens - 1)
        timings: dict[str, Any] = {
            "cache_n": self.n_cached,
            "prompt_n": n_prefilled,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / n_prefilled if n_prefilled else 0.0,
            "prompt_per_second": 1e3 / prompt_ms * n_prefilled if prompt_ms > 0.0 else 0.0,
            "predicted_n": self.n_tokens,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": predicted_ms / n_steps if n_steps else 0.0,
            "predicted_per_second": 1e3 / predicted_ms * n_steps if predicted_ms > 0.0 else 0.0,
        }
        stats = self.sequence.result.stats
        if stats.drafted:
            timings |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
        if "ngram" in stats.by_source:
            ngram = stats.of("ngram")
            timings |= {"draft_ngram_n": ngram.drafted, "draft_ngram_n_accepted": ngram.accepted}
        return timings

    def figures(self) -> dict[str, Any]:
        """The fields `timings` and `metrics`, which all APIs have at the end."""
        metrics: dict[str, Any] = {"speculative_decoding": self._speculative_decoding()}
        if self.loosened:
            metrics["loosened"] = [asdict(item) for item in self.loosened]
        return {"timings": self.timings(), "metrics": metrics}

    def _speculative_decoding(self) -> dict[str, Any]:
        """Figures under vLLM's names. vLLM's mean is over the steps that had a draft; ours is over all steps."""
        stats = self.sequence.result.stats
        counts = [stats.drafts, *stats.accepted_per_position, 0]
        histogram = [counts[i] - counts[i + 1] for i in range(len(counts) - 1)]
        while len(histogram) > 1 and histogram[-1] == 0:
            histogram.pop()
        return {
            "mean_acceptance_length": 1.0 + stats.accepted / stats.drafts if stats.drafts else 1.0,
            "mean_acceptance_length_all_steps": stats.mean_acceptance_length,
            "draft_acceptance_rate": stats.draft_acceptance_rate,
            "acceptance_histogram": histogram,
            "num_steps": stats.steps,
            "num_spec_steps": stats.drafts,
            "num_accepted_draft_tokens": stats.accepted,
            "num_draft_tokens": stats.drafted,
            "num_spec_tokens": self.sequence.draft.depth,
            "by_source": {
                name: {"num_draft_tokens": counts.drafted, "num_accepted_draft_tokens": counts.accepted}
                for name, counts in stats.by_source.items()
            },
        }
