"""What each part of the planner is worth: recorded acceptance, replayed at recorded costs, with parts switched off.

No model is loaded and no clock is read, so that the figures are the same on every machine with one compiler. The
planner's own sources are compiled into `planner/replay.cpp`, with two changes: their constants can be other ones, and
each mechanism in MECHANISMS can be switched off. Needs a C++ compiler, `CXX` or `c++`.

Recorded are what the head drafts along texts (`replay/record.py`) and what passes take on several machines. A scenario
is a machine, a head, texts and a number of sequences; simulated passes vary, and the planner sees these times only.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parent / "csrc"
RESULTS = HERE / "results" / "planner.json"
N_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32)


@dataclass(frozen=True)
class Machine:
    """Milliseconds: of a pass of the target by rows, of the head's first graph by rows, of a level by nodes."""

    target: Mapping[int, float]
    begin: Mapping[int, float]
    step: Mapping[int, float]
    row: float = 0.14
    """Of one row of a prompt that the head reads."""


def _rows(*times: float) -> dict[int, float]:
    return dict(zip(N_ROWS, times, strict=True))


_BEGIN, _STEP = {1: 2.2, 4: 3.1, 16: 4.9}, {1: 1.9, 2: 5.1, 4: 6.9, 8: 8.1}
_XEON_BEGIN, _XEON_STEP = {1: 3.2, 4: 4.4, 16: 7.5}, {1: 2.4, 2: 4.1, 4: 5.6, 8: 8.2}
MACHINES = {
    # 1B shape, two cores: an AMD EPYC, then an Intel Xeon (GCC, our kernels, AMX). Of the Xeon the target's
    # passes alone were measured: the head's costs there are assumed, as are those of a head for 135M
    "epyc-Q4_0": Machine(
        {1: 14.6, 2: 24.4, 3: 34.4, 4: 23.5, 5: 38.2, 6: 49.5, 8: 46.6, 12: 66.3, 16: 68.2, 32: 132.0}, _BEGIN, _STEP
    ),
    "epyc-Q8_0": Machine(
        {1: 23.5, 2: 51.9, 3: 59.2, 4: 65.0, 5: 88.8, 6: 96.1, 8: 84.1, 12: 106.0, 16: 136.0, 32: 251.0}, _BEGIN, _STEP
    ),
    "epyc-F16": Machine(
        {1: 41.7, 2: 62.4, 3: 63.0, 4: 67.5, 5: 71.5, 6: 92.3, 8: 98.0, 12: 111.0, 16: 123.0, 32: 209.0}, _BEGIN, _STEP
    ),
    "xeon-Q4_0": Machine(
        _rows(61.0, 76.1, 91.3, 58.8, 101.0, 104.6, 142.6, 144.1, 295.0), _XEON_BEGIN, _XEON_STEP, 0.3
    ),
    "xeon-Q4_0-kernels": Machine(
        _rows(30.0, 34.0, 50.0, 40.0, 59.0, 53.0, 77.0, 91.0, 172.0), _XEON_BEGIN, _XEON_STEP, 0.3
    ),
    "xeon-Q4_0-AMX": Machine(
        _rows(25.1, 46.7, 47.4, 48.9, 53.0, 60.6, 85.2, 93.1, 151.0), _XEON_BEGIN, _XEON_STEP, 0.3
    ),
    "xeon-Q4_K-AMX": Machine(
        _rows(37.3, 61.7, 64.3, 65.4, 73.6, 83.1, 92.6, 100.7, 162.0), _XEON_BEGIN, _XEON_STEP, 0.3
    ),
    # SmolLM2-135M on the Xeon with AMX
    "xeon-135M-AMX": Machine(
        _rows(5.4, 7.8, 8.4, 8.7, 9.7, 11.1, 13.8, 15.0, 32.0),
        {1: 0.7, 4: 0.9, 16: 1.6},
        {1: 0.55, 2: 0.8, 4: 1.0, 8: 1.5},
        0.03,
    ),
    # not measured: an accelerator, whose passes cost nearly the same whatever their rows
    "accelerator": Machine(
        _rows(10.0, 10.1, 10.2, 10.3, 10.5, 10.8, 11.3, 12.0, 14.5),
        {1: 1.0, 4: 1.05, 16: 1.2},
        {1: 0.9, 2: 0.92, 4: 0.95, 8: 1.0},
        0.01,
    ),
}
_PARALLEL_STEP = {1: 2.9, 3: 3.3, 5: 4.4, 7: 4.9, 15: 7.8}  # of a head that drafts in one graph


