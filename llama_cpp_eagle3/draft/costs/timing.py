"""Measure what passes cost: on an empty context, the most useful numbers of rows first, for a limited time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ..._core import Drafter
from ...errors import Eagle3Error
from .contention import Contention
from .costs import Costs, DraftCosts, implausible

if TYPE_CHECKING:
    from ...engine import Engine

N_ROWS = (1, 4, 8, 16, 2, 3, 5, 6, 12, 32, 64, 24, 48)  # of a target pass, in the order in which they are measured
_N_NEEDED = 2  # so many of these are always measured: with one value alone nothing could ever seem to pay
_N_WAITING = (1, 16, 2, 4, 8)
_N_WAITING_NEEDED = 2  # from the first two the time of reading a prompt is known
_N_NODES = (1, 2, 4, 8)
_N_AHEAD = (3, 1, 7, 15, 5, 2, 11)  # rows after the target's row: kernels' steps are at numbers that include it
_N_TIMES = 5
_N_CHAINS, _N_CHAINS_MIN = 5, 2
_DRAFT_SHARE = 0.25
_N_AGAIN, _N_AGAIN_STAIRS = 5, 2
_COMPILED = 3.0  # a first run that takes so many times as long as expected included compiling shaders
_SHORT = 0.1  # times the time for measuring: one row more does not matter
_CALM = 0.87  # if one row takes less than this share of its time before, other programs ran before


class Limit:
    """When measuring must end, including reading weights and compiling shaders."""

    def __init__(self, seconds: float = math.inf):
        self._end = perf_counter() + seconds
        self._n_done = 0

    def leave(self, seconds: float) -> None:
        """Allow at least so many seconds from now on: the first pass, which any text needs, may have taken all."""
        self._end = max(self._end, perf_counter() + seconds)

    def allows(self, seconds: float) -> bool:
        """Whether a run of so many seconds may start: if it ends in time, or nothing was measured yet."""
        return self._n_done == 0 or perf_counter() + seconds <= self._end

    def done(self) -> None:
        """Note that a size was measured."""
        self._n_done += 1


def is_idle(engine: Engine) -> bool:
    """Whether no sequence runs and the context is empty, so that passes can be timed."""
    return not engine.has_work and all(slot.user is None or not slot.tokens for slot in engine.slots)


def measure(
    engine: Engine,
    draft_type: int | None = None,
    seconds: float = 2.0,
    limit: Limit | None = None,
    known: Costs | None = None,
) -> Costs:
    """Measure a loaded pair within `seconds`, apart from the first pass, which reads the weights from disk.

    A driver that compiles shaders when they are first used takes more time, up to the limit: such runs do not count,
    and if sizes are missing then, the costs are not whole.

    For every number of rows the fastest of a few passes counts, since other programs can only make passes slower. The
    context is empty before and after. draft_type: the type of the loaded head. limit: also for sizes that must be
    measured. known: what was measured before.

    Raises:
        Eagle3Error: the context is not empty.
    """
    if not is_idle(engine):
        raise Eagle3Error(
            "costs are measured on an empty context, this one holds tokens: reset() it, or run "
            "`llama-cpp-eagle3 calibrate` once, which keeps them"
        )
    engine.clear()
    verify, n_max = _pass(engine)
    sizes = [n for n in N_ROWS if n <= n_max]
    needed = sizes[:_N_NEEDED]
    limit = limit or Limit()
    known = known or Costs({})
    n_drafters = len(engine.drafters)
    try:
        is_short = 1e-6 * known.target.get(1, math.inf) <= _SHORT * seconds
        now = min(verify(1) for _ in range(2 if is_short else 1))
        limit.leave(seconds)
        contention = Contention()
        # if the machine is faster now than it was: all sizes by the same measure
        target = {} if 1e6 * now < _CALM * known.target.get(1, 0.0) else known.target
        larger = {n: t for n, t in target.items() if n > n_max}  # of a batch or a context with more room
        target = {n: t for n, t in target.items() if n <= n_max}
        if 1 not in target and not engine.drafters and now > seconds:  # n-grams alone are not worth the wait
            target = {1: 1e6 * now}
            limit.done()
        elif 1 not in target:
            target = _fastest(verify, [1], 1, perf_counter(), limit)
        t_row = 1e-6 * target[1]
        end = perf_counter() + seconds
        drafts = [*known.drafts, *[DraftCosts({}, {})] * (n_drafters - len(known.drafts))]
        for i, draft in enumerate(drafts):
            if not draft.step and limit.allows(2 * t_row):
                drafts[i] = measure_draft(engine, i, _DRAFT_SHARE * seconds / n_drafters, limit)
        if limit.allows(t_row):
            n_needed = sum(n not in target for n in needed)
            sizes.sort(key=lambda n: n in target)  # others than known ones first
            target = _again_if_drifted(verify, _fastest(verify, sizes, n_needed, end, limit, target), limit)
            target = _again_if_slower(verify, target, limit)
        is_whole = all(n in target for n in needed) and all(draft.step for draft in drafts)
        return Costs(target | larger, tuple(drafts), draft_type, is_whole, contention.share)
    finally:
        engine.clear()


def measure_draft(engine: Engine, i_drafter: int, seconds: float, limit: Limit | None = None) -> DraftCosts:
    """Microseconds of a drafter's first and later graphs within `seconds`, on an empty context.

    Empty if the limit leaves no time for it.

    In a step the target's pass has evicted the head from the processor's caches. Sizes are measured without such a
    pass, and the time that one adds to a chain is added to all, as the head is read once for any number of rows.
    """
    drafter, tap = engine.drafters[i_drafter], engine.memory.tap
    if tap is None and drafter.n_embd_feat:
        return DraftCosts({}, {})
    limit = limit or Limit()
    if drafter.is_parallel:
        return _measure_parallel(engine, drafter, seconds, limit)
    verify, n_max = _pass(engine)
    token, n_top = 1 % engine.vocab.n_tokens, max(_N_NODES)

    def wait(n: int) -> int:
        drafter.reset(0)
        n -= drafter.n_waiting(0)  # a small model also evaluates the last token
        drafter.process(tap, [token] * n, 0, rows=[0] * n)  # the row's values do not matter
        return drafter.n_waiting(0)

    def catch_up(n: int) -> float:
        wait(n)
        start = perf_counter()
        drafter.begin([0], [token], n_top)
        return perf_counter() - start

    def expand(n: int) -> float:
        start = perf_counter()
        drafter.expand(list(range(n)), n_top)
        return perf_counter() - start

    def level(n: int) -> float:
        catch_up(1)
        return expand(n)

    def chain_in_step() -> float:
        verify(1)
        return catch_up(1) + expand(1)

    try:
        t_row = verify(1)
        if not limit.allows(t_row):
            return DraftCosts({}, {})
        catch_up(1)
        if not len(drafter.nodes):
            raise Eagle3Error(
                "the drafter (draft_model_path, or a block in the target's file) has no token to offer after another: "
                "its probabilities are not numbers. Its file is damaged, or this device cannot compute it"
            )
        n_nodes = min(n_top, len(drafter.nodes))
        drafter.expand(list(range(n_nodes)), 1)  # a context may have no room for the branches of a tree
        n_nodes = len(drafter.nodes) - n_nodes
        start = perf_counter()
        step = _fastest(level, [n for n in _N_NODES if n <= n_nodes], 1, start + 0.3 * seconds)
        n_most = wait(min(n_max, max(_N_WAITING)))  # an assistant evaluates one row, however many wait
        sizes = [n for n in _N_WAITING if n <= n_most]
        begin = _fastest(catch_up, sizes, _N_WAITING_NEEDED, start + 0.5 * seconds)
        alone = min(catch_up(1) + expand(1) for _ in range(_N_CHAINS))
        in_step = _in_steps(chain_in_step, start + seconds, t_row, limit)
    finally:
        engine.clear()
    t_cold = max(0.0, 1e6 * (min(in_step) - alone) / 2)  # for each of two graphs
    return DraftCosts({n: t + t_cold for n, t in begin.items()}, {n: t + t_cold for n, t in step.items()})


def _in_steps(run: Callable[[], float], end: float, t_row: float, limit: Limit) -> list[float]:
    """A few timings of a function, each after a pass of t_row seconds."""
    times = [run()]
    limit.done()
    while len(times) < _N_CHAINS and limit.allows(t_row) and (len(times) < _N_CHAINS_MIN or perf_counter() < end):
        times.append(run())
    return times


def _measure_parallel(engine: Engine, drafter: Drafter, seconds: float, limit: Limit) -> DraftCosts:
    """Measure a drafter that drafts all tokens in one graph: the second curve is that graph's over n more rows."""
    verify, n_max = _pass(engine)
    token = 1 % engine.vocab.n_tokens
    n_usual = min(4, drafter.n_unroll)

    def draft(n_waiting: int, n_steps: int) -> float:
        drafter.reset(0)
        drafter.process(engine.memory.tap, [token] * n_waiting, 0, rows=[0] * n_waiting)
        start = perf_counter()
        drafter.begin([0], [token], 1, n_steps)
        return perf_counter() - start

    def in_step() -> float:
        verify(1)
        return draft(1, n_usual)

    try:
        t_row = verify(1)
        if not limit.allows(t_row):
            return DraftCosts({}, {})
        draft(1, n_usual)
        start = perf_counter()
        sizes = [n for n in _N_AHEAD if n < drafter.n_unroll]
        ahead = _fastest(lambda n: draft(1, n + 1), sizes, 1, start + 0.4 * seconds)
        begin = _fastest(lambda n: draft(n, 1), [n for n in _N_WAITING if n <= n_max], 1, start + 0.7 * seconds)
        alone = min(draft(1, n_usual) for _ in range(_N_CHAINS))
        steps = _in_steps(in_step, start + seconds, t_row, limit)
    finally:
        engine.clear()
    t_cold = max(0.0, 1e6 * (min(steps) - alone))
    ahead = ahead or {1: begin[1]}  # a block of one token has no more rows
    return DraftCosts({n: t + t_cold for n, t in begin.items()}, {n: t + t_cold for n, t in ahead.items()})


