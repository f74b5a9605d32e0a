"""Compare plain decoding, fixed chains, trees and draft="auto" on the same files.

All sides take turns on the same prompts. Without -m the bundled pair is used.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path

from ..draft.kinds import NGRAM, kind_of
from ..whole_file import output_path, write_whole
from .flags import HUB, PROMPT, changed, pick
from .model import resolve_pair
from .parser import Parser
from .sources import source_options


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    from ..bench import settings

    pair = changed(
        pick("model", "draft_model_path", "spec_type", "n_ctx", "n_threads", "n_gpu_layers", "cpu_kernels"),
        "n_ctx",
        default=0,
        help="0: what the longest prompt and its answer need, at least 512 (default: 0)",
    )
    predict = next(flag for flag in PROMPT if flag.attribute == "predict")
    pair = changed(pair, "n_gpu_layers", default=0, help="of the target (default: 0)")
    parser.add_flags({"pair": (*HUB, *pair, predict)})
    files = parser.add_argument_group("prompts")
    files.add_argument(
        "-f", "--file", action="append", type=Path, default=[], metavar="FNAME", help="a prompt, or a JSON list of them"
    )
    files.add_argument("--n-prompts", type=int, metavar="N", help="use only the first ones")
    files.add_argument("-r", "--runs", type=int, default=5, metavar="N", help="(default: 5)")
    files.add_argument(
        "--fresh", type=int, default=4, metavar="N", help="prompts that time the first token of each side (default: 4)"
    )
    settings.add_arguments(parser)
    parser.add_argument(
        "--temp",
        type=float,
        default=0.0,
        metavar="N",
        help="sample, with llama.cpp's default samplers, prompt i with seed i (default: 0, greedy)",
    )
    parser.add_argument("--json", metavar="FNAME", help="write all figures")
    parser.hide("fresh", "source", "tree_topk", "tree_tokens", "n_prompts")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from ..bench import compare, machine, settings

    if min(args.predict, args.runs, args.n_threads) < 1 or (args.n_prompts is not None and args.n_prompts < 1):
        raise ValueError("expected -n, -r, -t and --n-prompts of at least 1")
    if not 0.0 <= args.temp < math.inf:
        raise ValueError(f"expected --temp of at least 0, found {args.temp:g}")
    model, draft = pair_of(args)
    if args.json is not None:
        output_path(args.json, model, draft, *args.file)
    config = compare.Config(
        model=model,
        draft=draft,
        settings=settings.from_arguments(args),
        texts=texts_of(args.file)[: args.n_prompts],
        sources=tuple(source_options(args).get("draft_sources") or (kind_of(draft).source, NGRAM)),
        n_threads=args.n_threads,
        n_predict=args.predict,
        n_runs=args.runs,
        n_fresh=args.fresh,
        n_gpu_layers=args.n_gpu_layers,
        n_ctx=args.n_ctx,
        cpu_kernels=args.cpu_kernels,
        temperature=args.temp,
    )
    result = compare.compare(config, show_progress)
    show_progress("")
    about = machine.describe(args.n_threads)
    print(f"{compare.markdown(result)}\n\n{machine.line(about)}")
    if args.json is not None:
        write_whole(args.json, json.dumps({**about, **result.as_dict()}, indent=1) + "\n")
    return 0


def show_progress(text: str) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":  # which has no escape sequences
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def pair_of(args: argparse.Namespace) -> tuple[str, str]:
    """Target and head that the flags name, or the bundled ones."""
    resolve_pair(args)
    if args.draft_model_path is None:
        raise ValueError("give both a target and a head (-m and -md, -hf and -hfd), or neither for the bundled pair")
    return args.model, args.draft_model_path


def texts_of(paths: list[Path]) -> list[str]:
    """Prompts of files, or those that come with the bundled pair."""
    if not paths:
        from ..models import heldout_prompts

        return heldout_prompts()
    texts: list[str] = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            texts.append(text.removesuffix("\n"))
            continue
        found = json.loads(text)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise ValueError(f"'{path}': expected a JSON list of texts")
        texts += found
    return texts
