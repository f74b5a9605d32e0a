"""Run `llama-cpp-eagle3 bench` with llama.cpp's own programs, recorded texts, acceptance by fixed odds, and plots.

    python benchmarks/compare.py -m TARGET -md HEAD --peer server

It takes the flags of `bench`, and compares trees and single drafters too. Without -m it is the bundled pair.
llama.cpp's programs are built once, in a few minutes (comparison/peer_tools.py).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from comparison import bandwidth, measure, peer_tools, peers, replay, report, settings, synthetic
from llama_cpp_eagle3.bench import provenance
from llama_cpp_eagle3.cli import bench
from llama_cpp_eagle3.cli.parser import Parser
from llama_cpp_eagle3.models import bundled_pair


def main(argv: list[str] | None = None) -> None:
    """Measure and print the table."""
    p = Parser("compare.py", description=__doc__)
    bench.add_arguments(p)
    settings.add_arguments(p)
    peers.add_arguments(p)
    p.add_argument(
        "--synthetic-acceptance",
        type=synthetic.rates_of,
        metavar="P,...",
        help="accept by fixed odds: entry i is the chance that the first i + 1 drafted tokens are all accepted",
    )
    p.add_argument(
        "--replay",
        metavar="FNAME",
        help='replay recorded texts: lines of {"prompt": TEXT, "answer": TEXT}; -n tokens at most',
    )
    p.add_argument("--tools", metavar="DIR", help=f"folder of llama.cpp's programs (or {peer_tools.ENV_TOOLS})")
    p.add_argument("--markdown", metavar="FNAME", help="write the table")
    p.add_argument("--plot", metavar="FNAME", help="draw it; .svg, .png, .pdf")
    args = p.parse_args(argv)
    if args.replay is not None and (args.file or args.synthetic_acceptance):
        raise ValueError("--replay takes the place of -f and --synthetic-acceptance: leave them out")
    if args.model is None and args.hf_repo is None:
        args.model, args.draft_model_path = map(str, bundled_pair())
    model, draft, texts, sources = bench.read(args)
    if draft is None:
        raise ValueError("other programs get the same drafter's file: give one with -md")
    config = measure.Config(
        model=model,
        draft=draft,
        settings=peers.from_arguments(args),
        sources=sources,
        texts=[] if args.replay is not None else texts,
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
    rate = bandwidth.read_bandwidth(args.n_threads) if args.n_gpu_layers == 0 else 0.0
    result = measure.measure(config, bench.show_progress)
    bench.show_progress("")
    about = provenance.describe(args.n_threads)
    text = f"{report.markdown(result, rate)}\n\n{provenance.line(about)}"
    print(text)
    if args.json is not None:
        document = {**about, "model": model, "draft": draft, "bytes_per_second": rate, **result.as_dict()}
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.markdown is not None:
        Path(args.markdown).write_text(text + "\n")
    if args.plot is not None:
        report.plot(args.plot, [(Path(model).name, result)])


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, ValueError, OSError) as e:
        sys.exit(f"compare.py: error: {e}")
