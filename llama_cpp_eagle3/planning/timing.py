"""Measure what passes cost: on an empty context, the most useful numbers of rows first, for a limited time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from ..errors import Eagle3Error
from .costs import Costs

if TYPE_CHECKING:
    from ..context import DraftedContext

N_ROWS = (1, 4, 2, 3, 8, 5, 6, 16, 12, 32, 24)
"""Rows of a target pass, in the order in which they are measured."""
_N_NEEDED = 2  # of these, whatever they take: without a second value nothing could ever seem to pay
_N_WAITING = (1, 2, 4, 8, 16)
_N_NODES = (1, 2, 4, 8)
_N_TIMES = 5


def measure(llm: DraftedContext, seconds: float = 2.0) -> Costs:
    """Measure a loaded pair within `seconds`, apart from the first pass, which reads the weights from disk.

    Of every number of rows the fastest of a few passes counts: whatever else the machine does only adds to it. The
    context is empty before and after.

    Raises:
        Eagle3Error: the context is not empty.
    """
    if llm.n_tokens > 0:
        raise Eagle3Error(
            f"costs are measured on an empty context, this one holds {llm.n_tokens} tokens: reset() it, or run "
            "`llama-cpp-eagle3 calibrate` once, which keeps them"
        )
    try:
        return _measure(llm, seconds)
    finally:
        llm._reset()


def _measure(llm: DraftedContext, seconds: float) -> Costs:
    target, drafter, tap = llm.target, llm.drafter, llm.tap
    # not all the same: a mixture of experts reads more for tokens that differ
    tokens = np.random.default_rng(0).integers(0, llm.n_vocab(), max(N_ROWS)).tolist()
    n_max = min(llm.n_batch, llm.n_ctx() - 1)

    def verify(n: int) -> float:
        start = perf_counter()
        target.decode(tokens[:n], 0)
        return perf_counter() - start

    verify(1)
    end = perf_counter() + seconds
    begin: dict[int, float] = {}
    step: dict[int, float] = {}
    if drafter is not None and tap is not None:

        def catch_up(n: int) -> float:
            drafter.reset(0)
            drafter.process(tap, tokens[:n], 0, rows=[0] * n)  # what the row holds does not matter
            start = perf_counter()
            drafter.begin([0], [tokens[0]], max(_N_NODES))
            return perf_counter() - start

        def expand(n: int) -> float:
            catch_up(1)
            start = perf_counter()
            drafter.expand(list(range(n)), max(_N_NODES))
            return perf_counter() - start

        catch_up(1)
        n_nodes = min(max(_N_NODES), len(drafter.nodes))
        draft_end = perf_counter() + 0.25 * seconds
        step = _fastest(expand, [n for n in _N_NODES if n <= n_nodes], 1, draft_end)
        begin = _fastest(catch_up, [n for n in _N_WAITING if n <= n_max], 1, draft_end)
        drafter.reset(0)
    return Costs(_fastest(verify, [n for n in N_ROWS if n <= n_max], _N_NEEDED, end), begin, step)


def _fastest(run: Callable[[int], float], sizes: Iterable[int], n_needed: int, end: float) -> dict[int, float]:
    """Microseconds of every size, in rounds through them, for as long as the next run is likely done in time."""
    times: dict[int, float] = {}
    for i in range(_N_TIMES):
        for k, n in enumerate(sizes):
            needed = i == 0 and k < n_needed
            expected = times.get(n) or max((t * max(1.0, n / m) for m, t in times.items()), default=0.0)
            for _ in range(2):  # the second time in a row llama.cpp has its graph already
                if needed or perf_counter() + expected < end:
                    times[n] = min(run(n), times.get(n, float("inf")))
                    expected, needed = times[n], False
    return {n: 1e6 * t for n, t in sorted(times.items())}
