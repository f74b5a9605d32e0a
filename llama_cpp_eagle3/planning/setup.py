"""From a loaded pair to its planner."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .._core import CostCurve, Planner
from .cache import load_costs, save_costs
from .costs import GGML_TYPE_NARROW, Costs, costs_key
from .timing import measure, measure_draft

if TYPE_CHECKING:
    from ..context import DraftedContext

# A converted head must be expected to bring this much: it is believed to lose up to 1 % of the mean acceptance length
# (docs/checkpoints.md, Types), and times are not exact.
_GAIN_MIN = 1.02
_ACCEPTANCE = 0.7  # per position, to compare heads before any text is known
_N_MAX = 8
_N_BYTES_MIN = 16 << 20  # of smaller heads it is not the reading that takes time
_NARROW_SHARE = 0.2


def costs_of(llm: DraftedContext, seconds: float = 2.0) -> Costs:
    """The costs of a loaded pair: from the cache folder, else measured within `seconds` and kept there.

    Leaves the head loaded in the type that they are of.

    Raises:
        Eagle3Error: they must be measured, and the context is not empty.
    """
    key = costs_key(llm)
    costs = load_costs(key)
    if costs is None:
        costs = measure_types(llm, seconds)
        save_costs(key, costs)
    elif costs.draft_type != llm.draft_type and llm.n_tokens == 0:
        llm.convert_draft(costs.draft_type)
    return costs


def measure_types(llm: DraftedContext, seconds: float = 2.0) -> Costs:
    """Measure a loaded pair, also with its head in Q4_0 if no type was asked for; the better one stays loaded.

    Raises:
        Eagle3Error: the context is not empty.
    """
    drafter = llm.drafter
    if drafter is None or llm._draft_options.type is not None or drafter.n_bytes_own < _N_BYTES_MIN:
        return measure(llm, seconds)
    llm.convert_draft(None)
    as_is = measure(llm, (1.0 - _NARROW_SHARE) * seconds)
    n_bytes = drafter.n_bytes_own
    llm.convert_draft(GGML_TYPE_NARROW)
    assert llm.drafter is not None
    if llm.drafter.n_bytes_own < n_bytes:
        begin, step = measure_draft(llm, _NARROW_SHARE * seconds)
        narrow = Costs(as_is.target, begin, step, GGML_TYPE_NARROW)
        gain = _best_speed(narrow) / _best_speed(as_is)
        if llm.verbose:
            print(f"Eagle3Llama: with the head's matrices in Q4_0: {gain:.2f} times as fast", file=sys.stderr)
        if gain >= _GAIN_MIN:
            return narrow
    llm.convert_draft(None)
    return as_is


def _best_speed(costs: Costs) -> float:
    """Tokens per microsecond with the best length of a chain, at a usual acceptance."""
    target, begin, step = CostCurve(costs.target), CostCurve(costs.draft_begin), CostCurve(costs.draft_step)
    speeds = [1.0 / target.at(1)]
    for n in range(1, _N_MAX + 1):
        n_tokens = sum(_ACCEPTANCE**k for k in range(n + 1))
        n_waiting = max(1, round(n_tokens))
        speeds.append(n_tokens / (target.at(n + 1) + begin.at(n_waiting) + (n - 1) * step.at(1)))
    return max(speeds)


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
