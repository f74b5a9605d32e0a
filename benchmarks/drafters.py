"""Compare drafters of each kind for a 1B target: with llama-server's, with useless ones, and with many sequences.

    python benchmarks/drafters.py mtp                     # or simple, hybrid, dflash
    python benchmarks/drafters.py mtp --sequences 4

All targets compute what the bundled one computes, enlarged to 1B parameters in Q4_0.

- simple: a small model, which is the same network at a sixteenth of the cost.
- mtp: the target as MiMo2, with a trained block in its file. hybrid: as Qwen3.5, with recurrent layers between.
- dflash: a trained block drafter of two layers.

The last three need `train_toys.py` once. The blocks of a useless drafter's matrices are shuffled. All times are
processor times of the process, with one thread, so that other programs disturb them less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

import common
from comparison import peer_tools
from comparison.load import Load, load_own
from comparison.runs import Peer, load
from comparison.server import Server
from inflate import inflate, inflated_pair, quantize_target
from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3.bench.report import table
from llama_cpp_eagle3.files.cache_dir import cache_dir
from random_model import SHAPES, Shape
from toys.files import write_dflash, write_hybrid, write_mimo, write_useless

N_PROMPT = 32
SIDES = ["auto", "chain", "llama-server", "useless"]
SMALL = Shape(12, 512, 1024, 8, 4, 32000, 1024, 8000)
KINDS = {
    "simple": "A small model as the drafter",
    "mtp": "A block for multi-token prediction",
    "hybrid": "A block for multi-token prediction of a hybrid target",
    "dflash": "A block drafter (DFlash)",
}
Side = Callable[[], Load]


@dataclass(frozen=True)
class Files:
    """A target with a drafter and a useless drafter. If the target's own file drafts, no drafter is named."""

    source: str
    target: Path
    draft: Path | None
    poor_target: Path
    poor_draft: Path | None