def _pass(engine: Engine) -> tuple[Callable[[int], float], int]:
    """A function that times a pass of the target over n rows, and the greatest n."""
    # not all the same: a mixture of experts reads more for tokens that differ
    tokens = np.random.default_rng(0).integers(0, engine.vocab.n_tokens, max(N_ROWS)).tolist()

    def verify(n: int) -> float:
        start = perf_counter()
        engine.target.decode(tokens[:n], 0)
        return perf_counter() - start

    return verify, min(engine.n_batch, engine.n_ctx - 1)


def _again_if_drifted(run: Callable[[int], float], times: dict[int, float], limit: Limit) -> dict[int, float]:
    """Time all sizes again if the machine became faster or slower meanwhile: what counts is one size beside another."""
    first, n_runs = times.get(1, math.inf), 2
    if not limit.allows(n_runs * 1e-6 * first):
        return times
    now = min(1e6 * run(1) for _ in range(n_runs))
    if _CALM * first <= now <= first / _CALM or not limit.allows(n_runs * 1e-6 * sum(times.values())):
        return times
    rounds = [_fastest(run, times, len(times), perf_counter()) for _ in range(n_runs)]
    again = {n: min(found[n] for found in rounds) for n in times}
    return again if again[1] > first / _CALM else {n: min(t, again[n]) for n, t in times.items()}


