"""Measure the worth of each part of the planner: replay recorded acceptance at recorded costs, with parts switched off.

No model is loaded and no clock is read, so that the figures are the same on every machine with one compiler. The
planner's own sources are compiled into `planner/replay.cpp`, with two changes: their constants can be set, and each
mechanism in `planner_mechanisms.py` can be switched off. Needs a C++ compiler, `CXX` or `c++`.

The recordings are the head's drafts along texts (`replay/record.py`; of real work with real models
`replay/record_tasks.py`) and the times of passes on several machines. A scenario (`planner_scenarios.py`) is a machine,
a head, texts and a number of sequences; simulated passes vary, and the planner sees these times only. Each scenario
runs with several seeds, which order the texts and draw the noise. One decision of the gate moves a run by up to 35 %,
so versions are compared seed by seed, and differences have a standard error.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from planner_constants import CONSTANTS, table, titles
from planner_mechanisms import MECHANISMS, SWITCHES
from planner_scenarios import scenarios

HERE = Path(__file__).parent
SOURCES = HERE.parent / "csrc"
RESULTS = HERE / "results" / "planner.json"

_STEP_CONSTANTS = 5  # every fifth scenario is replayed for each constant, since each constant needs two runs
_SKIPPED = {"n_max", "n_depth", "n_common", "n_knots"}  # sizes of arrays, which are not varied
_FLOAT = re.compile(
    r"^(?P<static> +static )?constexpr (?P<type>float|int32_t) +(?P<name>\w+) *= (?P<value>[^;]+);", re.MULTILINE
)


def digest() -> str:
    """Return a hash of the planner's sources, without comments and spaces; published tables name it."""
    found = hashlib.sha256()
    for path in sorted(planner_sources()):
        code = re.sub(r"//[^\n]*|\s", "", path.read_text(encoding="utf-8"))
        found.update(f"{path.name} {code}\n".encode())
    return found.hexdigest()[:16]


def planner_sources() -> list[Path]:
    """Return the planner's files: all of csrc/policy except the drafting of fixed shapes."""
    return [path for path in SOURCES.glob("policy/*") if path.stem not in ("fixed", "policy")]


def sources(folder: Path) -> list[Path]:
    """Copy the sources to compile, with their constants made variable; return the .cpp files."""
    session = [SOURCES / "drafter" / name for name in ("draft_tree.h", "draft_session.h")]
    files = [*planner_sources(), *SOURCES.glob("drafters/ngram/*"), *session, SOURCES / "error.h"]
    for path in [*files, *SOURCES.glob("error.cpp")]:
        text = path.read_text(encoding="utf-8")
        if path.parent.name == "policy":
            for name, file, old, new in SWITCHES:
                if file == path.name:
                    if text.count(old) != 1:
                        sys.exit(f"{path}: expected once, for the switch {name!r}: {old}")
                    text = text.replace(old, re.sub(r"\bon\b", f'REPLAY_ENABLED("{name}")', new, count=1))

            def variable(match: re.Match[str], stem: str = path.stem) -> str:
                if match["name"] in _SKIPPED:
                    return match[0]
                kind = "inline static const" if match["static"] else "static const"
                value = f'static_cast<{match["type"]}>(replay::constant("{stem}.{match["name"]}", {match["value"]}))'
                return f"{kind} {match['type']} {match['name']} = {value};"

            text = '#include "constants.h"\n' + _FLOAT.sub(variable, text)
        to = folder / path.relative_to(SOURCES)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")
    return sorted(folder.rglob("*.cpp"))


def build(folder: Path) -> Path:
    """Compile the replay."""
    command = [*shlex.split(os.environ.get("CXX", "c++")), "-std=c++17", "-O2", f"-I{HERE / 'planner'}", f"-I{folder}"]
    units = [*sources(folder), HERE / "planner" / "replay.cpp"]
    objects = [folder / f"{i}.o" for i in range(len(units))]
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(
            lambda pair: subprocess.run([*command, "-c", str(pair[0]), "-o", str(pair[1])], check=True),
            zip(units, objects, strict=True),
        ):
            assert done.returncode == 0
    program = folder / "replay"
    subprocess.run([*command, *map(str, objects), "-o", str(program)], check=True)
    return program