def files_of(kind: str, folder: Path) -> Files:
    """Return the files of a kind in `folder`; existing files are used again."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = cache_dir() / "toys"
    paths = folder / f"pystdlib-1B-{kind}-Q4_0.gguf", folder / f"pystdlib-1B-{kind}-useless-Q4_0.gguf"
    target = folder / "pystdlib-1B-Q4_0.gguf"
    if kind in ("simple", "dflash") and not target.exists():
        inflated_pair(folder, "1B", "Q4_0")
    if not paths[0].exists():
        if kind == "simple":
            write_small(paths[0])
        elif kind == "dflash":
            write_dflash(trained, paths[0], SHAPES["1B"])
        elif kind == "mtp":
            write_mimo(trained, paths[0], SHAPES["1B"])
        else:
            write_hybrid(trained, paths[0])
    if kind in ("simple", "dflash"):
        if not paths[1].exists():
            write_useless(*paths)
        return Files(kind, target, paths[0], target, paths[1])
    if not paths[1].exists():
        write_useless(*paths, f"blk.{SHAPES['1B'].n_layer}.")
    return Files("mtp", paths[0], None, paths[1], None)


def write_small(path: Path) -> None:
    """Write the small model."""
    with TemporaryDirectory() as temporary:
        model, head = Path(temporary, "model.gguf"), Path(temporary, "head.gguf")
        inflate(*models.bundled_pair(), SMALL, model, head)
        quantize_target(model, path, "Q4_0", 1)


def drafting(llm: Eagle3Llama, prompts: list[list[int]], n: int, draft: str, n_max: int | None = None) -> Side:
    """Return a side: our engine with a setting."""

    def run() -> Load:
        llm.draft = draft
        if n_max is not None:
            llm.draft_n_max = n_max
        return load_own(llm, prompts, n, process_time)

    return run


def take_turns(sides: dict[str, Side], n_runs: int, title: str) -> dict[str, list[Load]]:
    """Run all sides in turn; a first run warms up and does not count."""
    found: dict[str, list[Load]] = {name: [] for name in sides}
    for i in range(n_runs + 1):
        for name, side in sides.items():
            common.progress(f"{title}: {name}, run {i}")
            load = side()
            if i:
                found[name].append(load)
    return found


def rows_of(found: dict[str, list[Load]], plain: str = "plain") -> list[list[str]]:
    """Return the medians, and the median ratio to plain decoding in the same run."""
    rows = []
    for name, loads in found.items():
        ratio = median(
            x.tokens_per_second_decoding / y.tokens_per_second_decoding
            for x, y in zip(loads, found[plain], strict=True)
        )
        drafted, accepted = sum(x.drafted for x in loads), sum(x.accepted for x in loads)
        rate = f"{100 * accepted / drafted:.1f} %" if drafted else "-"
        speed = median(x.tokens_per_second_decoding for x in loads)
        rows.append([name, f"{speed:.1f}", f"{ratio:.2f}", str(drafted), rate])
    return rows


def load_sides(stack: ExitStack, args: argparse.Namespace, files: Files) -> tuple[dict[str, Side], int]:
    """Load the models; return the sides, and the number of prompts."""
    n_seq = args.sequences
    options = {"n_ctx": n_seq * args.ctx_size, "n_parallel": n_seq}

    def loaded(target: Path, draft: Path | None, sources: tuple[str, ...]) -> Eagle3Llama:
        path = None if draft is None else str(draft)
        more: dict[str, object] = {"draft": "auto"} if sources else {}
        return stack.enter_context(load(str(target), path, args.threads, draft_sources=sources, **options, **more))

    plain = loaded(files.target, None, ())
    ours = loaded(files.target, files.draft, (files.source,))
    poor = loaded(files.poor_target, files.poor_draft, (files.source,)) if "useless" in args.sides else plain
    prompts = [plain.tokenize(text.encode())[:N_PROMPT] for text in common.prompts(args)]
    if n_seq > 1:
        prompts = (prompts * n_seq)[:n_seq]
    n, n_auto = args.n_predict, ours.draft_n_max
    sides = {"plain": drafting(plain, prompts, n, "auto"), "auto": drafting(ours, prompts, n, "auto", n_auto)}
    for n_max in args.n_max if n_seq == 1 else ():
        sides[f"chain {n_max}"] = drafting(ours, prompts, n, "chain", n_max)
        if "llama-server" in args.sides:
            tools, draft = peer_tools.get_tools(args.tools), str(files.draft or files.target)
            other = Peer(tools, None, str(files.target), draft, args.threads, n_ctx=args.ctx_size)
            server = stack.enter_context(Server(other, n_max))
            sides[f"llama-server {n_max}"] = lambda server=server: server.run_many(prompts, n, server.process_time)
    sides["auto, useless"] = drafting(poor, prompts, n, "auto")
    names = {"auto, useless": "useless", "auto": "auto"}
    sides = {k: v for k, v in sides.items() if k == "plain" or names.get(k, k.split()[0]) in args.sides}
    return sides, len(prompts)


def main() -> None:
    p = common.parser(__doc__, runs=3)
    p.set_defaults(n_predict=48, n_prompts=3, threads=1, ctx_size=512)
    p.add_argument("kind", choices=KINDS)
    p.add_argument("--n-max", type=int, nargs="+", default=[2, 4], help="of llama-server, and of our fixed chains")
    p.add_argument("--sequences", type=int, default=1, help="so many at once; more than one without llama-server")
    p.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="beside plain decoding")
    args = p.parse_args()
    n_seq = args.sequences
    files = files_of(args.kind, cache_dir() / "inflated")
    found: dict[str, list[Load]] = {}
    # with many sequences, copies of one model in one process differ by several percent, more than the measured effect
    n_loads, n_runs = (args.runs, 1) if n_seq > 1 else (1, args.runs)
    for _ in range(n_loads):
        with ExitStack() as stack:
            sides, n_prompts = load_sides(stack, args, files)
            for name, loads in take_turns(sides, n_runs, f"{args.kind}, {n_seq} sequences").items():
                found.setdefault(name, []).extend(loads)
    text = (
        f"{table(['side', 'tokens/s', 'of plain', 'drafted', 'accepted'], rows_of(found))}\n\n"
        f"Tokens per second of processor time while all of {n_seq} sequences generate; medians of {args.runs} runs "
        f"in which the sides took turns, {'each with newly loaded models, ' if n_seq > 1 else ''}ratios within a run. "
        f"{n_prompts} prompts of up to {N_PROMPT} tokens, {args.n_predict} tokens each; n-grams do not draft."
    )
    data = {"runs": {name: [vars(x) for x in loads] for name, loads in found.items()}}
    variant = f"drafters-{args.kind}" + (f"-{n_seq}" if n_seq > 1 else "")
    title = KINDS[args.kind] + (f", {n_seq} sequences" if n_seq > 1 else "")
    used = dict.fromkeys([str(files.target), str(files.draft or files.target)])
    common.finish(args, common.Section("drafters", title, text, data, variant), list(used))


if __name__ == "__main__":
    main()
