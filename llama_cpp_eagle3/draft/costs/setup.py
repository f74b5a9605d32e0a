"""Lets the policy of a loaded pair learn its costs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import zip_longest
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ..._core import Eagle3Drafter, Policy
from .best_chain import best_chain
from .cache import load_costs, load_part, save_costs
from .contention import Contention
from .costs import GGML_TYPE_NARROW, Costs, Experts
from .priors import Priors, keep_priors, load_priors
from .timing import Limit, is_idle, measure, measure_draft

if TYPE_CHECKING:
    from ...engine import Engine

# The speed-up that a converted head must be expected to bring: it may lose up to 1 % of the mean acceptance length
# (docs/checkpoints.md, Types), and times are not exact.
_GAIN_MIN = 1.02
_ACCEPTANCE = 0.7  # per position, to compare heads before any text is known
_N_BYTES_MIN = 16 << 20  # smaller heads are not limited by reading their weights
_NARROW_SHARE = 0.2
_CORRECTED = 0.7  # times the stored cost: smaller corrections are not worth keeping
_GROWN = 0.02  # times one row's time per 1,000 tokens: smaller growth is not worth keeping
_CALMER = 0.5  # times the contention while costs were measured: with less it is worth measuring them again
_LIMIT_SECONDS = 20.0  # for measuring that nobody asked for; after the first pass a few more are always allowed


class Timed(Protocol):
    """A loaded pair, whose passes are timed."""

    draft_type: int | None
    """The ggml type that its head is loaded in; None: as in the file."""
    experts: Experts
    """The target's."""

    @property
    def engine(self) -> Engine:
        """Its engine."""

    @property
    def draft_type_asked(self) -> int | None:
        """The type that the user chose; None: the fastest one."""

    def costs_key(self) -> dict[str, Any]:
        """Everything that costs depend on."""

    def expected_priors(self) -> Priors:
        """For each drafter what is expected of it before it was ever asked; None: nothing."""

    def convert_draft(self, draft_type: int | None) -> None:
        """Load the head in another type."""


def learn_costs(pair: Timed, log: Callable[[str], None], seconds: float = 2.0, *, must: bool = False) -> None:
    """Let a pair's policy learn costs that are known or can be measured now.

    seconds: to spend on measuring; if that is not enough, missing costs are guessed, and the next call goes on. Nothing
    can be measured while something runs: then known costs are used, and without any the policy does not change.

    Raises:
        Eagle3Error: with `must`, if nothing is known and nothing can be measured.
    """
    key, engine = pair.costs_key(), pair.engine
    costs = costs_of(pair, seconds, log) if must or is_idle(engine) else load_costs(key)
    if costs is None or (engine.drafters and costs.draft_type != pair.draft_type):
        return
    curves = (costs if costs.is_whole else costs.guessed(pair.experts)).priced(pair.experts)
    known, expected = load_priors(key), pair.expected_priors()
    priors = [prior or other for prior, other in zip_longest(known, expected)][: len(expected)]
    engine.drafting.learn(curves, is_guessed=not costs.is_whole, experts=pair.experts, priors=priors)


def costs_of(pair: Timed, seconds: float = 2.0, log: Callable[[str], None] = print) -> Costs:
    """The costs of a loaded pair: from the cache folder, else measured within `seconds` and kept there.

    If passes take so long that more time is needed, it ends at a limit, and goes on from there at the next call. Leaves
    the head loaded in the type of these costs. log: called with the results.

    Raises:
        Eagle3Error: they must be measured, and the context is not empty.
    """
    key, engine = pair.costs_key(), pair.engine
    costs = load_costs(key)
    if costs is None or _is_calmer_now(engine, costs):
        known, limit = load_part(key), max(_LIMIT_SECONDS, seconds) if engine.drafters else seconds
        kept = costs or known
        if known is not None and not known.drafts and _is_calmer_now(engine, known):  # the target's alone
            known = None
        if not engine.drafters and known is not None and 1e-6 * known.target.get(1, 0.0) > seconds:
            return known  # one pass takes longer than may be spent
        what = "measuring what passes cost on this machine" if known is None else "measuring further what passes cost"
        if costs is not None:
            what = f"measuring again what passes cost, since other programs had {_percent(costs)} at first"
        more = f", up to {limit:g} s if weights are read or shaders compiled meanwhile" if limit > seconds else ""
        log(f"{what}: about {seconds:g} s{more}")
        start = perf_counter()
        costs = measure_types(pair, seconds, log, limit, known)
        if costs.was_busy and costs.is_whole and engine.drafters and 2 * (took := perf_counter() - start) <= limit:
            log(f"other programs had {_percent(costs)} meanwhile: measuring once more")
            costs = costs.or_faster(measure_types(pair, seconds, log, limit - took))
        if kept is not None and kept.growths:
            costs = replace(costs, growths=replace(costs, growths=kept.growths).all_growths)
        if costs.doubt:
            log(f"the machine was busy meanwhile ({costs.doubt}): such values are measured again the next time")
            save_costs(key, costs.part())
            costs = costs.bounded()
        else:
            if not costs.is_whole:
                log(
                    "measuring is not finished: missing costs are estimated until the context is empty again, or "
                    "another process begins; then it goes on"
                )
            if costs.was_busy:
                log(f"other programs had {_percent(costs)} meanwhile: a start at which they have less measures again")
            save_costs(key, costs)
    elif engine.drafters and is_idle(engine):
        pair.convert_draft(costs.draft_type)
    return costs