def _curve(times: Mapping[int, float]) -> str:
    return ",".join(f"{n}:{t:.6g}" for n, t in times.items())


def scenarios(kinds: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str, dict[str, object]]]:
    """(group, name, what replay.cpp reads). kinds: indices of the recorded texts."""
    own, code = kinds["own"], [*kinds["edits"], *kinds["quotes"], *kinds["free"]]
    tree = {"top_k": 4, "n_leaves": 8}

    def make(
        group: str, machine: str, texts: Sequence[int], head: str, **more: object
    ) -> tuple[str, str, dict[str, object]]:
        m = MACHINES[machine]
        values: dict[str, object] = {
            "target": _curve(m.target), "begin": _curve(m.begin), "step": _curve(m.step), "row": m.row,
            "texts": ",".join(map(str, texts)), "head": head,
        }  # fmt: skip
        values |= more
        name = " ".join([machine, head, *(f"{k}={v}" for k, v in more.items() if k not in ("told", "step", "name"))])
        return group, f"{name} {values.pop('name', '')}".strip(), values

    heads = ("good", "unsure", "oversure", "random", "useless")
    for machine in list(MACHINES)[:-1]:
        for head in heads:
            yield make("chain", machine, own, head, name="own")
        yield make("chain", machine, code, "good", name="code")
    for machine in ("epyc-Q4_0", "epyc-F16", "xeon-Q4_0-kernels", "xeon-135M-AMX"):
        for head in heads:
            yield make("tree", machine, own, head, **tree, name="own")
        yield make("tree", machine, code, "good", **tree, name="code")
        for kind in ("edits", "quotes", "free", "loops"):
            yield make("text", machine, kinds[kind], "good", text=1, **tree, name=kind)
            yield make("text", machine, kinds[kind], "good", text=1, name=kind)
            yield make("text", machine, kinds[kind], "none", text=1, name=kind)
            yield make("text", machine, kinds[kind], "useless", text=1, **tree, name=kind)
        yield make("text", machine, own, "good", text=1, **tree, name="own")
        yield make("text", machine, own, "unsure", text=1, **tree, name="own")
        for head in heads:
            yield make("fresh", machine, own, head, **tree, n_tokens=48, fresh=6)
            yield make("fresh", machine, code, head, **tree, text=1, n_tokens=48, fresh=8)
    mixed = [
        i for group in zip(own, kinds["edits"] * 2, kinds["quotes"] * 2, kinds["free"] * 2, strict=False) for i in group
    ]
    for machine in ("epyc-Q4_0", "xeon-Q4_0-kernels", "xeon-135M-AMX"):
        for n in (2, 4, 8, 16):
            for head in ("good", "random"):
                more = {"n_seqs": n, "n_tokens": 2500, "n_nodes": max(32, 2 * n)}
                yield make("sequences", machine, own, head, **more, **tree)
                yield make("sequences", machine, mixed, head, **more, text=1, **tree)
                yield make("streams", machine, own, head, **more, uniform=1)
                yield make("streams", machine, mixed, head, **more, uniform=1, text=1)
            yield make("sequences", machine, mixed, "none", **more)
    for machine in ("epyc-Q4_0", "epyc-F16", "xeon-Q4_0-kernels"):
        told = {n: t * (1.0 if n == 1 else 20.0) for n, t in MACHINES[machine].target.items()}
        yield make("costs", machine, own, "good", told=_curve(told), name="told: rows x 20")
        told = {n: 0.5 * t for n, t in MACHINES[machine].target.items()}
        yield make("costs", machine, own, "good", told=_curve(told), name="told: all x 0.5")
        told = {n: MACHINES[machine].target[1] * (1.0 + 0.05 * n) for n in (1, 4, 8)}
        yield make("costs", machine, own, "good", told=_curve(told), name="told: flat")
        told = {n: t for n, t in MACHINES[machine].target.items() if n in (1, 4, 8)}
        yield make("costs", machine, kinds["loops"], "none", told=_curve(told), text=1, name="told: up to 8")
        yield make("costs", machine, own, "good", growth=1.0, name="growth")
        yield make("costs", machine, own, "good", noise=0.2, **tree, name="noise")
        yield make("changing", machine, own, "changing", n_tokens=4000)
        yield make("changing", machine, own, "changing", **tree, n_tokens=4000)
        for head in ("good", "useless", "random"):
            yield make("recurrent", machine, own, head, replays=1)
        for head in ("good", "unsure", "useless"):
            yield make(
                "one graph", machine, own, head, parallel=1, n_unroll=16, step=_curve(_PARALLEL_STEP), name="P-EAGLE"
            )
    drawn = [i for group in zip(*(kinds[kind] for kind in ("greedy", "0.6", "0.8", "1.0")), strict=True) for i in group]
    for machine in ("epyc-Q4_0", "epyc-F16", "xeon-Q4_0-kernels", "xeon-135M-AMX"):
        for kind in ("greedy", "0.6", "0.8", "1.0"):
            yield make("temperatures", machine, kinds[kind], "good", name=kind)
            yield make("temperatures", machine, kinds[kind], "good", **tree, name=kind)
        for n in (1, 4):
            more = {"n_seqs": n, "n_tokens": 4000, "n_nodes": 32, "name": "all temperatures"}
            yield make("temperatures", machine, drawn, "good", **more)
            yield make("temperatures", machine, drawn, "good", **more, **tree)
            yield make("temperatures", machine, drawn, "good", **more, **tree, text=1)
    for head in heads:
        yield make("one graph", "accelerator", own, head, n_unroll=128)
        yield make("one graph", "accelerator", own, head, **tree)
        yield make("one graph", "accelerator", own, head, n_unroll=128, n_seqs=4, uniform=1, n_tokens=2500)