def _again_if_slower(run: Callable[[int], float], times: dict[int, float], limit: Limit) -> dict[int, float]:
    """Time again what took longer than more rows: kernels have such a staircase, or something else ran meanwhile."""
    times = dict(times)
    for n in sorted(times, reverse=True):
        for _ in range(_N_AGAIN_STAIRS):
            least = min((t for m, t in times.items() if m > n), default=math.inf)
            if times[n] > least and limit.allows(1e-6 * times[n]):
                times[n] = min(1e6 * run(n), times[n])
    return times


def _fastest(
    run: Callable[[int], float],
    sizes: Iterable[int],
    n_needed: int,
    end: float,
    limit: Limit | None = None,
    known: Mapping[int, float] = MappingProxyType({}),
) -> dict[int, float]:
    """Microseconds of every size, measured in turns for as long as the next run is expected to end in time.

    The first n_needed sizes are measured however long that takes, within the limit. known: microseconds of sizes.
    """
    limit = limit or Limit()
    times = {n: 1e-6 * t for n, t in known.items()}
    short = (end - perf_counter()) / 20.0  # in longer runs building the graph does not matter: all sizes come first
    for i in range(_N_TIMES):
        for k, n in enumerate(sizes):
            needed = i == 0 and k < n_needed and n not in times
            below = max((m for m in times if m <= n), default=0)
            expected, is_first = times[below] * n / below if below else 0.0, False
            for again in (False, True):  # the second time in a row llama.cpp reuses its graph
                if again and i == 0 and expected > short and not is_first:
                    break
                if not ((needed or perf_counter() + expected < end) and limit.allows(expected)):
                    break
                t = run(n)
                is_first = not again and 0.0 < _COMPILED * expected < t  # the driver compiled shaders: run it again
                if is_first:
                    continue
                times[n] = min(t, times.get(n, math.inf))
                if needed:
                    limit.done()
                expected, needed = times[n], False
    for _ in range(_N_AGAIN):  # something else ran meanwhile: try again
        for n in implausible(times):
            for m in (n, 1):
                if limit.allows(times[m]):
                    times[m] = min(run(m), times[m])
    return {n: 1e6 * t for n, t in sorted(times.items())}
