"""The speed of chains at given costs, if a drafted token is accepted with a given probability."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..._core import CostCurve
from .costs import Costs, DraftCosts

_N_MAX = 8


@dataclass(frozen=True, slots=True)
class BestChain:
    """The best length of a chain at one acceptance."""

    n_draft: int
    """0: nothing pays."""
    speedup: float
    """Speed relative to no drafts; 1.0 if nothing pays."""
    speed: float
    """Tokens in a unit of the times that were given: of `best_chain`, in a microsecond."""


def best_chain(costs: Costs, draft: DraftCosts, acceptance: float, is_parallel: bool = False) -> BestChain:
    """Find the fastest chain if each drafted token is accepted with this probability, given that those before it were.

    draft: the drafter's costs. is_parallel: whether it drafts in parallel. Sampling and Python's time are not counted.
    """
    target = CostCurve(costs.target)

    def step(n: int, n_tokens: float) -> float:
        return target.at(n + 1) + draft.draft_us(max(1, round(n_tokens)), n, is_parallel)

    return best_length(acceptance, target.at(1), step)


def best_length(acceptance: float, plain_step: float, step: Callable[[int, float], float]) -> BestChain:
    """Find the fastest chain by the time of a step.

    plain_step: time of a step without a draft. step: time of one that drafts n tokens, and gives so many in the mean.
    """
    plain = 1.0 / plain_step
    best = BestChain(0, 1.0, plain)
    for n in range(1, _N_MAX + 1):
        n_tokens = sum(acceptance**k for k in range(n + 1))
        speed = n_tokens / step(n, n_tokens)
        if speed > best.speed:
            best = BestChain(n, speed / plain, speed)
    return best
