"""Run several prompts at once, as a server does: tokens/s by the number of sequences, against llama-server.

The bundled pair, inflated to 16 layers of width 2048 (`inflate`). `n_parallel` prompts of some 190 tokens arrive at
once, and when all are done the next ones: at our `generate_batch`, and at llama-server with as many slots and clients,
each on a connection of its own over loopback. All sides have the same threads, batch sizes, positions per prompt and
setting of flash attention, and take turns. There are two figures of each run: all tokens over all time, and the tokens
while all generated, from the last prompt's first token to the first text's end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import common
from comparison import peer_tools, report
from comparison.load import Load, load_own
from comparison.runs import Peer, load
from comparison.server import N_BATCH, Server
from comparison.synthetic import SyntheticAcceptance, rates_of
from inflate import inflated_pair
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.cli.bench import numbers
from llama_cpp_eagle3.files.cache_dir import cache_dir

PLAIN, AUTO, SERVER, DRAFTED = "plain", "auto", "llama-server plain", "llama-server draft-eagle3"
SIDES = (PLAIN, AUTO, SERVER, DRAFTED)
RATIOS = ((PLAIN, SERVER), (AUTO, PLAIN), (AUTO, SERVER), (AUTO, DRAFTED))
HEADS = ("Q8_0", "Q4_0", "random")

Side = Callable[[Sequence[Sequence[int]], int], Load]
"""(prompts, tokens for each) -> figures."""


@dataclass
class Point:
    """Figures with one number of prompts at once."""

    n_parallel: int
    n_prompts: int
    n_max: int
    """The --spec-draft-n-max at which llama-server was fastest."""
    sweep: dict[int, Load]
    """Figures by --spec-draft-n-max."""
    runs: dict[str, list[Load]]
    """Runs by side."""

    def speed(self, side: str, with_prompts: bool) -> list[float]:
        """Return the tokens/s of every run."""
        loads = self.runs[side]
        return [load.tokens_per_second if with_prompts else load.tokens_per_second_decoding for load in loads]

    def ratio(self, a: str, b: str, with_prompts: bool) -> Spread:
        """Return the ratios of runs next to each other."""
        pairs = zip(self.speed(a, with_prompts), self.speed(b, with_prompts), strict=True)
        return Spread.of(x / y for x, y in pairs)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        runs = {side: [asdict(load) for load in loads] for side, loads in self.runs.items()}
        return {**vars(self), "sweep": {n: asdict(found) for n, found in self.sweep.items()}, "runs": runs}

    @staticmethod
    def from_dict(saved: dict[str, Any]) -> Point:
        """Make a point from the result of `as_dict`."""
        sweep = {int(n): Load(**found) for n, found in saved["sweep"].items()}
        runs = {side: [Load(**load) for load in loads] for side, loads in saved["runs"].items()}
        return Point(**{**saved, "sweep": sweep, "runs": runs})


class Kept:
    """Points that are kept in a file while they are measured."""

    SETTINGS = (
        "head",
        "n_predict",
        "n_prompts",
        "ctx_size",
        "threads",
        "gpu_layers",
        "flash_attn",
        "cpu_time",
        "synthetic_acceptance",
    )

    def __init__(self, args: argparse.Namespace):
        self.path: Path | None = args.resume
        self.settings = {name: getattr(args, name) for name in self.SETTINGS}
        self.points: dict[int, Point] = {}
        if self.path is not None and self.path.exists():
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if saved["settings"] != self.settings:
                sys.exit(f"{self.path} has runs with other settings: {saved['settings']}, not {self.settings}")
            self.points = {point["n_parallel"]: Point.from_dict(point) for point in saved["points"]}

    def save(self) -> None:
        """Write the points that were measured so far."""
        if self.path is not None:
            points = [point.as_dict() for _, point in sorted(self.points.items())]
            self.path.write_text(json.dumps({"settings": self.settings, "points": points}), encoding="utf-8")


def own(args: argparse.Namespace, files: tuple[str, str], n_parallel: int, stack: ExitStack) -> dict[str, Eagle3Llama]:
    """Load our engine without and with the head."""
    found = {}
    for name, head in ((PLAIN, None), (AUTO, files[1])):
        llm = load(
            files[0],
            head,
            args.threads,
            args.gpu_layers,
            n_parallel * args.ctx_size,
            n_batch=N_BATCH,
            n_parallel=n_parallel,
            flash_attn=args.flash_attn == "on",
        )
        found[name] = stack.enter_context(closing(llm))
        llm.calibrate(seconds=10.0)
        if args.synthetic_acceptance:
            llm.engine.stepper.on_sample = SyntheticAcceptance(args.synthetic_acceptance, llm.n_vocab())
    return found


def measure(args: argparse.Namespace, files: tuple[str, str], n_parallel: int, kept: Kept) -> None:
    """Run all sides with this number of prompts at once, as often as runs are missing."""
    known = kept.points.get(n_parallel)
    if known is not None and len(known.runs[DRAFTED]) >= args.runs:
        return
    with ExitStack() as stack:

        def start(n_max: int) -> Side:
            tools = peer_tools.get_tools(args.tools)
            other = Peer(tools, None, *files, args.threads, args.gpu_layers, args.ctx_size)
            rates = args.synthetic_acceptance if n_max else None
            server = stack.enter_context(
                Server(other, n_max, synthetic=rates, n_parallel=n_parallel, flash_attn=args.flash_attn)
            )
            return partial(server.run_many, clock=server.process_time if args.cpu_time else perf_counter)

        def show(what: str) -> None:
            common.progress(f"{n_parallel} at once: {what}")

        def warm_up(name: str, side: Side) -> None:
            show(f"warming up {name}")
            side(prompts[:1], 8)

        engines = own(args, files, n_parallel, stack)
        texts = common.prompts(args) if args.n_prompts else common.prompts(args)[: max(4, n_parallel)]
        prompts = [engines[PLAIN].tokenize(text.encode(), special=True) for text in texts]
        drafting = {n: start(n) for n in (args.n_max if known is None else [known.n_max])}
        for n, side in drafting.items():
            warm_up(f"n_max {n}", side)
        if known is None:
            sweep = {}
            for n, side in drafting.items():
                show(f"n_max {n}")
                sweep[n] = side(prompts, args.n_predict)
            best = max(sweep, key=lambda n: sweep[n].tokens_per_second)
            known = kept.points[n_parallel] = Point(n_parallel, len(prompts), best, sweep, {name: [] for name in SIDES})
        clock = process_time if args.cpu_time else perf_counter
        sides: dict[str, Side] = {name: partial(load_own, llm, clock=clock) for name, llm in engines.items()}
        sides |= {SERVER: start(0), DRAFTED: drafting[known.n_max]}
        for name, side in sides.items():
            warm_up(name, side)
        for i in range(len(known.runs[DRAFTED]), args.runs):
            found = {}
            for k in range(len(SIDES)):
                name = SIDES[(k + i) % len(SIDES)]
                show(f"run {i + 1} of {args.runs}, {name}")
                found[name] = sides[name](prompts, args.n_predict)
            for name, load_found in found.items():
                known.runs[name].append(load_found)
            kept.save()


def speeds(points: Sequence[Point], with_prompts: bool) -> str:
    """Return the table of all sides' tokens/s."""
    rows = [
        [str(p.n_parallel), str(p.n_prompts), *(Spread.of(p.speed(side, with_prompts)).text(1) for side in SIDES)]
        for p in points
    ]
    return table(["at once", "prompts", *SIDES], rows)


