"""The costs of a loaded pair, and the machine that they are of."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import llama_cpp

from ..._core import CostCurve, local_accelerators
from ...machine import cpu_name
from .contention import CONTENTION_MAX

# Two rows of a quantized target may take a little longer than two passes, four a little less than one
_SLOW, _FAST = 1.5, 0.5
# Costs that are not measured yet are guessed low, since real passes correct only what is drafted
_GUESSED_N, _GUESSED_PASS, _GUESSED_GRAPH = 4, 1.5, 0.1

GGML_TYPE_NARROW = llama_cpp.GGML_TYPE_Q4_0
"""The head is timed in this type too: CPUs have their fastest kernels for it, other devices read the fewest bytes."""


Growth = tuple[float, float]
"""Microseconds that each 1,000 tokens before the rows add to a pass, and to each of its rows."""
NO_GROWTH: Growth = (0.0, 0.0)
Experts = tuple[int, int]
"""Number of experts, and how many of them a row uses; (0, 0): the model is dense."""


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Measured microseconds of a drafter; both are empty if it was not measured."""

    begin: dict[int, float]
    """Time of a draft's first graph over n waiting rows."""
    step: dict[int, float]
    """Time of a later graph over n nodes; for a parallel drafter (P-EAGLE), of the first graph with n more rows to
    draft."""

    def draft_us(self, n_waiting: int, n: int, is_parallel: bool) -> float:
        """Microseconds of drafting a chain of n tokens. is_parallel: whether the drafter is."""
        begin, step = CostCurve(self.begin), CostCurve(self.step)
        if not is_parallel:
            return begin.at(n_waiting) + (n - 1) * step.at(1)
        return begin.at(n_waiting) + (max(0.0, step.at(n - 1) - begin.at(1)) if n > 1 else 0.0)


def _least(a: dict[int, float], b: dict[int, float]) -> dict[int, float]:
    return {n: min(a.get(n, math.inf), b.get(n, math.inf)) for n in sorted({*a, *b})}


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured microseconds."""

    target: dict[int, float]
    """Time of a pass of the target over n rows, logits and hidden states included."""
    drafts: tuple[DraftCosts, ...] = ()
    """Costs of each drafter with weights."""
    draft_type: int | None = None
    """The ggml type that the head's matrices were converted to; None = as in the file."""
    is_whole: bool = True
    """Whether they are complete enough to plan with; if not, the time for measuring was over before."""
    contention: float = 0.0
    """Share of the processors' time that other programs had while costs were measured."""
    growths: tuple[Growth, ...] = ()
    """What real passes have shown for each curve: empty, or as many as `curves`."""

    @property
    def all_growths(self) -> tuple[Growth, ...]:
        """One of `growths` for each curve: nothing for those of which none is known."""
        n = len(self.curves)
        return (*self.growths, *(NO_GROWTH,) * n)[:n]

    @property
    def was_busy(self) -> bool:
        """Whether other programs had so much of the processors' time that passes may be much faster."""
        return self.contention > CONTENTION_MAX

    @property
    def doubt(self) -> str:
        """Why they are implausible, or empty: a pass took longer than its rows in several, or less than one row."""
        for i, curve in enumerate(self.curves):
            name = "head" if i else "target"
            for n in implausible(curve):
                return (
                    f"{n} rows of the {name} took {1e-3 * curve[n]:.1f} ms, one row {1e-3 * curve[1]:.1f} ms, "
                    f"{n} in several passes {1e-3 * in_parts(curve)[n]:.1f} ms"
                )
        return ""

    def bounded(self) -> Costs:
        """These costs, with no pass longer than its rows in several passes."""
        curves = [
            {n: min(t, limits[n]) for n, t in curve.items()}
            for curve, limits in zip(self.curves, map(in_parts, self.curves), strict=True)
        ]
        return replace(Costs.of_curves(curves, self.draft_type, self.is_whole), growths=self.growths)

    def or_faster(self, later: Costs) -> Costs:
        """The least times of both: other programs can only make passes slower. The head is loaded as for `later`."""
        drafts = later.drafts
        if self.draft_type == later.draft_type and len(self.drafts) == len(drafts):
            pairs = zip(self.drafts, drafts, strict=True)
            drafts = tuple(DraftCosts(_least(a.begin, b.begin), _least(a.step, b.step)) for a, b in pairs)
        contention = min(self.contention, later.contention)
        return replace(later, target=_least(self.target, later.target), drafts=drafts, contention=contention)

    def part(self) -> Costs:
        """The curves that need not be measured again, if some are missing or in doubt."""
        target = {n: t for n, t in self.target.items() if n not in implausible(self.target)}
        good = [d if not implausible(d.begin) and not implausible(d.step) else DraftCosts({}, {}) for d in self.drafts]
        return Costs(target, tuple(good), self.draft_type, False, self.contention, self.growths)

    def guessed(self, experts: Experts = (0, 0)) -> Costs:
        """These costs with guesses for what is missing, to plan with until it is measured; `target` has one row's time.

        experts: of the target; each row of a mixture reads others.
        """
        one, target = self.target[1], self.target
        if len(target) == 1 and experts == (0, 0):
            target = {1: one, _GUESSED_N: _GUESSED_PASS * one}
        graph = {1: _GUESSED_GRAPH * one}
        drafts = tuple(d if d.begin and d.step else DraftCosts(graph, graph) for d in self.drafts)
        return Costs(target, drafts, self.draft_type, is_whole=False)

    @property
    def curves(self) -> list[dict[int, float]]:
        """Curves of the target, then of each drafter's first graph and of its later ones, as `Policy.costs`."""
        return [self.target, *(curve for d in self.drafts for curve in (d.begin, d.step))]

    def priced(self, experts: Experts = (0, 0)) -> list[CostCurve]:
        """The curves as a policy takes and corrects them. experts: of the target."""
        of_curves = [experts, *((0, 0),) * (len(self.curves) - 1)]
        return list(map(CostCurve, self.curves, self.all_growths, of_curves))

    @classmethod
    def of_curves(
        cls, curves: Sequence[dict[int, float]], draft_type: int | None = None, is_whole: bool = True
    ) -> Costs:
        """Costs with these curves, in the order of `curves`."""
        drafts = tuple(DraftCosts(begin, step) for begin, step in zip(curves[1::2], curves[2::2], strict=True))
        return cls(curves[0], drafts, draft_type, is_whole)


def implausible(curve: Mapping[int, float]) -> list[int]:
    """Numbers of rows whose times show that the machine was busy then."""
    one = curve.get(1, 0.0)
    limits = in_parts(curve)
    return [n for n, t in curve.items() if one and not _FAST * one < t < _SLOW * limits[n]]


def in_parts(curve: Mapping[int, float]) -> dict[int, float]:
    """The least time of each number of rows when it is divided into several passes of measured sizes."""
    if 1 not in curve:
        return dict(curve)
    limits, best = [0.0, curve[1]], [0.0, curve[1]]
    for n in range(2, max(curve) + 1):
        limits.append(min(t + best[n - m] for m, t in curve.items() if m < n))
        best.append(min(limits[n], curve.get(n, limits[n])))
    return {n: limits[n] for n in curve}


@cache
def machine() -> list[str | int]:
    """Processor, its features as ggml uses them, and accelerators."""
    devices = [f"{device.name}: {device.description}" for device in local_accelerators()]
    return [platform.machine(), cpu_name(), os.cpu_count() or 0, llama_cpp.llama_print_system_info().decode(), *devices]
