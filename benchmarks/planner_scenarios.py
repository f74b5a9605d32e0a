"""Make the scenarios that `planner.py` replays: machines with recorded costs, heads, texts, numbers of sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

N_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32)


@dataclass(frozen=True)
class Machine:
    """Milliseconds of a target's pass by rows, of the head's first graph by rows, and of a level by nodes."""

    target: Mapping[int, float]
    begin: Mapping[int, float]
    step: Mapping[int, float]
    row: float = 0.14
    """Milliseconds of one row of a prompt that the head processes."""
    deeper: Mapping[int, float] | None = None
    """Milliseconds that each 1,000 tokens before a pass of the target add to it."""
    deeper_level: float = 0.0
    """Milliseconds that each 1,000 tokens add to the head's graphs."""


def _rows(*times: float) -> dict[int, float]:
    return dict(zip(N_ROWS, times, strict=True))


_BEGIN, _STEP = {1: 2.2, 4: 3.1, 16: 4.9}, {1: 1.9, 2: 5.1, 4: 6.9, 8: 8.1}
_XEON_BEGIN, _XEON_STEP = {1: 3.2, 4: 4.4, 16: 7.5}, {1: 2.4, 2: 4.1, 4: 5.6, 8: 8.2}
MACHINES = {
    # 1B shape, two cores: an AMD EPYC, then an Intel Xeon (GCC, our kernels, AMX). On the Xeon only the target's
    # passes were measured: the head's costs there are assumed, as are those of a head for 135M
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
    # measured: Qwen2.5-Coder's 1.5B and 0.5B, Q4_K_M, an AMD EPYC with two threads
    "epyc-1.5B": Machine(
        {1: 31.0, 2: 34.0, 3: 37.0, 4: 47.0, 5: 60.0, 6: 72.0, 8: 84.0, 12: 135.0, 16: 175.0, 32: 330.0, 64: 450.0},
        {1: 11.0, 2: 12.5, 4: 16.0, 8: 26.0, 16: 44.0},
        {1: 11.0, 2: 12.5, 4: 16.0, 8: 26.0},
        2.2,
        {1: 3.2, 2: 5.1, 4: 9.5, 8: 16.6, 16: 33.0, 32: 66.0, 64: 132.0},
        1.5,
    ),
    # not measured: an accelerator, whose passes take nearly the same time for any number of rows
    "accelerator": Machine(
        _rows(10.0, 10.1, 10.2, 10.3, 10.5, 10.8, 11.3, 12.0, 14.5),
        {1: 1.0, 4: 1.05, 16: 1.2},
        {1: 0.9, 2: 0.92, 4: 0.95, 8: 1.0},
        0.01,
    ),
}
_PARALLEL_STEP = {1: 2.9, 3: 3.3, 5: 4.4, 7: 4.9, 15: 7.8}  # a head that drafts in one graph

SOURCES: dict[str, dict[str, object]] = {
    "all": {"head": "good", "text": 1},
    "ngram": {"head": "none", "text": 1},
    "small": {"head": "good"},
    "useless": {"head": "useless", "text": 1},
}
"""The drafters of a task."""


def _curve(times: Mapping[int, float]) -> str:
    return ",".join(f"{n}:{t:.6g}" for n, t in times.items())


def scenarios(kinds: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Yield (group, name, replay.cpp's input). kinds: indices of the recorded texts."""
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
        if m.deeper is not None:
            values |= {"deeper": _curve(m.deeper), "deeper_level": m.deeper_level}
        values |= more
        name = " ".join([machine, head, *(f"{k}={v}" for k, v in more.items() if k not in ("told", "step", "name"))])
        return group, f"{name} {values.pop('name', '')}".strip(), values

    heads = ("good", "unsure", "oversure", "random", "useless")
    machines = [name for name in MACHINES if name not in ("accelerator", "epyc-1.5B")]
    for machine in machines:
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
    work = {kind: texts for kind, texts in kinds.items() if kind.startswith("tasks ")}
    for kind, texts in work.items():
        for sources in SOURCES:
            more = {"n_tokens": 0, "fresh": len(texts), "name": kind.removeprefix("tasks ")}
            yield make("tasks", "epyc-1.5B", texts, **SOURCES[sources], **more)
        for sources in ("all", "ngram"):
            yield make("long drafts", "epyc-1.5B", texts, **SOURCES[sources], n_max=63, n_nodes=63, **more)
    if not work:
        return
    whole = [i for texts in work.values() for i in texts]
    for sources in SOURCES:
        yield make("served", "epyc-1.5B", whole, **SOURCES[sources], n_tokens=0, name="one after the other")
    for n in (4, 8):
        for uniform in (0, 1):
            more = {"n_seqs": n, "n_nodes": 32, "uniform": uniform, "n_tokens": 0, "name": "together"}
            yield make("served", "epyc-1.5B", whole, **SOURCES["all"], **more)
            yield make("served", "epyc-1.5B", whole, **SOURCES["ngram"], **more)
