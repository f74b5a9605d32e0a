"""Many prompts at once: what our engine and llama-server make of them, with the same figures from both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from .. import Eagle3Llama
from ..stats import Stats


@dataclass(frozen=True)
class Load:
    """Figures of several prompts together."""

    seconds: float
    """From the first prompt's coming in to the last token's going out, on the wall or of the processor."""
    tokens: int
    """Generated, without those that ended a text."""
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        """The time for the prompts included."""
        return self.tokens / self.seconds

    @property
    def acceptance_length(self) -> float:
        """Tokens per row that was not drafted."""
        return self.tokens / (self.tokens - self.accepted)

    def after(self, first: Load) -> Load:
        """What came after the first tokens, which took `first`."""
        return Load(self.seconds - first.seconds, self.tokens - first.tokens, self.drafted, self.accepted)


def load_own(
    llm: Eagle3Llama,
    prompts: Sequence[Sequence[int]],
    n_predict: int,
    clock: Callable[[], float] = perf_counter,
) -> Load:
    """Complete prompts greedily in our engine, n_parallel at a time; nothing of them is there before."""
    llm.reset()
    start = clock()
    results = llm.generate_batch(prompts, max_tokens=n_predict, temperature=0.0, progress=False)
    seconds = clock() - start
    stats = sum((result.stats for result in results), Stats())
    return Load(seconds, sum(len(result.tokens) for result in results), stats.drafted, stats.accepted)
