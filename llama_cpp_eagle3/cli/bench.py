"""Compare plain decoding, fixed chains, trees and draft="auto" with each other and with llama.cpp, on the same files.

All sides take turns on the same prompts. Without -m the bundled pair is used. llama.cpp's own programs take part with
--peer once --build-peer has built them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from ..draft.kinds import NGRAM, kind_of
from ..whole_file import output_path, write_whole
from .extra import extra
from .flags import HUB, PROMPT, changed, pick
from .model import resolve_pair
from .parser import Parser
from .sources import source_options


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    from ..bench import settings, synthetic

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
    parser.add_argument(
        "--synthetic-acceptance",
        type=synthetic.rates_of,
        metavar="P,...",
        help="accept by fixed odds: entry i is the chance that the first i + 1 drafted tokens are all accepted",
    )
    parser.add_argument(
        "--replay",
        metavar="FNAME",
        help='replay recorded texts: lines of {"prompt": TEXT, "answer": TEXT}; -n tokens at most',
    )
    parser.add_argument("--build-peer", action="store_true", help="build llama.cpp's programs first, a few minutes")
    parser.add_argument("--tools", metavar="DIR", help="a folder that has them (or LLAMA_CPP_TOOLS)")
    parser.add_argument("--json", metavar="FNAME", help="write all figures")
    parser.add_argument("--markdown", metavar="FNAME", help="write the table")
    parser.add_argument("--plot", metavar="FNAME", help="draw it; .svg, .png, .pdf")
    parser.hide("fresh", "source", "tree_topk", "tree_tokens", "tools", "n_prompts", "synthetic_acceptance")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    _check_extra()
    from ..bench import machine, measure, peer, replay, report, settings

    if args.build_peer:
        print(peer.get_tools(args.tools), file=sys.stderr)
    if min(args.predict, args.runs, args.n_threads) < 1 or (args.n_prompts is not None and args.n_prompts < 1):
        raise ValueError("expected -n, -r, -t and --n-prompts of at least 1")
    if not 0.0 <= args.temp < math.inf:
        raise ValueError(f"expected --temp of at least 0, found {args.temp:g}")
    if args.replay is not None and (args.file or args.synthetic_acceptance):
        raise ValueError("--replay takes the place of -f and --synthetic-acceptance: leave them out")
    model, draft = _pair(args)
    for name in (args.json, args.markdown, args.plot):
        if name is not None:
            output_path(name, model, draft, args.replay, *args.file)
    config = measure.Config(
        model=model,
        draft=draft,
        settings=settings.from_arguments(args),
        sources=tuple(source_options(args).get("draft_sources") or (kind_of(draft).source, NGRAM)),
        texts=[] if args.replay is not None else _texts(args.file)[: args.n_prompts],
        replay=[] if args.replay is None else replay.read(args.replay, args.n_prompts),
        n_predict=args.predict,
        n_runs=args.runs,
        n_fresh=args.fresh,
        n_threads=args.n_threads,
        n_gpu_layers=args.n_gpu_layers,
        n_ctx=args.n_ctx,
        cpu_kernels=args.cpu_kernels,
        tools=args.tools,
        synthetic=args.synthetic_acceptance,
        temperature=args.temp,
    )
    bandwidth = machine.read_bandwidth(args.n_threads) if args.n_gpu_layers == 0 else 0.0
    result = measure.measure(config, measure.show_progress)
    measure.show_progress("")
    about: dict[str, Any] = machine.describe(args.n_threads)
    table = report.markdown(result, bandwidth)
    text = f"{table}\n\n{about['machine']}, {about['threads']} threads; {about['versions']}; {about['date']}"
    print(text)
    if args.json is not None:
        document = {**about, "model": model, "draft": draft, "bytes_per_second": bandwidth, **result.as_dict()}
        write_whole(args.json, json.dumps(document, indent=1) + "\n")
    if args.markdown is not None:
        write_whole(args.markdown, text + "\n")
    if args.plot is not None:
        report.plot(args.plot, [(Path(model).name, result)])
    return 0


def _pair(args: argparse.Namespace) -> tuple[str, str]:
    resolve_pair(args)
    if args.draft_model_path is None:
        raise ValueError("give both a target and a head (-m and -md, -hf and -hfd), or neither for the bundled pair")
    return args.model, args.draft_model_path


def _texts(paths: list[Path]) -> list[str]:
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


def _check_extra() -> None:
    with extra("bench"):
        import gguf  # noqa: F401
        import tqdm  # noqa: F401