SWITCHES: list[tuple[str, str, str, str]] = [
    (
        "cost_curve.drift",
        "cost_curve.cpp",
        "drift_ *= std::exp(k_drift * surprise);",
        "if (on) { drift_ *= std::exp(k_drift * surprise); }",
    ),
    (
        "cost_curve.per_n",
        "cost_curve.cpp",
        "now_[n] *= std::exp(k_n * surprise);",
        "if (on) { now_[n] *= std::exp(k_n * surprise); }",
    ),
    (
        "cost_curve.faster_at_once",
        "cost_curve.cpp",
        "if (t_us < far_below * at(n))",
        "if (on && t_us < far_below * at(n))",
    ),
    (
        "cost_curve.faster_more_rows",
        "cost_curve.cpp",
        "for (int32_t m = n + 1; m <= n_max; ++m) { // more",
        "for (int32_t m = n + 1; on && m <= n_max; ++m) { // more",
    ),
    (
        "cost_curve.extrapolate",
        "cost_curve.cpp",
        "if (n >= n_last_) {\n        set_last(n);",
        "if (on && n >= n_last_) {\n        set_last(n);",
    ),
    ("outlook.learn", "outlook.cpp", "const float step = share *", "const float step = (on ? 1.0f : 0.0f) * share *"),
    ("gate.open", "gate.h", "bool open() const { return open_; }", "bool open() const { return open_ || !on; }"),
    ("gate.ask", "gate.cpp", "if (open_ || wait_ <= 0)", "if (!on || open_ || wait_ <= 0)"),
    (
        "gate.deviation",
        "gate.cpp",
        "const float gain = value / std::sqrt(std::max(variance_, variance_min));",
        "const float gain = value / (on ? std::sqrt(std::max(variance_, variance_min)) : 1.0f);",
    ),
    ("gate.expected", "gate.cpp", "(expected <= 0.0f && !surprise)", "(on && expected <= 0.0f && !surprise)"),
    ("gate.attribution", "planner.cpp", ".update(value - text,", ".update(value - (on ? 1.0f : 0.0f) * text,"),
    ("guesses.wrong", "asking.cpp", "const bool is_wrong = ", "const bool is_wrong = on && "),
    ("guesses.shy", "asking.cpp", "const bool is_shy   = ", "const bool is_shy   = on && "),
    (
        "price",
        "planner.cpp",
        "plain * std::max(1.0f, speedup_tokens_ / speedup_time_);",
        "plain * (on ? std::max(1.0f, speedup_tokens_ / speedup_time_) : 1.0f);",
    ),
    (
        "trials",
        "asking.cpp",
        "if (value_text_ > 0.0f || n_max < n_trial ||",
        "if (!on || value_text_ > 0.0f || n_max < n_trial ||",
    ),
    (
        "can_pay",
        "asking.cpp",
        "if (can_pay(n_seqs_, n_base_ - n_seqs_, n_max)) {",
        "if (!on || can_pay(n_seqs_, n_base_ - n_seqs_, n_max)) {",
    ),
    ("may_wait", "asking.cpp", "return !worth_asking(n_seqs) && ", "return on && !worth_asking(n_seqs) && "),
    ("one_in_four", "planner.cpp", "return n * 0x9E3779B9u < 1u << 30;", "return on && n * 0x9E3779B9u < 1u << 30;"),
    (
        "first_graph_steps",
        "drafting.cpp",
        "if (n_max <= 1) {\n        return 1;",
        "if (!on || n_max <= 1) {\n        return 1;",
    ),
    (
        "widths",
        "drafting.cpp",
        "width = std::min(2 * width, n_level)) {",
        "width = std::min(on ? 2 * width : n_level, n_level)) {",
    ),
    (
        "widths_narrow",
        "drafting.cpp",
        "for (size_t width = stride();;",
        "for (size_t width = on ? stride() : n_level;;",
    ),
    ("text_rate", "planner.cpp", "if (has_text_ && value > 0.0f) {", "if (on && has_text_ && value > 0.0f) {"),
    ("mix.against", "mix.cpp", "return q * (1.0f - other) / ", "return !on ? q : q * (1.0f - other) / "),
    (
        "mix.both",
        "mix.cpp",
        "n.q = 1.0f - (1.0f - q_head) * (1.0f - q_text);",
        "n.q = !on ? std::max(q_head, q_text) : 1.0f - (1.0f - q_head) * (1.0f - q_text);",
    ),
    (
        "mix.head_adds",
        "mix.cpp",
        "bool planner::head_adds() {",
        "bool planner::head_adds() { if (!on) { return true; }",
    ),
    (
        "mix.text_behind",
        "drafting.cpp",
        "const float left = n.p_text > 0.0f &&",
        "const float left = on && n.p_text > 0.0f &&",
    ),
    (
        "mix.fill_up",
        "mix.cpp",
        "if (params_.uniform) {\n        fill_up();",
        "if (on && params_.uniform) {\n        fill_up();",
    ),
    (
        "acceptance.draw",
        "acceptance.h",
        "sequence_[static_cast<size_t>(seq_id)].draw = draw; }",
        "sequence_[static_cast<size_t>(seq_id)].draw = on ? draw : draw_kind::greedy; }",
    ),
    ("value_for_all", "drafting.cpp", "is_partial_ ? value_for_all()", "is_partial_ && on ? value_for_all()"),
]
"""(name, file, source, source with a condition `on`), for what no constant can switch off."""

