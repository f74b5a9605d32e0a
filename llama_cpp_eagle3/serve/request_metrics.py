"""The figures of a request: llama-server's `timings`, OpenAI's `usage`, vLLM's `metrics.speculative_decoding`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..chat import Loosened
from ..engine.stats import Stats


@dataclass(slots=True)
class RequestMetrics:
    """The times of one sequence, in seconds of `time.perf_counter`, 0.0 as long as they are not known."""

    n_prompt: int
    t_submit: float
    n_cached: int = 0
    """Tokens of the prompt that the prefix cache had."""
    cached_in: str = ""
    """Where these were, as `llm.prefix_stats` calls it."""
    n_prefilled: int = 0
    n_tokens: int = 0
    """Generated, with the one that ended the text."""
    t_start: float = 0.0
    """When the first pass began in which it had a slot."""
    t_first: float = 0.0
    t_last: float = 0.0
    id_slot: int = -1
    stats: Stats = field(default_factory=Stats)
    loosened: tuple[Loosened, ...] = ()
    """What its grammar does not keep of JSON schemas."""

    @property
    def prompt_seconds(self) -> float:
        """Seconds from the first pass to the first token."""
        return self.t_first - self.t_start if self.t_first else 0.0

    @property
    def predicted_seconds(self) -> float:
        """Seconds from the first token to the last one."""
        return self.t_last - self.t_first if self.t_first else 0.0

    def timings(self) -> dict[str, Any]:
        """Under llama-server's names. The first token comes with the prompt: rates are over those after it."""
        n_prefilled = self.n_prompt - self.n_cached if self.t_first else self.n_prefilled
        prompt_ms = 1e3 * self.prompt_seconds
        predicted_ms = max(1e-3, 1e3 * self.predicted_seconds) if self.t_first else 0.0
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
        if self.stats.drafted:
            timings |= {"draft_n": self.stats.drafted, "draft_n_accepted": self.stats.accepted}
        if "ngram" in self.stats.by_source:
            ngram = self.stats.of("ngram")
            timings |= {"draft_ngram_n": ngram.drafted, "draft_ngram_n_accepted": ngram.accepted}
        return timings

    def as_metrics(self, n_max: int) -> dict[str, Any]:
        """The `metrics` of an answer; n_max: as for `speculative_decoding`."""
        loosened = [asdict(item) for item in self.loosened]
        return {
            "speculative_decoding": self.speculative_decoding(n_max),
            **({"loosened": loosened} if loosened else {}),
        }

    def speculative_decoding(self, n_max: int) -> dict[str, Any]:
        """Under vLLM's names, whose mean is over the steps that had a draft; ours is over all steps.

        n_max: drafted tokens that could follow each other.
        """
        stats = self.stats
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
            "num_spec_tokens": n_max,
            "by_source": {
                name: {"num_draft_tokens": counts.drafted, "num_accepted_draft_tokens": counts.accepted}
                for name, counts in stats.by_source.items()
            },
        }


def usage(prompts: list[RequestMetrics], sequences: list[RequestMetrics]) -> dict[str, Any]:
    """OpenAI's token counts. prompts: one of each prompt's sequences."""
    n_prompt = sum(prompt.n_prompt for prompt in prompts)
    n_tokens = sum(sequence.n_tokens for sequence in sequences)
    return {
        "completion_tokens": n_tokens,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(prompt.n_cached for prompt in prompts)},
    }