def ratios(points: Sequence[Point], with_prompts: bool) -> str:
    """Return the table that compares sides run by run."""
    rows = [[str(p.n_parallel), *(p.ratio(a, b, with_prompts).text(2) for a, b in RATIOS)] for p in points]
    return table(["at once", *(f"{a} / {b}" for a, b in RATIOS)], rows)


def acceptance(points: Sequence[Point]) -> str:
    """Return the table of acceptance, and of llama-server's speed by n_max."""
    n_maxes = list(points[0].sweep)
    rows = []
    for p in points:
        lengths = [f"{Spread.of(b.acceptance_length for b in p.runs[side]).median:.2f}" for side in (AUTO, DRAFTED)]
        swept = [f"{p.sweep[n].tokens_per_second:.1f}" for n in n_maxes]
        rows.append([str(p.n_parallel), *lengths, str(p.n_max), *swept])
    head = ["at once", f"acceptance length, {AUTO}", DRAFTED, "its n_max", *(f"tokens/s, n_max {n}" for n in n_maxes)]
    return table(head, rows)


def main() -> None:
    p = common.parser(__doc__, runs=3)
    p.set_defaults(n_predict=48)
    p.add_argument("--n-parallel", type=numbers, default=[1, 2, 4, 8, 16], metavar="N,...", help="prompts at once")
    p.add_argument(
        "--n-max", type=numbers, default=[1, 2, 3, 4], metavar="N,...", help="of llama-server: the best is taken"
    )
    p.add_argument("--head", choices=HEADS, default="Q8_0", help="type of the head, or one of Q8_0 that knows nothing")
    p.add_argument("--flash-attn", choices=("on", "off"), default="off", help="on all sides")
    p.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the processor's time instead of the wall's: with one thread, what else runs does not matter",
    )
    p.add_argument("--resume", type=Path, metavar="FILE", help="keep runs here as they come; those in it count")
    p.add_argument(
        "--synthetic-acceptance", type=rates_of, metavar="P,...", help="accept by fixed odds, as `bench` does"
    )
    p.add_argument("--folder", type=Path, default=cache_dir() / "inflated", help="for the model files")
    args = p.parse_args()
    files = common.pair(args) if args.model else inflated_files(args)
    kept = Kept(args)
    for n in args.n_parallel:
        measure(args, files, n, kept)
    points = [kept.points[n] for n in args.n_parallel]
    name = f"load-{args.head}"
    texts = [
        f"Tokens/s, the time for the prompts included:\n\n{speeds(points, True)}",
        ratios(points, True),
        f"While all generate:\n\n{speeds(points, False)}",
        ratios(points, False),
        acceptance(points),
        f"{args.n_predict} tokens for each prompt, greedy; medians of {args.runs} interleaved runs (lowest - highest), "
        f"ratios run by run. Flash attention {args.flash_attn}, {args.ctx_size} positions for each prompt, batches of "
        f"{N_BATCH}. llama-server's n_max is the one that was fastest in one run before."
        + (" Times are of the processor, not of the wall." if args.cpu_time else ""),
    ]
    if args.publish:
        panels = [
            (title, {side: [(p.n_parallel, Spread.of(p.speed(side, included))) for p in points] for side in SIDES})
            for title, included in (("prompts included", True), ("while all generate", False))
        ]
        report.plot_lines(common.HERE / "results" / f"{name}.svg", panels, "prompts at once")
        texts.append(f"![tokens per second]({name}.svg)")
    what = "a 1B model in Q4_0" if not args.model else Path(args.model).name
    title = f"Several prompts at once: {what}, head {args.head if not args.model else Path(args.model_draft).name}"
    if args.synthetic_acceptance:
        title += f", SYNTHETIC ACCEPTANCE {args.synthetic_acceptance}"
    data: dict[str, object] = {"points": [point.as_dict() for point in points]}
    common.finish(args, common.Section("load", title, "\n\n".join(texts), data, name), files)


def inflated_files(args: argparse.Namespace) -> tuple[str, str]:
    """Return the target, and the head that was asked for."""
    is_random = args.head == "random"
    target, head = inflated_pair(args.folder, "1B", "Q4_0", "Q8_0" if is_random else args.head, is_random)
    return str(target), str(head)


if __name__ == "__main__":
    main()
