"""The speed of chains at given costs, if a drafted token is accepted with a given probability."""

from __future__ import annotations

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
    """Tokens per microsecond."""


def best_chain(costs: Costs, draft: DraftCosts, acceptance: float, is_parallel: bool = False) -> BestChain:
    """Find the fastest chain if each drafted token is accepted with this probability, given that those before it were.

    draft: the drafter's costs. is_parallel: whether it drafts in parallel. Sampling and Python's time are not counted.
    """
    target = CostCurve(costs.target)
    plain = 1.0 / target.at(1)
    best = BestChain(0, 1.0, plain)
    for n in range(1, _N_MAX + 1):
        n_tokens = sum(acceptance**k for k in range(n + 1))
        n_waiting = max(1, round(n_tokens))
        speed = n_tokens / (target.at(n + 1) + draft.draft_us(n_waiting, n, is_parallel))
        if speed > best.speed:
            best = BestChain(n, speed / plain, speed)
    return best
