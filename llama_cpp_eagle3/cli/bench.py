"""Compare plain decoding, draft="auto" and fixed chains on the same files.

All sides take turns on the same prompts. Without -md n-grams draft, or a block in the model's file.
Without -m it is SmolLM2-135M-Instruct, which is fetched once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

from .._core import read_target
from ..doctor.pair_check import size_of
from ..draft.kinds import NGRAM, MtpBlock, kind_of
from ..draft.siblings import advice
from ..files.text_file import read_text
from ..files.whole_file import output_path, write_whole
from .flags import HUB, PROMPT, changed, pick
from .load_model import resolve_pair
from .parser import Parser
from .sources import drafts_by_block, heads_of, lacks_weights, source_options

_N_PROMPTS = 8


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    pair = changed(
        pick("model", "draft_model_path", "spec_type", "n_ctx", "n_threads", "n_gpu_layers", "cpu_kernels"),
        "n_ctx",
        default=0,
        help="0: what the longest prompt and its answer need, at least 512 (default: 0)",
    )
    predict = next(flag for flag in PROMPT if flag.attribute == "predict")
    pair = changed(pair, "n_gpu_layers", default=0, help="of the target (default: 0)")
    parser.add_flags({"pair": (*HUB, *pair, predict)})
    add = parser.add_argument_group("what to compare").add_argument
    add(
        "-f", "--file", action="append", type=Path, default=[], metavar="FNAME", help="a prompt, or a JSON list of them"
    )
    usual = f"use only the first ones (default: all of -f, {_N_PROMPTS} of ours)"
    add("--n-prompts", type=int, metavar="N", help=usual)
    add("-r", "--runs", type=int, default=3, metavar="N", help="(default: 3)")
    add("--fresh", type=int, default=4, metavar="N", help="prompts that time the first token of each side (default: 4)")
    chains = "lengths of fixed chains (default: 3, of n-grams alone none; none: '')"
    add("--n-max", type=numbers, metavar="N,...", help=chains)
    add("--no-plain", action="store_true", help="leave out plain decoding")
    add("--no-auto", action="store_true", help='leave out draft="auto"')
    text = "sample, with llama.cpp's default samplers, prompt i with seed i (default: 0, greedy)"
    add("--temp", type=float, default=0.0, metavar="N", help=text)
    add("--json", metavar="FNAME", help="write all figures")
    parser.hide("fresh")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from ..bench import provenance, report
    from ..bench.compare import Config, compare

    model, drafts, texts, sources = read(args)
    settings = [(mode, 0) for mode, left_out in (("plain", args.no_plain), ("auto", args.no_auto)) if not left_out]
    settings += [("chain", n_max) for n_max in args.n_max]
    if not settings:
        raise ValueError("nothing to run: every side was left out")
    options = {name: getattr(args, name) for name in ("n_threads", "n_gpu_layers", "n_ctx", "cpu_kernels")}
    config = Config(model, drafts, settings, texts, options, sources, args.predict, args.runs, args.fresh, args.temp)
    result = compare(config, show_progress)
    show_progress("")
    about = provenance.describe(args.n_threads)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        print(report.for_terminal(config, result, width), textwrap.fill(provenance.line(about), width), sep="\n\n")
    else:
        print(f"{report.markdown(config, result)}\n\n{provenance.line(about)}")
    if lacks_weights(args):
        print(f"\nn-grams drafted; {advice(read_target(model), size_of(model))}")
    if args.json is not None:
        document = {**about, **asdict(config), "texts": len(texts), **asdict(result)}
        write_whole(args.json, json.dumps(document, indent=1) + "\n")
    return 0


def _chains(args: argparse.Namespace) -> list[int]:
    """Lengths of the fixed chains.

    Raises:
        ValueError: they are named, and there is no drafter with weights, which drafts them.
    """
    if not lacks_weights(args):
        return [3] if args.n_max is None else list(args.n_max)
    if args.n_max:
        raise ValueError(
            "--n-max: chains of a fixed length are a drafter's with weights (-md, -hfd), and there is none"
        )
    return []


def read(args: argparse.Namespace) -> tuple[str, list[str], list[str], tuple[str, ...]]:
    """Target, drafters' files, prompts and sources that the flags name; sets the default of `n_max`.

    Raises:
        ValueError: a flag has an invalid value.
    """
    if min(args.predict, args.runs, args.n_threads) < 1 or (args.n_prompts is not None and args.n_prompts < 1):
        raise ValueError("expected -n, -r, -t and --n-prompts of at least 1")
    if not 0.0 <= args.temp < math.inf:
        raise ValueError(f"expected --temp of at least 0, found {args.temp:g}")
    resolve_pair(args)
    if args.spec_type == ():
        raise ValueError("bench compares with a run that drafts: leave --spec-type none out")
    model, drafts, args.n_max = args.model, heads_of(args), _chains(args)
    if args.json is not None:
        output_path(args.json, model, *drafts, *args.file)
    usual = [kind_of(draft).source for draft in drafts] or ([MtpBlock.source] if drafts_by_block(args) else [])
    sources = source_options(args).get("draft_sources") or (*usual, NGRAM)
    n_prompts = args.n_prompts or (None if args.file else _N_PROMPTS)
    return model, drafts, texts_of(args.file)[:n_prompts], tuple(sources)


def show_progress(text: str) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":  # such a terminal has no escape sequences
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def texts_of(paths: list[Path]) -> list[str]:
    """Prompts of files, or ours: the beginnings of some Python modules."""
    if not paths:
        from ..models import heldout_prompts

        return heldout_prompts()
    texts: list[str] = []
    for path in paths:
        text = read_text(path)
        if path.suffix != ".json":
            texts.append(text.removesuffix("\n"))
            continue
        found = json.loads(text)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise ValueError(f"'{path}': expected a JSON list of texts")
        texts += found
    return texts


def numbers(text: str) -> list[int]:
    """Positive numbers between commas."""
    try:
        values = [int(part) for part in text.split(",") if part]
    except ValueError:
        values = [0]
    if any(n < 1 for n in values):
        raise argparse.ArgumentTypeError(f"expected positive numbers like 1,2,4, found {text!r}")
    return values
