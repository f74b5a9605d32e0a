"""Compare our speed with llama.cpp's own drafter and with no drafter, on real text at the cost of a 1B model.

The bundled pair, inflated to 16 layers of width 2048 (`inflate`): same text, same acceptance.

Each part keeps its figures in results/speed/, and runs again only if they are missing or were taken with other
settings, so that an interrupted call can be continued. Nothing else should run meanwhile; all parts take over an hour
on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import common
from comparison import peer_tools, peers, report
from comparison.bandwidth import read_bandwidth
from comparison.measure import Config, Result, Side, measure
from comparison.runs import load, n_cores, run_own, total
from inflate import inflated_pair
from llama_cpp_eagle3 import Eagle3Llama, models
from llama_cpp_eagle3.bench import provenance
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.engine import SamplerChain, Sampling
from llama_cpp_eagle3.files.cache_dir import cache_dir
from random_model import Shape, write_target

BEST = "best"
"""A name in a list of settings: the n_max at which llama.cpp was fastest in the part `peers`."""
CHAINS = [f"chain {n}" for n in range(1, 9)]
TREES = ["tree 3x2:6", "tree 4x3:8", "tree 5x4:16"]
SWEEP = ["plain", "auto", *CHAINS, *TREES]
HEAD_GOALS = {"Q4_0": "1.3", "Q8_0": "1.4", "F16": "1.5"}
"""Goals relative to llama-server at its best n_max, by the type of the head's file."""


@dataclass(frozen=True)
class Part:
    """Sides that take turns on one pair."""

    title: str
    ftype: str
    settings: tuple[str, ...]
    n_prompts: int
    n_predict: int
    n_runs: int
    random_head: bool = False
    head_type: str = "Q8_0"

    def quick(self) -> Part:
        """Return a short version, to see whether the part works."""
        return replace(self, n_prompts=2, n_predict=24, n_runs=2)

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Return the target and the head, written if they are missing."""
        return inflated_pair(folder, "1B", self.ftype, self.head_type, self.random_head)


PARTS = {
    "peers": Part(
        "llama.cpp's draft-eagle3, Q4_0 target, --spec-draft-n-max 1 to 8",
        "Q4_0",
        tuple(f"server {n}" for n in range(1, 9)),
        4,
        32,
        2,
    ),
    "Q4_0": Part("Q4_0 target: against plain decoding and llama.cpp", "Q4_0", ("plain", "auto", BEST), 20, 48, 3),
    "F16": Part("F16 target: against plain decoding", "F16", ("plain", "auto"), 12, 32, 5),
    "Q8_0": Part("Q8_0 target: against plain decoding", "Q8_0", ("plain", "auto"), 12, 32, 5),
    "random": Part("A head that knows nothing, Q4_0 target", "Q4_0", ("plain", "auto", BEST), 4, 48, 5, True),
    "sweep-Q4_0": Part("Every fixed setting against auto, Q4_0 target", "Q4_0", tuple(SWEEP), 3, 32, 3),
    "sweep-F16": Part("Every fixed setting against auto, F16 target", "F16", tuple(SWEEP), 3, 32, 3),
    "sweep-Q8_0": Part("Every fixed setting against auto, Q8_0 target", "Q8_0", tuple(SWEEP), 3, 32, 3),
    **{
        f"head-{head_type}": Part(
            f"{head_type} head, Q4_0 target: against llama.cpp at its best n_max",
            "Q4_0",
            ("auto", "server 1", "server 3", "server 4"),
            9,
            48,
            3,
            head_type=head_type,
        )
        for head_type in HEAD_GOALS
    },
    "simple": Part("llama.cpp's two programs, Q4_0 target", "Q4_0", ("auto", BEST, f"simple {BEST}"), 3, 32, 2),
}
PASSES, ALONE, SAMPLING = "passes", "alone", "sampling"
_N_VOCAB, _N_ROWS, _N_STEPS = 128_000, 4, 200
_N_PASS_ROWS, _N_PAST, _N_TIMES = 9, 200, 7
_N_MAX_ALONE = 3
TYPES = ("Q4_0", "F16", "Q8_0")


def run_part(name: str, part: Part, args: argparse.Namespace) -> Result:
    """Return the part's figures: saved ones, or new ones."""
    path = args.results / f"{name}.json"
    settings = [peers.parse(setting) for setting in _resolve(part.settings, args.results)]
    wanted = {**asdict(part), "settings": [s.name for s in settings], "threads": args.threads}
    kept = _read(path, wanted)
    if kept is not None and not args.again:
        return Result.from_dict(kept)
    model, draft = part.files(args.folder)
    config = Config(
        model=str(model),
        draft=str(draft),
        settings=settings,
        texts=models.heldout_prompts()[: part.n_prompts],
        n_predict=part.n_predict,
        n_runs=part.n_runs,
        n_fresh=4 if len(settings) <= 4 else 1,
        n_threads=args.threads,
        tools=args.tools,
    )
    start = time.monotonic()
    result = measure(config, lambda text: common.progress(f"{name}: {text}"))
    common.progress("")
    print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    _write(path, wanted, args, result.as_dict())
    return result