MECHANISMS: dict[str, dict[str, float]] = {
    name: {name: 0.0} for name, *_ in SWITCHES if name not in ("gate.open", "gate.ask")
}
for name in ("curve", "depth", "best", "other", "sequence"):
    MECHANISMS[f"acceptance.{name}"] = {f"acceptance.prior_{name}": 1e-9, f"acceptance.step_{name}": 0.0}
MECHANISMS["acceptance"] = {
    k: v
    for name in ("curve", "depth", "best", "other", "sequence")
    for k, v in MECHANISMS[f"acceptance.{name}"].items()
} | {"acceptance.change_score": 1e9}
MECHANISMS |= {
    "gate": {"gate.open": 0.0, "gate.ask": 0.0},
    "acceptance.change": {"acceptance.change_score": 1e9},
    "acceptance.forgetting": {f"acceptance.step_{n}": 0.0 for n in ("curve", "depth", "best", "other", "sequence")},
    "cost_curve.refined": {"cost_curve.drift": 0.0, "cost_curve.per_n": 0.0},
    "cost_curve.refined at all": {
        "cost_curve.drift": 0.0,
        "cost_curve.per_n": 0.0,
        "cost_curve.faster_at_once": 0.0,
        "cost_curve.extrapolate": 0.0,
    },
    "cost_curve.surprise_max": {"cost_curve.surprise_max": 100.0},
    "gate.hopeless": {"gate.hopeless": 1.0},
    "gate.longer waits": {"gate.n_wait_max": 8.0, "gate.n_wait_text": 8.0},
    "gate.n_wait_text": {"gate.n_wait_text": 256.0},
    "gate.n_lasting": {"gate.n_lasting": 0.0},
    "gate.n_lasting inf": {"gate.n_lasting": 1e9},
    "gate.surprise": {"planner.q_surprise": 0.0},
    "guesses": {"guesses.wrong": 0.0, "guesses.shy": 0.0},
    "other time": {"planner.rate_other": 0.0},
    "replay_share": {"planner.replay_share": 0.0},
    "share_unseen": {"planner.share_unseen": 1.0},
    "leave_waiting": {"planner.n_ready_max": 1e6},
    "leave_waiting + may_wait": {"planner.n_ready_max": 1e6, "may_wait": 0.0},
    "unroll_cost": {"drafting.rate_unroll": 0.0},
    "look_ahead 1": {"planner.n_look_ahead": 1.0},
    "look_ahead 0": {"planner.n_look_ahead": 0.0},
    "n_text_some": {"mix.n_text_some": 32.0},
}
"""Name -> what to set to switch it off."""

