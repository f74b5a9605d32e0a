"""Measure what a pass of the target and a step of its drafter cost on this machine, and keep it for `draft="auto"`.

The table gives for every draft length the cost of its pass, and how many of its tokens must be accepted on
average before it is faster than plain decoding. Give the flags that you run with: costs depend on them.
Without -m it is SmolLM2-135M-Instruct, which is fetched once.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from .._core import CostCurve, read_target
from ..doctor.pair_check import size_of
from ..draft.costs import Costs, DraftCosts, measure_types, save_costs
from ..draft.siblings import advice
from ..ggml_types import type_name
from ..model import cpu_kernels
from .flags import LOAD, LOG
from .load_model import load_model, resolve_pair
from .parser import Parser
from .sources import heads_of, lacks_weights


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "target", metavar="MODEL", nargs="?", help="target, a GGUF file (default: SmolLM2-135M-Instruct, fetched once)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="time to spend (default: 10)")
    parser.add_argument("--json", action="store_true", help="print the costs as JSON instead of a table")
    parser.add_flags({**LOAD, "log": LOG})
    parser.set_defaults(seed=0)


def run(args: argparse.Namespace) -> int:
    """Measure, keep and print."""
    if args.target is not None and args.model is not None:
        raise ValueError("give the target once: as MODEL or with -m")
    if not args.seconds > 0:
        raise ValueError(f"expected --seconds > 0, found {args.seconds:g}")
    args.model = args.target or args.model
    resolve_pair(args)
    cpu_kernels.clear_cache()
    llm = load_model(args, heads_of(args))
    try:
        key, kernels = llm.loaded.costs_key(), llm.loaded.cpu_kernels_used
        costs = measure_types(llm.loaded, args.seconds, lambda text: None)
    finally:
        llm.close()
    path = None if costs.doubt else save_costs(key, costs)
    if args.json:
        print(json.dumps(asdict(costs)))
        return 0
    print(table(costs))
    if lacks_weights(args):
        curve = CostCurve(costs.target)
        told = advice(read_target(args.model), size_of(args.model), lambda n: curve.at(n) / curve.at(1))
        print(f"\nn-grams draft, which cost nothing; {told}")
    print(f"\nCPU kernels: {kernels}")
    if costs.draft_type is not None:
        print(f"\nhead: converted to {type_name(costs.draft_type)}")
    if costs.doubt:
        print(f"\nnot kept, something else ran meanwhile: {costs.doubt}. Run it again when the machine is idle.")
        return 1
    if costs.was_busy:
        print(
            f"\nother programs had {costs.contention:.0%} of the processors' time meanwhile: run it again when the "
            "machine is idle, or the first start then measures again"
        )
    print(f"\nkept in {path}" if path else "\nnot kept: the cache folder cannot be written")
    return 0


def table(costs: Costs) -> str:
    """The costs, one line per number of rows; of several drafters a table for each."""
    return "\n\n".join(_table(costs, draft) for draft in costs.drafts or [None])


def _table(costs: Costs, draft: DraftCosts | None) -> str:
    head: tuple[str, ...] = ("rows", "target ms")
    if draft is not None:
        head = (*head, "draft ms", "to accept", "draft: waiting rows ms", "nodes of a level ms")
    lines = [head]
    plain = costs.target[min(costs.target)]
    for n in sorted({*costs.target, *([] if draft is None else [*draft.begin, *draft.step])}):
        line = [str(n), _ms(costs.target.get(n))]
        if draft is not None:
            line += [*_chain(costs, draft, n, plain), _ms(draft.begin.get(n)), _ms(draft.step.get(n))]
        lines.append(tuple(line))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _chain(costs: Costs, draft: DraftCosts, n_rows: int, plain: float) -> tuple[str, str]:
    """The cost of drafting a chain for a pass over n rows, and how many tokens must be accepted to pay for it."""
    if n_rows < 2 or n_rows not in costs.target:
        return "", ""
    begin, step = CostCurve(draft.begin), CostCurve(draft.step)
    n_draft = n_rows - 1
    # after a draft that breaks even, a few rows wait for the next one
    t_us = begin.at(min(n_rows, 4)) + (n_draft - 1) * step.at(1)
    needed = (costs.target[n_rows] + t_us) / plain - 1.0
    return _ms(t_us), f"{needed:.2f} of {n_draft}" if needed <= n_draft else "never pays"


def _ms(t_us: Any) -> str:
    return "" if t_us is None else f"{1e-3 * t_us:.3f}"
