"""From a loaded pair to its planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core import CostCurve, Planner
from .cache import load_costs, save_costs
from .costs import Costs, costs_key
from .timing import measure

if TYPE_CHECKING:
    from ..context import DraftedContext


def costs_of(llm: DraftedContext, seconds: float = 2.0) -> Costs:
    """The costs of a loaded pair: from the cache folder, else measured within `seconds` and kept there.

    Raises:
        Eagle3Error: they must be measured, and the context is not empty.
    """
    key = costs_key(llm)
    costs = load_costs(key)
    if costs is None:
        costs = measure(llm, seconds)
        save_costs(key, costs)
    return costs


def make_planner(llm: DraftedContext, costs: Costs, **options: Any) -> Planner:
    """A planner for a loaded pair, or one that never drafts if there is no head; `options` are those of `Planner`."""
    drafter = llm.drafter if costs.draft_begin else None
    nothing = {1: 1.0}
    options.setdefault("replays", llm._rollback.kind == "checkpoint")
    return Planner(
        drafter,
        CostCurve(costs.target),
        draft_begin=CostCurve(costs.draft_begin or nothing),
        draft_step=CostCurve(costs.draft_step or nothing),
        **options,
    )