def _resolve(names: tuple[str, ...], results: Path) -> list[str]:
    """Return the names with llama.cpp's best n_max filled in."""
    if not any(BEST in name for name in names):
        return list(names)
    path = results / "peers.json"
    if not path.exists():
        sys.exit("run the part 'peers' first: it tells at which n_max llama.cpp is fastest")
    peers = Result.from_dict(json.loads(path.read_text()))
    n_max = max(peers.sides, key=lambda side: side.speed.median).setting.n_max
    return [f"server {n_max}" if name == BEST else name.replace(BEST, str(n_max)) for name in names]


def run_passes(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the seconds of one pass of each target over 1 to 9 rows, measured alone."""
    path = args.results / f"{PASSES}.json"
    wanted = {"n_rows": _N_PASS_ROWS, "n_past": _N_PAST, "n_times": _N_TIMES, "threads": args.threads}
    kept = _read(path, wanted)
    if kept is not None and not args.again:
        return kept["passes"]
    found: dict[str, dict[str, float]] = {}
    for ftype in TYPES:
        common.progress(f"{PASSES}: {ftype}")
        model, _ = inflated_pair(args.folder, "1B", ftype)
        llm = load(str(model), None, args.threads)
        llm.eval([2 + i % 100 for i in range(_N_PAST)])
        found[ftype] = {}
        for n in range(1, _N_PASS_ROWS + 1):
            times = [_pass(llm, n, _N_PAST) for _ in range(_N_TIMES)]
            found[ftype][str(n)] = Spread.of(times).median
        llm.close()
    _write(path, wanted, args, {"passes": found})
    return found


def run_alone(args: argparse.Namespace) -> dict[str, list[float]]:
    """Return tokens/s of a chain over mean acceptance length / (T(n) + drafter's ggml time), with T(n) measured alone.

    Texts and passes take turns: from minute to minute a shared machine's speed changes by more than the measured
    effect.
    """
    path = args.results / f"{ALONE}.json"
    n_max, n_texts, n_predict, n_runs = _N_MAX_ALONE, 3, 32, 5
    wanted = {"n_max": n_max, "n_texts": n_texts, "n_predict": n_predict, "n_runs": n_runs, "threads": args.threads}
    kept = _read(path, wanted)
    if kept is not None and not args.again:
        return kept["shares"]
    found: dict[str, list[float]] = {}
    for ftype in TYPES:
        common.progress(f"{ALONE}: {ftype}")
        model, draft = inflated_pair(args.folder, "1B", ftype, "Q8_0")
        llm = load(str(model), str(draft), args.threads, draft="chain", draft_n_max=n_max)
        prompts = [llm.tokenize(text.encode(), special=True) for text in models.heldout_prompts()[:n_texts]]
        found[ftype] = []
        for i in range(n_runs + 1):
            runs, times = [], []
            for prompt in prompts:
                runs.append(run_own(llm, prompt, n_predict)[0])
                times += [_pass(llm, n_max + 1, llm.n_tokens) for _ in range(_N_TIMES)]
            run = total(runs)
            ideal = run.acceptance_length / (Spread.of(times).median + run.t_graph / run.steps)
            if i > 0:  # the first run warms up
                found[ftype].append(run.tokens_per_second / ideal)
        llm.close()
    _write(path, wanted, args, {"shares": found})
    return found


def _pass(llm: Eagle3Llama, n: int, n_past: int) -> float:
    start = time.perf_counter()
    llm.target.decode([3] * n, n_past)
    llm.target.logits(n - 1)  # the logits are there when the pass has ended
    duration = time.perf_counter() - start
    llm.target.truncate(n_past)
    return duration


def run_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of sampling a step's rows, greedily and by llama.cpp's default chain."""
    path = args.results / f"{SAMPLING}.json"
    wanted = {"n_vocab": _N_VOCAB, "n_rows": _N_ROWS, "n_steps": _N_STEPS, "threads": args.threads}
    kept = _read(path, wanted)
    if kept is not None and not args.again:
        return kept
    model = args.folder / f"random-vocab-{_N_VOCAB}.gguf"
    if not model.exists():
        args.folder.mkdir(parents=True, exist_ok=True)
        write_target(model, Shape(2, 64, 64, 2, 2, _N_VOCAB, 64, 64), "Q8_0")
    llm = Eagle3Llama(str(model), n_ctx=64, n_threads=args.threads, draft_sources=(), verbose=False)
    found: dict[str, Any] = {}
    for name, options in (("greedy", {"temperature": 0.0}), ("default chain", {})):
        found[name] = asdict(Spread.of(_sample_steps(llm, options)))
    llm.close()
    _write(path, wanted, args, found)
    return found


def _sample_steps(llm: Eagle3Llama, options: dict[str, float]) -> list[float]:
    """Return the seconds of each step's sampling, done as `generate` does it."""
    chain = SamplerChain(Sampling(**options), llm.engine.vocab, llm.engine.n_ctx)
    llm.target.truncate(0)
    llm.target.decode(list(range(_N_ROWS)), 0)
    times = []
    for _ in range(_N_STEPS):
        start = time.perf_counter()
        for row in range(_N_ROWS):
            chain.draw(llm.target, row, ())
        times.append(time.perf_counter() - start)
    return times


def _read(path: Path, wanted: dict[str, Any]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    return kept if kept["part"] == json.loads(json.dumps(wanted)) else None


def _write(path: Path, wanted: dict[str, Any], args: argparse.Namespace, figures: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"part": wanted, **provenance.describe(args.threads), **figures}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(path)


def goals(results: dict[str, Result], alone: dict[str, list[float]] | None, sampling: dict[str, Any] | None) -> str:
    """Return the table of goals and figures."""
    rows: list[list[str]] = []

    def compare(what: str, goal: str, part: str, other: Side | None) -> None:
        if other is not None:
            pairs = zip(results[part].side("auto").runs, other.runs, strict=True)
            rows.append([what, goal, Spread.of(a.tokens_per_second / b.tokens_per_second for a, b in pairs).text(2)])

    if "Q4_0" in results:
        rival = _rival(results["Q4_0"])
        compare(f"auto / {rival.setting.title}, Q4_0", "at least 1.25", "Q4_0", rival)
    for ftype, goal in (("Q4_0", "1.4"), ("F16", "1.6"), ("Q8_0", "0.97")):
        if ftype in results:
            compare(f"auto / plain, {ftype}", f"at least {goal}", ftype, results[ftype].plain)
    if "random" in results:
        result = results["random"]
        compare("auto / plain, a head that knows nothing, Q4_0", "at least 0.97", "random", result.plain)
        rival, plain = _rival(result), result.side("plain")
        share = rival.speed.median / plain.speed.median
        rows.append([f"{rival.setting.title} / plain, the same head", "(theirs)", f"{share:.2f}"])
    for head_type, goal in HEAD_GOALS.items():
        if f"head-{head_type}" in results:
            rival = _rival(results[f"head-{head_type}"])
            what = f"auto / {rival.setting.title}, Q4_0 with a {head_type} head"
            compare(what, f"at least {goal}", f"head-{head_type}", rival)
    for ftype in TYPES:
        sweep = results.get(f"sweep-{ftype}")
        if sweep is not None:
            fixed = (side for side in sweep.sides if side.setting.kind != "auto")
            best = max(fixed, key=lambda side: side.speed.median)
            what = f"auto / best fixed setting ({best.setting.title}), {ftype}"
            compare(what, "at least 0.97", f"sweep-{ftype}", best)
    for ftype in TYPES:
        if ftype in results:
            share = results[ftype].side("auto").spread(lambda run: run.ideal_share)
            rows.append([f"auto / ideal, {ftype}", "at least 0.95", share.text(3)])
        if alone is not None:
            text = Spread.of(alone[ftype]).text(3)
            rows.append([f"chain {_N_MAX_ALONE} / ideal by passes measured alone, {ftype}", "at least 0.95", text])
    if sampling is not None:
        for name, goal in (("greedy", 0.15), ("default chain", 1.5)):
            text = Spread(**sampling[name]).text(3, 1e-3)
            rows.append([f"sampling {_N_ROWS} rows of {_N_VOCAB:,} tokens, {name}, ms", f"at most {goal}", text])
    return table(["", "goal", "measured"], rows)


def _rival(result: Result) -> Side:
    """Return llama.cpp's side at its best."""
    rivals = (side for side in result.sides if isinstance(side.setting, peers.PeerSetting))
    return max(rivals, key=lambda side: side.speed.median)


def pass_table(passes: dict[str, dict[str, float]]) -> str:
    """Return the table of T(n)."""
    rows = [[ftype, *(f"{1e3 * t:.1f}" for t in times.values())] for ftype, times in passes.items()]
    return table(["rows", *map(str, range(1, _N_PASS_ROWS + 1))], rows)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("parts", nargs="*", help=f"of {', '.join([PASSES, *PARTS, ALONE, SAMPLING])} (default: all)")
    p.add_argument("-t", "--threads", type=int, default=n_cores())
    p.add_argument("--folder", type=Path, default=cache_dir() / "inflated", help="for the model files")
    p.add_argument("--tools", help=f"folder of llama.cpp's tools (or {peer_tools.ENV_TOOLS}; default: build them)")
    p.add_argument("--again", action="store_true", help="also what is there already")
    p.add_argument("--quick", action="store_true", help="very few tokens, and results that are not kept")
    p.add_argument("--publish", action="store_true", help="write the figures to results/ and draw speed.svg")
    args = p.parse_args()
    unknown = set(args.parts) - {*PARTS, PASSES, ALONE, SAMPLING}
    if unknown:
        p.error(f"no part {', '.join(sorted(unknown))}")
    wanted = args.parts or [PASSES, *PARTS, ALONE, SAMPLING]
    args.results = args.folder / "quick" if args.quick else common.HERE / "results" / "speed"
    args.publish = args.publish and not args.quick
    parts = {name: part.quick() if args.quick else part for name, part in PARTS.items() if name in wanted}

    bandwidth = read_bandwidth(args.threads)
    passes = run_passes(args) if PASSES in wanted else None
    results = {name: run_part(name, part, args) for name, part in parts.items()}
    alone = run_alone(args) if ALONE in wanted else None
    sampling = run_sampling(args) if SAMPLING in wanted else None
    text = [__doc__.split("\n\n")[1], goals(results, alone, sampling)]
    if args.publish:
        plotted = [(PARTS[name].title, result) for name, result in results.items() if name not in ("peers", "simple")]
        if plotted:
            report.plot(common.HERE / "results" / "speed.svg", plotted)
            text.append("![tokens per second](speed.svg)")
    if passes is not None:
        text.append(f"### A pass of the target over n rows, ms\n\n{pass_table(passes)}")
    for name, result in results.items():
        text.append(f"### {PARTS[name].title}\n\n{report.markdown(result, bandwidth)}")
    files = {path for part in parts.values() for path in part.files(args.folder)}
    section = common.Section(
        "speed", "Real text at the cost of a 1B model", "\n\n".join(text), {"bandwidth": bandwidth}
    )
    common.finish(args, section, sorted(str(path) for path in files))


if __name__ == "__main__":
    main()
