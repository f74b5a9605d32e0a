"""The first tokens of a fresh object: what a head costs before the planner knows it.

Each run loads the model anew, once with the head and once without, in turns; what passes cost is in the cache folder.
The head is the only source, since what a model repeats would hide what a useless head costs. Processor time, without
the prompt in the target, but with what the head makes of it.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing

import common

from llama_cpp_eagle3.bench.figures import Spread, table
from llama_cpp_eagle3.bench.runs import Run, load, run_own


def first_tokens(args: argparse.Namespace, model: str, draft: str | None, text: str) -> Run:
    """The answer to one text by a fresh object."""
    options = {"draft": "auto", "draft_sources": ["head"]} if draft else {}
    with closing(load(model, draft, args.threads, args.gpu_layers, args.ctx_size, **options)) as llm:
        if draft:
            llm.calibrate()
        prompt = llm.tokenize(text.encode(), special=True)
        run, _ = run_own(llm, prompt, args.n_predict, fresh=True, stop=False, clock=time.process_time)
    return run


def section(args: argparse.Namespace, runs: dict[str, list[Run]]) -> common.Section:
    """Speeds and their ratios."""
    speeds = {name: [run.tokens_per_second for run in found] for name, found in runs.items()}
    ratio = Spread.of(a / b for a, b in zip(speeds["auto"], speeds["plain"], strict=True))
    auto = runs["auto"]
    row = [
        *(Spread.of(speeds[name]).text() for name in ("auto", "plain")),
        ratio.text(3),
        f"{sum(run.accepted for run in auto)} of {sum(run.drafted for run in auto)}",
    ]
    text = (
        f"The first {args.n_predict} tokens of a fresh object, the head as the only source, {len(auto)} texts one "
        "after the other. Tokens per second of processor time; medians (lowest - highest).\n\n"
        f"{table(['auto', 'plain', 'auto / plain', 'accepted'], [row])}"
    )
    data = {name: [vars(run) for run in found] for name, found in runs.items()}
    return common.Section("first", "The first tokens of a fresh object", text, data)


def main() -> None:
    p = common.parser(__doc__, runs=1)
    p.set_defaults(threads=1, n_predict=48)
    args = p.parse_args()
    args.model, args.model_draft = common.pair(args)
    first_tokens(args, args.model, args.model_draft, "What passes cost is measured once.")
    runs: dict[str, list[Run]] = {"auto": [], "plain": []}
    for i, text in enumerate(common.prompts(args) * args.runs):
        for name in ("auto", "plain") if i % 2 else ("plain", "auto"):
            runs[name].append(first_tokens(args, args.model, args.model_draft if name == "auto" else None, text))
            print(f"text {i}, {name}: {runs[name][-1].tokens_per_second:.2f} tokens/s", flush=True)
    common.finish(args, section(args, runs), [args.model, args.model_draft])


if __name__ == "__main__":
    main()
