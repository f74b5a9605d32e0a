"""Measure the first tokens of a new object: the cost of a head before the planner knows it.

Each run loads the model anew, with the head and without it, in turns; the costs of passes are in the cache folder. Only
the head drafts, since a model's repetitions would hide the cost of a useless head. Times are processor times without
the target's passes over the prompt, but with the head's. `--unsure` measures how soon a head is used that is right and
does not know it, against fixed chains of `--n-max` tokens.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path

from gguf import GGUFReader

import common
from comparison.runs import Run, load, run_own
from llama_cpp_eagle3.bench.report import Spread, table

FLAT = 0.05
"""The factor of an unsure head's logits: their order stays, their probabilities become nearly equal."""


def unsure(draft: str, folder: str) -> str:
    """Write a copy of the head whose probabilities carry no information."""
    copy = Path(folder) / f"unsure-{Path(draft).name}"
    shutil.copy(draft, copy)
    reader = GGUFReader(copy, "r+")
    (norm,) = [tensor for tensor in reader.tensors if tensor.name == "output_norm.weight"]
    norm.data[:] *= FLAT
    reader.data.flush()
    return str(copy)


def first_tokens(args: argparse.Namespace, draft: str | None, n_max: int | None, text: str) -> Run:
    """Return the figures of a new object's answer to one text."""
    options: dict[str, object] = {}
    if draft:
        options = {"draft": "chain", "draft_n_max": n_max} if n_max else {"draft": "auto", "draft_sources": ["eagle3"]}
    with closing(load(args.model, draft, args.threads, args.gpu_layers, args.ctx_size, **options)) as llm:
        if draft and not n_max:
            llm.calibrate()
        prompt = llm.tokenize(text.encode(), special=True)
        run, _ = run_own(llm, prompt, args.n_predict, fresh=True, stop=False, clock=time.process_time)
    return run


def section(args: argparse.Namespace, runs: dict[str, list[Run]]) -> common.Section:
    """Return speeds and their ratios."""
    speeds = {name: [run.tokens_per_second for run in found] for name, found in runs.items()}
    auto = runs["auto"]
    rows = []
    for name, found in runs.items():
        ratio = Spread.of(a / b for a, b in zip(speeds["auto"], speeds[name], strict=True))
        accepted, drafted = (sum(getattr(run, which) for run in found) for which in ("accepted", "drafted"))
        rows.append([name, Spread.of(speeds[name]).text(), f"{accepted} of {drafted}", ratio.text(3)])
    what = "with all its probabilities near nothing " if args.unsure else ""
    text = (
        f"The first {args.n_predict} tokens of a fresh object, the head {what}as the only source, "
        f"{len(auto)} texts one after the other. Tokens per second of processor time; medians (lowest - highest).\n\n"
        f"{table(['', 'tokens/s', 'accepted', 'auto / this'], rows)}"
    )
    data = {name: [vars(run) for run in found] for name, found in runs.items()}
    title = "The first tokens of a fresh object" + (", a head that is right and not sure" if args.unsure else "")
    return common.Section("first", title, text, data, "first-unsure" if args.unsure else "")


def main() -> None:
    p = common.parser(__doc__, runs=1)
    p.add_argument("--n-max", type=int, nargs="*", default=[], help="also fixed chains of these lengths")
    p.add_argument("--unsure", action="store_true", help="a copy of the head whose probabilities carry no information")
    p.set_defaults(threads=1, n_predict=48)
    args = p.parse_args()
    args.model, args.model_draft = common.pair(args)
    with tempfile.TemporaryDirectory() as folder:
        draft = unsure(args.model_draft, folder) if args.unsure else args.model_draft
        sides: dict[str, tuple[str | None, int | None]] = {"auto": (draft, None), "plain": (None, None)}
        sides |= {f"chain {n}": (draft, n) for n in args.n_max}
        first_tokens(args, *sides["auto"], "What passes cost is measured once.")
        runs: dict[str, list[Run]] = {name: [] for name in sides}
        for i, text in enumerate(common.prompts(args) * args.runs):
            for name in list(sides)[:: 1 if i % 2 else -1]:
                runs[name].append(first_tokens(args, *sides[name], text))
                print(f"text {i}, {name}: {runs[name][-1].tokens_per_second:.2f} tokens/s", flush=True)
    common.finish(args, section(args, runs), [args.model, args.model_draft])


if __name__ == "__main__":
    main()
