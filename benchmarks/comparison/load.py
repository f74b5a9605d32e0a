"""Run many prompts at once in our engine and in llama-server, with the same figures from both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine.stats import Stats


@dataclass(frozen=True)
class Load:
    """Figures of several prompts together."""

    seconds: float
    """Seconds from the first prompt's arrival to the last token, of wall-clock or processor time."""
    tokens: int
    """Generated tokens."""
    seconds_decoding: float
    """Seconds in which all sequences generated: all prompts were read, and no sequence had ended."""
    tokens_decoding: int
    """Tokens that were generated in these seconds."""
    drafted: int = 0
    accepted: int = 0

    @staticmethod
    def of(start: float, times: Sequence[Sequence[float]], drafted: int, accepted: int) -> Load:
        """Make figures from the times at which each prompt's tokens came; all prompts arrived at `start`."""
        begin, end = max(t[0] for t in times), min(t[-1] for t in times)
        n_decoding = sum(begin < x <= end for t in times for x in t)
        seconds = max(t[-1] for t in times) - start
        return Load(seconds, sum(map(len, times)), max(0.0, end - begin), n_decoding, drafted, accepted)

    def __add__(self, other: Load) -> Load:
        return Load(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, the time for the prompts included."""
        return self.tokens / self.seconds

    @property
    def tokens_per_second_decoding(self) -> float:
        """Tokens per second while all sequences generated; nan if they never did."""
        return self.tokens_decoding / self.seconds_decoding if self.seconds_decoding else math.nan

    @property
    def acceptance_length(self) -> float:
        """Mean acceptance length: generated tokens per row that was not drafted."""
        return self.tokens / (self.tokens - self.accepted)


def groups(prompts: Sequence[Sequence[int]], n_parallel: int) -> list[Sequence[Sequence[int]]]:
    """Divide the prompts into groups that arrive together."""
    return [prompts[i : i + n_parallel] for i in range(0, len(prompts), n_parallel)]


def load_own(
    llm: Eagle3Llama,
    prompts: Sequence[Sequence[int]],
    n_predict: int,
    clock: Callable[[], float] = perf_counter,
) -> Load:
    """Continue prompts greedily in our engine, one group after the other, each by exactly n_predict tokens."""
    return sum((_group(llm, g, n_predict, clock) for g in groups(prompts, llm.n_parallel)), Load(0.0, 0, 0.0, 0))


def _group(llm: Eagle3Llama, prompts: Sequence[Sequence[int]], n_predict: int, clock: Callable[[], float]) -> Load:
    llm.reset()
    times: list[list[float]] = [[] for _ in prompts]
    start = clock()
    stream = llm.generate_batch(
        prompts, max_tokens=n_predict, temperature=0.0, ignore_eos=True, progress=False, stream=True
    )
    while True:
        try:
            i, token, _ = next(stream)
        except StopIteration as e:
            stats = sum((result.stats for result in e.value), Stats())
            return Load.of(start, times, stats.drafted, stats.accepted)
        if token is not None:
            times[i].append(clock())
