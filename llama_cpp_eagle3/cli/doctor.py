"""Check this machine: what is right, what is wrong, and what to do about it; with -m and -md also that pair.

Exit status: 0, 1 if something costs speed, 2 if something fails. Without -m, --measure takes SmolLM2-135M-Instruct,
which is fetched once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..doctor import Finding, check_conversation, check_files, check_loaded, devices, prospects, software
from ..doctor.pair_check import judge_losses, judge_trial, try_text
from ..draft.costs import Costs, load_costs, measure_types, save_costs
from ..errors import Eagle3Error
from .flags import LOAD, LOG
from .load_model import load_model, resolve_pair
from .parser import Parser
from .sources import draft_paths, heads_of

_PROMPT = "Write a Python class for a stack, with a docstring and a test."
_N_TOKENS = 128
_SECONDS = 10.0


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--measure", action="store_true", help="measure what passes cost (10 s), and generate with and without drafts"
    )
    parser.add_argument("-p", "--prompt", default=_PROMPT, metavar="TEXT", help="to generate from with --measure")
    parser.add_argument(
        "-n", "--predict", "--n-predict", type=int, default=_N_TOKENS, metavar="N", help="(default: 128)"
    )
    parser.add_flags({**LOAD, "log": LOG})
    parser.set_defaults(seed=0)


def run(args: argparse.Namespace) -> int:
    """Print all findings; the worst one decides the exit status."""
    if args.predict < 1:
        raise ValueError(f"expected -n >= 1, found {args.predict}")
    report = _Report()
    report.show("installed", software())
    report.show("devices", devices())
    if args.measure or args.model or args.hf_repo or args.draft_model_path or args.hf_repo_draft:
        _pair(args, report)
    return report.status


class _Report:
    """Prints findings as they come, and remembers the worst."""

    def __init__(self) -> None:
        self.status = 0

    def show(self, title: str, findings: list[Finding]) -> bool:
        """Print them under a title; returns whether nothing failed."""
        if title:
            print(f"{title}")
        for finding in findings:
            print(f"  {finding.level:7}  {finding.text}")
            if finding.advice:
                print(f"           -> {finding.advice}")
            self.status = max(self.status, {"warning": 1, "error": 2}.get(finding.level, 0))
        sys.stdout.flush()
        return all(finding.level != "error" for finding in findings)


def _pair(args: argparse.Namespace, report: _Report) -> None:
    try:
        resolve_pair(args)
    except (Eagle3Error, ValueError, OSError) as e:
        report.show("pair", [Finding("error", str(e))])
        return
    if not report.show("pair", check_files(args.model, draft_paths(args))):
        return
    try:
        llm = load_model(args, heads_of(args))
    except (Eagle3Error, ValueError, OSError) as e:
        report.show("", [Finding("error", f"loading it fails: {e}")])
        return
    with llm:
        try:
            report.show("", check_conversation(llm.engine, measure=args.measure))
        except Eagle3Error as e:
            report.show("", [Finding("error", f"a prompt cannot be evaluated: {e}")])
            return
        report.show("", judge_losses(llm.loaded.losses))
        if not llm.engine.drafts().can_draft:
            return
        key = llm.loaded.costs_key()
        costs = load_costs(key)
        if args.measure:
            costs = measure_types(llm.loaded, _SECONDS, lambda text: None)
            if not costs.doubt:
                save_costs(key, costs)
        report.show("", check_loaded(llm, costs))
        if costs is not None and not costs.doubt:
            print(table(costs, [d.is_parallel for d in llm.drafters]))
        if args.measure:
            report.show("", judge_trial(try_text(llm, args.prompt, args.predict)))


def table(costs: Costs, are_parallel: Sequence[bool] = (False,)) -> str:
    """The speed that drafting would bring, by measured costs."""
    lines = ["           if this part is accepted   draft   times as fast"]
    for prospect in prospects(costs, are_parallel):
        n = str(prospect.n_draft) if prospect.n_draft else "nothing"
        lines.append(f"           {100 * prospect.acceptance:>22.0f} %   {n:>5}   {prospect.speedup:>13.2f}")
    return "\n".join(lines)