def write_inputs(folder: Path, some: str, step: int = 1) -> list[tuple[str, str]]:
    """Write recordings and scenarios as replay.cpp reads them; return (group, name) of the scenarios.

    some: text in the group and name of the scenarios to take. step: take one in so many of them.
    """
    kinds: dict[str, list[int]] = {}
    words: list[str] = []
    lines = []
    for name in ("acceptance", "tasks"):
        with gzip.open(HERE / "replay" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            found = [json.loads(line) for line in file]
        lines += [{**line, "kind": f"tasks {line['kind']}"} for line in found] if name == "tasks" else found
    for i, line in enumerate(lines):
        kinds.setdefault(line["kind"], []).append(i)
        words.append(f"{line.get('draw', 0)} {line['n_prompt']} {len(line['tokens'])}")
        words.append(f"{len(line['levels'])} {len(line['astray'])}")
        words.append(" ".join(map(str, line["tokens"])))
        for levels in line["levels"]:
            words.append(str(len(levels)))
            for tokens, probs in levels:
                words.append(" ".join([str(len(tokens)), *(f"{t} {p}" for t, p in zip(tokens, probs, strict=True))]))
        words += [" ".join(map(str, [len(probs), *probs])) for probs in line["astray"]]
    (folder / "recordings").write_text("\n".join([str(len(lines)), *words]) + "\n", encoding="utf-8")
    found = [x for x in scenarios(kinds) if some in f"{x[0]}: {x[1]}"][::step]
    text = "".join(" ".join(f"{k}={v}" for k, v in values.items()) + "\n" for _, _, values in found)
    (folder / "scenarios").write_text(text, encoding="utf-8")
    return [(group, name) for group, name, _ in found]


Speeds = list[list[list[float]]]
"""Tokens per second: [scenario][side][seed]; the sides are the planner, or the planner, plain and an oracle."""


class Replay:
    """The compiled program and its inputs."""

    def __init__(self, folder: Path, n_seeds: int, some: str = "", step: int = 1):
        """some: text in the group and name of the scenarios to take. step: take one in so many of them."""
        self.folder, self.n_seeds, self.program = folder, n_seeds, build(folder)
        self.scenarios = write_inputs(folder, some, step)

    def constants(self) -> dict[str, float]:
        """Return the planner's constants, without the switches."""
        done = subprocess.run([str(self.program), "--constants"], check=True, capture_output=True, text=True)
        found = dict(line.split() for line in done.stdout.splitlines())
        switches = {name for name, *_ in SWITCHES}
        return {name: float(value) for name, value in found.items() if "." in name and name not in switches}

    def run(self, settings: Mapping[str, float], sides: bool = False) -> Speeds:
        """Replay with the given constants and switches."""
        env = os.environ | {"PLANNER": " ".join(f"{name}={value:.9g}" for name, value in settings.items())}
        if not sides:
            env["PLANNER_SIDES"] = "planner"
        command = [str(self.program), str(self.folder / "recordings"), str(self.folder / "scenarios")]
        done = subprocess.run([*command, str(self.n_seeds)], check=True, capture_output=True, text=True, env=env)
        lines = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
        return [[x[i : i + self.n_seeds] for i in range(0, len(x), self.n_seeds)] for x in lines]


def geometric(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


@dataclass(frozen=True)
class Loss:
    """By how much a version is slower, in percent, with the standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, before: Sequence[float], now: Sequence[float]) -> Loss:
        """Return the loss in one scenario, from the speeds of its seeds."""
        losses = [-100 * math.log(b / a) for a, b in zip(before, now, strict=True)]
        n = len(losses)
        return cls(statistics.fmean(losses), statistics.stdev(losses) / math.sqrt(n) if n > 1 else math.inf)

    @classmethod
    def over(cls, losses: Sequence[Loss]) -> Loss:
        """Return the mean over scenarios."""
        n = len(losses)
        return cls(sum(x.mean for x in losses) / n, math.sqrt(sum(x.error**2 for x in losses)) / n)

    @property
    def is_clear(self) -> bool:
        """Whether the loss is more than 1 % and unlikely by chance, among a hundred scenarios."""
        return self.mean > 1.0 and self.mean > 3.0 * self.error


@dataclass(frozen=True)
class Comparison:
    """Two versions of the planner."""

    all: Loss
    groups: dict[str, Loss]
    scenarios: dict[str, Loss]

    @classmethod
    def of(cls, names: Sequence[tuple[str, str]], before: Speeds, now: Speeds) -> Comparison:
        """Compare two replays. names: group and name of each scenario."""
        found = [Loss.of(a[0], b[0]) for a, b in zip(before, now, strict=True)]
        groups: dict[str, list[Loss]] = {}
        for (group, _), loss in zip(names, found, strict=True):
            groups.setdefault(group, []).append(loss)
        by_name = {f"{group}: {name}": loss for (group, name), loss in zip(names, found, strict=True)}
        return cls(Loss.over(found), {name: Loss.over(x) for name, x in groups.items()}, by_name)

    @property
    def is_worse(self) -> list[str]:
        """Return the scenarios that are clearly slower."""
        return [name for name, loss in self.scenarios.items() if loss.is_clear]

    @property
    def is_noise(self) -> bool:
        """Whether no group is slower by more than 1 %, and all together not by more than the standard error."""
        return self.all.mean < max(0.1, self.all.error) and all(x.mean <= 1.0 for x in self.groups.values())

    def as_dict(self) -> dict[str, object]:
        """Return the comparison as JSON values."""
        worst = max(self.scenarios, key=lambda name: self.scenarios[name].mean)
        return {
            "all": [round(self.all.mean, 2), round(self.all.error, 2)],
            "groups": {name: round(x.mean, 2) for name, x in self.groups.items()},
            "clearly slower scenarios": len(self.is_worse),
            "worst": [worst, round(self.scenarios[worst].mean, 1), round(self.scenarios[worst].error, 1)],
        }

    def line(self, title: str) -> str:
        """Return one row of a table."""
        groups = " ".join(f"{x.mean:6.2f}" for x in self.groups.values())
        sign = "noise" if self.is_noise else ""
        return f"{title:38} {self.all.mean:6.2f} ±{self.all.error:.2f} | {groups} | {len(self.is_worse):3} {sign}"


def shares(names: Sequence[tuple[str, str]], speeds: Speeds, other: int) -> dict[str, float]:
    """Return speeds relative to plain decoding (1) or the oracle (2), over all scenarios and by group."""
    found: dict[str, list[float]] = {"all": []}
    for (group, _), sides in zip(names, speeds, strict=True):
        ratio = geometric([a / b for a, b in zip(sides[0], sides[other], strict=True)])
        found["all"].append(ratio)
        found.setdefault(group, []).append(ratio)
    return {group: round(geometric(x), 4) for group, x in found.items()}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", type=int, default=5, help="runs of each scenario (default: 5)")
    p.add_argument("--scenarios", default="", metavar="TEXT", help="those whose group and name contain this")
    p.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="these constants or switches alone")
    p.add_argument("--constants", action="store_true", help="halve and double each constant, instead")
    p.add_argument("--only", default="", help="mechanisms and constants whose name contains this; - for none")
    p.add_argument("--save", type=Path, help="write the speeds of all scenarios and seeds")
    p.add_argument("--against", type=Path, help="what another version saved: what is slower or faster now")
    p.add_argument(
        "--publish",
        action="store_true",
        help="write results/planner.json and .md, with --constants planner_constants.md",
    )
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(Path(folder), args.seeds, args.scenarios, _STEP_CONSTANTS if args.constants else 1)
        full = replay.run(dict(_setting(s) for s in args.set), sides=True)
        plain, oracle = (shares(replay.scenarios, full, side) for side in (1, 2))
        print(f"{'':50} | " + " ".join(f"{group[:6]:>6}" for group in list(plain)[1:]))
        for what, found in (("speed / plain", plain), ("speed / oracle", oracle)):
            print(f"{what:38} {found['all']:6.3f}      | " + " ".join(f"{x:6.3f}" for x in list(found.values())[1:]))
        names = [f"{group}: {name}" for group, name in replay.scenarios]
        if args.save:
            args.save.write_text(json.dumps(dict(zip(names, full, strict=True))), encoding="utf-8")
        if args.against:
            show(replay.scenarios, json.loads(args.against.read_text(encoding="utf-8")), full)
        todo = {} if args.set else variants(replay, args)
        with ThreadPoolExecutor(2) as pool:
            losses = {}
            for title, speeds in zip(todo, pool.map(replay.run, todo.values()), strict=True):
                losses[title] = Comparison.of(replay.scenarios, full, speeds)
                print(losses[title].line(title), flush=True)
        if args.publish and args.constants:
            page = table(replay.constants(), losses, args.seeds, digest())
            RESULTS.with_name("planner_constants.md").write_text(page, encoding="utf-8")
        elif args.publish:
            result = {
                "seeds": args.seeds,
                "sources": digest(),
                "speed_over_plain": plain,
                "speed_over_oracle": oracle,
                "losses_in_percent": {title: x.as_dict() for title, x in losses.items()},
            }
            RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            RESULTS.with_suffix(".md").write_text(
                mechanisms_page(replay.scenarios, plain, oracle, losses, args.seeds), encoding="utf-8"
            )


def mechanisms_page(
    names: Sequence[tuple[str, str]],
    plain: Mapping[str, float],
    oracle: Mapping[str, float],
    losses: Mapping[str, Comparison],
    n_seeds: int,
) -> str:
    """Return the page on the planner's gain, and on the worth of each mechanism."""
    groups = [group for group, _ in names]
    lines = [
        "# What the planner's mechanisms are worth",
        "",
        f"`python benchmarks/planner.py --seeds {n_seeds} --publish`, {date.today()}: recorded acceptance at recorded "
        f"costs, nothing timed, of sources `{digest()}`, {len(names)} scenarios with {n_seeds} seeds each "
        "([planner.json](planner.json)).",
        "",
        "| scenarios | number | planner / plain | planner / oracle |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {groups.count(name) or len(names)} | {plain[name]:.3f} | {oracle[name]:.3f} |"
            for name in plain
        ),
        "",
        "Each mechanism switched off: slower by percent (± standard error, seed by seed), the group that loses most, "
        "and scenarios that are clearly slower (more than 1 % and three standard errors). What is within noise here "
        "stays for a case that no recording has and a test does.",
        "",
        "| without | all | the group that loses most | scenarios | |",
        "|---|---:|---|---:|---|",
    ]
    for title, x in losses.items():
        worst = max(x.groups, key=lambda name: x.groups[name].mean)
        lines.append(
            f"| `{title}` | {x.all.mean:.2f} ± {x.all.error:.2f} | {worst} {x.groups[worst].mean:.2f} | "
            f"{len(x.is_worse)} | {'within noise' if x.is_noise else ''} |"
        )
    return "\n".join(lines) + "\n"


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    return name, float(value)


def variants(replay: Replay, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return name -> settings."""
    found = {} if args.constants else dict(MECHANISMS)
    if args.constants:
        values = replay.constants()
        if values.keys() != CONSTANTS.keys():
            sys.exit(f"planner_constants.py differs from the planner's in {sorted(values.keys() ^ CONSTANTS.keys())}")
        for name, value in values.items():
            half, double = titles(name, value)
            found |= {half: {name: value / 2}, double: {name: value * 2}}
    return {name: settings for name, settings in found.items() if args.only in name}


def show(names: Sequence[tuple[str, str]], before: Mapping[str, list[list[float]]], now: Speeds) -> None:
    """Print the scenarios that are clearly slower or faster than those that another version saved."""
    both = [(pair, before[": ".join(pair)], x) for pair, x in zip(names, now, strict=True) if ": ".join(pair) in before]
    found = Comparison.of([pair for pair, _, _ in both], [a for _, a, _ in both], [b for _, _, b in both])
    for name, loss in sorted(found.scenarios.items(), key=lambda item: item[1].mean):
        if loss.is_clear or Loss(-loss.mean, loss.error).is_clear:
            print(f"{loss.mean:6.2f} ± {loss.error:.2f} {name}")
    print(found.line(f"slower by %, over {len(both)} scenarios"))


if __name__ == "__main__":
    main()