def _is_calmer_now(engine: Engine, costs: Costs) -> bool:
    """Whether other programs had much less of the processors' time since this process began."""
    return costs.was_busy and is_idle(engine) and Contention(since_start=True).share < _CALMER * costs.contention


def _percent(costs: Costs) -> str:
    return f"{costs.contention:.0%} of the processors' time"


def keep_learned(pair: Timed) -> None:
    """Keep what a pair's policy has learned of its drafters and of their costs for the next process."""
    drafting = pair.engine.drafting
    if not drafting.policy.is_measured or sys.is_finalizing():  # files cannot be opened then
        return
    try:
        key = pair.costs_key()
    except OSError:  # a model's file was removed, so its costs are of no use
        return
    if not drafting.is_guessed:
        _keep_corrections(drafting.policy, key, pair.draft_type if pair.engine.drafters else None)
    keep_priors(drafting.policy, key)


def _keep_corrections(policy: Policy, key: dict[str, Any], draft_type: int | None) -> None:
    """Store that passes are much faster than stored, or what depth adds to them."""
    kept = load_costs(key)
    stored = [curve.measured for curve in policy.costs]
    if kept is None or kept.curves != stored:  # some of the policy's costs are guessed, or others than the stored ones
        return
    curves = [curve.corrected for curve in policy.costs]
    is_faster = any(
        now[n] < _CORRECTED * t for now, curve in zip(curves, stored, strict=True) for n, t in curve.items()
    )
    growths = tuple(curve.growth for curve in policy.costs)
    is_grown = any(
        abs(sum(now) - sum(then)) > _GROWN * min(curve.values())
        for now, then, curve in zip(growths, kept.all_growths, stored, strict=True)
    )
    if is_faster or is_grown:
        costs = Costs.of_curves(curves if is_faster else stored, draft_type).bounded()
        if not costs.doubt:
            save_costs(key, replace(costs, contention=kept.contention, growths=growths))


def measure_types(
    pair: Timed,
    seconds: float = 2.0,
    log: Callable[[str], None] = print,
    limit_seconds: float = math.inf,
    known: Costs | None = None,
) -> Costs:
    """Measure a loaded pair, also with its head in Q4_0 if the user chose no type; the faster one stays loaded.

    limit_seconds: when to end; if costs are missing then, they are not whole. known: costs that are measured already.

    Raises:
        Eagle3Error: the context is not empty.
    """
    engine, limit = pair.engine, Limit(limit_seconds)
    heads = [i for i, drafter in enumerate(engine.drafters) if isinstance(drafter, Eagle3Drafter)]

    def n_bytes() -> int:
        return sum(head.n_bytes_own for head in engine.drafters if isinstance(head, Eagle3Drafter))

    has_choice = pair.draft_type_asked is None and n_bytes() >= _N_BYTES_MIN
    draft_type = pair.draft_type if engine.drafters and not has_choice else None
    if known is not None and known.draft_type != draft_type:  # of another type
        known = replace(known, drafts=())
    if not has_choice:
        return measure(engine, draft_type, seconds, limit, known)
    pair.convert_draft(None)
    as_is = measure(engine, None, (1.0 - _NARROW_SHARE) * seconds, limit, known)
    if not as_is.is_whole:
        return as_is
    n_before = n_bytes()
    pair.convert_draft(GGML_TYPE_NARROW)
    if n_bytes() < n_before:
        i, is_parallel = heads[0], engine.drafters[heads[0]].is_parallel
        draft = measure_draft(engine, i, _NARROW_SHARE * seconds, limit)
        if not draft.step:
            pair.convert_draft(None)
            return replace(as_is, is_whole=False)
        speeds = [best_chain(as_is, d, _ACCEPTANCE, is_parallel).speed for d in (draft, as_is.drafts[i])]
        gain = speeds[0] / speeds[1]
        log(f"with the head's matrices in Q4_0: {gain:.2f} times as fast")
        if gain >= _GAIN_MIN:
            drafts = (*as_is.drafts[:i], draft, *as_is.drafts[i + 1 :])
            return replace(as_is, drafts=drafts, draft_type=GGML_TYPE_NARROW)
    pair.convert_draft(None)
    return as_is


def experts_of(metadata: Mapping[str, str]) -> Experts:
    """The experts of a model, by its file's keys."""
    arch = metadata.get("general.architecture")
    try:
        n, n_used = (int(metadata.get(f"{arch}.expert{name}_count", 0)) for name in ("", "_used"))
    except ValueError:  # an array, with a number for each layer
        return 0, 0
    return (n, n_used) if 0 < n_used < n else (0, 0)