_SKIPPED = {"n_max", "n_depth"}  # sizes of arrays
_FLOAT = re.compile(
    r"^(?P<static> +static )?constexpr (?P<type>float|int32_t) +(?P<name>\w+) *= (?P<value>[^;]+);", re.MULTILINE
)


def sources(folder: Path) -> list[Path]:
    """Copy what is compiled, with its constants made variable; returns the .cpp files."""
    files = [*SOURCES.glob("planner/*"), *SOURCES.glob("text/*"), SOURCES / "draft/draft_tree.h", SOURCES / "error.h"]
    for path in [*files, *SOURCES.glob("error.cpp")]:
        text = path.read_text(encoding="utf-8")
        if path.parent.name == "planner":
            for name, file, old, new in SWITCHES:
                if file == path.name:
                    if text.count(old) != 1:
                        sys.exit(f"{path}: expected once, for the switch {name!r}: {old}")
                    text = text.replace(old, re.sub(r"\bon\b", f'replay::enabled("{name}")', new, count=1))

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


def write_inputs(folder: Path) -> list[tuple[str, str]]:
    """Write recordings and scenarios as replay.cpp reads them; returns (group, name) of the scenarios."""
    kinds: dict[str, list[int]] = {}
    words: list[str] = []
    with gzip.open(HERE / "replay" / "acceptance.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
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
    found = list(scenarios(kinds))
    text = "".join(" ".join(f"{k}={v}" for k, v in values.items()) + "\n" for _, _, values in found)
    (folder / "scenarios").write_text(text, encoding="utf-8")
    return [(group, name) for group, name, _ in found]


class Replay:
    """The compiled program and its inputs."""

    def __init__(self, folder: Path):
        self.folder, self.program, self.scenarios = folder, build(folder), write_inputs(folder)

    def constants(self) -> dict[str, float]:
        """All of the planner, without the switches."""
        done = subprocess.run([str(self.program), "--constants"], check=True, capture_output=True, text=True)
        found = dict(line.split() for line in done.stdout.splitlines())
        return {name: float(value) for name, value in found.items()}

    def run(self, settings: Mapping[str, float], sides: bool = False) -> list[list[float]]:
        """Tokens per second of each scenario: [planner], or [planner, plain, oracle]."""
        env = os.environ | {"PLANNER": " ".join(f"{name}={value:.9g}" for name, value in settings.items())}
        if not sides:
            env["PLANNER_SIDES"] = "planner"
        command = [str(self.program), str(self.folder / "recordings"), str(self.folder / "scenarios")]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
        return [[float(word) for word in line.split()] for line in done.stdout.splitlines()]


def mean(ratios: Sequence[float]) -> float:
    """The geometric one."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def losses(replay: Replay, full: Sequence[float], settings: Mapping[str, float]) -> dict[str, object]:
    """By group, and the worst scenario, in percent of the full planner's speed: positive is slower."""
    ratios = [found[0] / before for found, before in zip(replay.run(settings), full, strict=True)]
    groups: dict[str, list[float]] = {}
    for (group, _), ratio in zip(replay.scenarios, ratios, strict=True):
        groups.setdefault(group, []).append(ratio)
    worst = min(range(len(ratios)), key=lambda i: ratios[i])
    by_group = {group: round(100 * (1 - mean(found)), 2) for group, found in groups.items()}
    return {
        "all": round(100 * (1 - mean(ratios)), 2),
        "groups": by_group,
        "worst": [" ".join(replay.scenarios[worst]), round(100 * (1 - ratios[worst]), 2)],
        "best": round(100 * (1 - max(ratios)), 2),
    }


def line(name: str, found: Mapping[str, object]) -> str:
    """One row of the table."""
    groups = found["groups"]
    assert isinstance(groups, dict)
    return (
        f"{name:44} {found['all']:6.2f} | "
        + " ".join(f"{loss:6.2f}" for loss in groups.values())
        + f" | {found['worst']}"
    )


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="only these constants or switches")
    p.add_argument("--constants", action="store_true", help="halve and double each constant too")
    p.add_argument("--only", default="", help="mechanisms and constants whose name contains this")
    p.add_argument("--against", type=Path, help="results of another version: how each scenario compares")
    p.add_argument("--publish", action="store_true", help=f"write {RESULTS.relative_to(HERE)}")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(Path(folder))
        sides = replay.run(dict(_setting(s) for s in args.set), sides=True)
        full = [found[0] for found in sides]
        result: dict[str, object] = {
            "scenarios": {
                f"{group}: {name}": {"planner": round(a, 3), "plain": round(b, 3), "oracle": round(c, 3)}
                for (group, name), (a, b, c) in zip(replay.scenarios, sides, strict=True)
            }
        }
        groups = dict.fromkeys(group for group, _ in replay.scenarios)
        print(f"{'':44} {'':6} | " + " ".join(f"{group[:6]:>6}" for group in groups))
        for what, other in (("speed / plain", 1), ("speed / oracle", 2)):
            by_group = [
                mean([s[0] / s[other] for (g, _), s in zip(replay.scenarios, sides, strict=True) if g == group])
                for group in groups
            ]
            print(
                f"{what:44} {mean([s[0] / s[other] for s in sides]):6.3f} | " + " ".join(f"{x:6.3f}" for x in by_group)
            )
        if args.against:
            compare(json.loads(args.against.read_text(encoding="utf-8")), result)
        todo = {} if args.set else variants(replay, args)
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda settings: losses(replay, full, settings), todo.values()))
        for title, found in zip(todo, done, strict=True):
            result.setdefault("losses", {})[title] = found  # type: ignore[index,attr-defined]
            print(line(title, found), flush=True)
        if args.publish:
            RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    return name, float(value)


def variants(replay: Replay, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Name -> settings."""
    found = dict(MECHANISMS)
    if args.constants:
        for name, value in replay.constants().items():
            found |= {f"{name} {value:g} / 2": {name: value / 2}, f"{name} {value:g} * 2": {name: value * 2}}
    return {name: settings for name, settings in found.items() if args.only in name}


def compare(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Print the scenarios that changed by more than half a percent, and the means."""
    a, b = (x["scenarios"] for x in (before, now))
    assert isinstance(a, dict)
    assert isinstance(b, dict)
    ratios = {name: b[name]["planner"] / found["planner"] for name, found in a.items() if name in b}
    for name, ratio in sorted(ratios.items(), key=lambda item: item[1]):
        if abs(ratio - 1) > 0.005:
            print(f"{ratio:.3f} {name}")
    print(f"{mean(list(ratios.values())):.4f} of before, over {len(ratios)} scenarios")


if __name__ == "__main__":
    main()
