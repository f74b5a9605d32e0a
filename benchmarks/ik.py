"""Time passes beside ik_llama.cpp, the fastest other engine on CPUs that we know.

    python benchmarks/ik.py [-m MODEL] [--rows 1,2,4,8,512] [--depth 6144] [--runs 3] [-t 2] [--publish]

Its llama-bench (built once from one commit, `comparison/ik_tools.py`) runs as it is, with weights repacked when they
are loaded, and with pages of 2 MiB too; flash attention and F16 K/V are on. Ours and ggml's passes of such sizes are
`depth.py`'s. All take turns, and the fastest of the runs counts. One row is the mean of 16 tokens, also after --depth.
"""

from __future__ import annotations

import argparse
import json
import subprocess

import common
from comparison.ik_tools import COMMIT, get_ik_tools
from comparison.runs import n_cores
from depth import DEFAULT_MODEL, measure
from llama_cpp_eagle3.bench.report import table
from passes import numbers

N_TOKENS = 16
SETTINGS = {"ik": [], "ik, repacked": ["-rtr", "1"], "ik, repacked, 2 MiB": ["-rtr", "1", "-thp", "1"]}

Passes = dict[tuple[int, int], dict[str, float]]
"""Milliseconds [depth, rows][side]."""


def run_llama_bench(path: str, args: argparse.Namespace, flags: list[str]) -> dict[tuple[int, int], float]:
    """Return milliseconds [depth, rows] of one run."""
    command = [str(get_ik_tools() / "llama-bench"), "-m", path, "-t", str(args.threads), "-fa", "1", "-r", "1", *flags]
    command += ["-p", ",".join(str(n) for n in args.rows if n > 1), "-n", str(N_TOKENS), "-o", "json"]
    command += ["-gp", f"{args.depth},{N_TOKENS}"] if args.depth else []
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    passes = {}
    for test in found:
        n_gen, ms = test["n_gen"], test["samples_ns"][0] / 1e6
        passes[test["n_prompt"] if n_gen else 0, 1 if n_gen else test["n_prompt"]] = ms / (n_gen or 1)
    return passes


def run_all(path: str, args: argparse.Namespace) -> Passes:
    """Return the fastest of each side's runs."""
    best: Passes = {}

    def add(of: dict[tuple[int, int], float], side: str) -> None:
        for key, ms in of.items():
            sides = best.setdefault(key, {})
            sides[side] = min(ms, sides.get(side, ms))

    llm = common.load_llama_cpp(path, n_ctx=64, n_threads=args.threads)
    for run in range(args.runs):
        for name, flags in SETTINGS.items():
            common.progress(f"run {run + 1} of {args.runs}: {name}")
            add(run_llama_bench(path, args, flags), name)
        for depth, rows in ((0, args.rows), *([(args.depth, [1])] if args.depth else [])):
            one = argparse.Namespace(depths=[depth], rows=rows, threads=args.threads, runs=3, runs_of_prompts=1)
            for key, sides in measure(llm, one, "f16", True).items():
                for side, ms in sides.items():
                    add({key: ms}, side)
    llm.close()
    return best


def main() -> None:
    """Print one table."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", default=DEFAULT_MODEL, help="a file, or a name of `models`")
    p.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 512], metavar="N,N,...", help="at most 512")
    p.add_argument("--depth", type=int, default=6144, help="tokens before the last row of the table; 0: none")
    p.add_argument("-t", "--threads", type=int, default=n_cores())
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--publish", action="store_true", help="write the figures to results/")
    args = p.parse_args()
    path = common.path_of(args.model)
    found = run_all(path, args)
    sides = [*SETTINGS, "ggml", "ours"]
    rows = [
        [depth, n, *(f"{of[side]:.1f}" for side in sides), f"{min(of[side] for side in SETTINGS) / of['ours']:.2f}"]
        for (depth, n), of in found.items()
    ]
    text = f"Milliseconds a pass, ik_llama.cpp at `{COMMIT[:8]}`.\n\n"
    text += table(["after", "rows", *sides, "ik's best / ours"], rows)
    data: dict[str, object] = {f"{depth},{n}": of for (depth, n), of in found.items()}
    common.finish(args, common.Section("ik", "Passes beside ik_llama.cpp", text, data), [path])


if __name__ == "__main__":
    main()
