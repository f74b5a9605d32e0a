"""Format measurements as a Markdown table and as a plot."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import gguf

from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3_heads.train.plot import figure_file

from .figures import percent
from .measure import Result, Side
from .peers import PeerSetting
from .runs import total

_COLORS = {
    "plain": "#888888",
    "chain": "#4c78a8",
    "auto": "#2ca02c",
    "head": "#98df8a",
    "text": "#17becf",
    "tree": "#9467bd",
}
_COLOR_PEER = "#e45756"


def synthetic_line(result: Result) -> str:
    """Return the warning if acceptance is not real, else ""."""
    if result.is_replay:
        return "**REPLAY**: the target generated recorded texts; every pass was computed."
    if not result.synthetic:
        return ""
    rates = ", ".join(f"{rate:g}" for rate in result.synthetic)
    return f"**SYNTHETIC ACCEPTANCE {rates}**: drafts were accepted by these odds, whatever they were."


def markdown(result: Result, bandwidth: float = 0.0) -> str:
    """Return the table, with a line that explains it.

    Args:
        result: the measurements.
        bandwidth: bytes per second that the machine reads from memory; 0 = unknown.
    """
    plain = result.plain
    head = ["", "tokens/s", "of plain", "mean acceptance length", "accepted per position, %", "first token, ms"]
    head += ["drafter, ms a step", "verify, ms a step", "GB/s", "of ideal"]
    rows = [_row(side, plain, bandwidth) for side in result.sides]
    n_runs = len(result.sides[0].runs)
    draw = f"temperature {result.temperature:g}" if result.temperature > 0.0 else "greedy"
    text = [
        synthetic_line(result),
        table(head, rows),
        f"{result.n_prompts} prompts, {result.n_predict} tokens each, {draw}; medians of {n_runs} interleaved runs "
        "(lowest - highest). "
        + ("" if result.synthetic else f"Prompts to which our sides wrote different texts: {result.n_different}. ")
        + _conversion(result)
        + (f"CPU kernels of our sides: {result.cpu_kernels}. " if result.cpu_kernels else "")
        + (f"Memory is read at {bandwidth * 1e-9:.1f} GB/s here." if bandwidth else ""),
    ]
    return "\n\n".join(part.strip() for part in text if part)


def _conversion(result: Result) -> str:
    if result.draft_type is None:
        return ""
    return f"Our sides converted the head to {gguf.GGMLQuantizationType(result.draft_type).name}. "


def _row(side: Side, plain: Side | None, bandwidth: float) -> list[str]:
    runs = total(side.runs)
    ours = not isinstance(side.setting, PeerSetting)
    gb = side.median(lambda run: run.gb_per_second)
    return [
        side.setting.title,
        side.speed.text(1),
        f"{side.speed.median / plain.speed.median:.2f}" if plain else "",
        f"{runs.acceptance_length:.2f}",
        " ".join(f"{100 * rate:.0f}" for rate in runs.rates),
        Spread.of(side.t_first).text(0, 1e-3) if side.t_first else "",
        f"{1e3 * side.median(lambda run: run.t_draft_step):.2f}" if runs.drafted and runs.t_draft else "",
        f"{1e3 * side.median(lambda run: run.t_verify / max(run.steps, 1)):.1f}" if ours else "",
        (f"{gb:.1f}" + (f" ({percent(gb * 1e9 / bandwidth, 0)})" if bandwidth else "")) if ours else "",
        f"{side.median(lambda run: run.ideal_share):.3f}" if ours else "",
    ]


def plot(path: str | os.PathLike[str], results: Sequence[tuple[str, Result]]) -> None:
    """Draw bars of tokens/s, one panel per result, with the lowest and the highest run as whiskers.

    Args:
        path: the file; its suffix chooses the format.
        results: (title, measurements).

    Raises:
        Eagle3Error: no matplotlib.
    """
    heights = [len(result.sides) for _, result in results]
    with figure_file(path, 8, 0.9 * len(results) + 0.27 * sum(heights)) as figure:
        panels = figure.subplots(len(results), 1, squeeze=False, height_ratios=heights)[:, 0]
        for panel, (title, result) in zip(panels, results, strict=True):
            _panel(panel, title, result)
        panels[-1].set_xlabel("tokens/s")


def plot_lines(
    path: str | os.PathLike[str],
    panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[int, Spread]]]]],
    what: str,
) -> None:
    """Draw tokens/s over a number, panels side by side, with the lowest and the highest run as whiskers.

    Args:
        path: the file; its suffix chooses the format.
        panels: (title, name of a side -> its points). Sides of llama.cpp begin with "llama".
        what: the name of the number.

    Raises:
        Eagle3Error: no matplotlib.
    """
    with figure_file(path, 4.5 * len(panels), 4) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for panel, (title, lines) in zip(axes, panels, strict=True):
            for name, points in lines.items():
                places, speeds = [place for place, _ in points], [speed for _, speed in points]
                whiskers = [[s.median - s.low for s in speeds], [s.high - s.median for s in speeds]]
                style = {"color": _COLORS.get(name, _COLOR_PEER), "ls": ":" if "plain" in name else "-"}
                medians = [s.median for s in speeds]
                panel.errorbar(places, medians, yerr=whiskers, marker="o", ms=3, capsize=2, label=name, **style)
                panel.set_xscale("log", base=2)
                panel.set_xticks(places, [str(place) for place in places])
            panel.set_ylim(bottom=0)
            panel.set_title(title, loc="left", fontsize=9)
            panel.set_xlabel(what)
        axes[0].set_ylabel("tokens/s")
        axes[0].legend(fontsize=8)


def plot_curves(
    path: str | os.PathLike[str], curves: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str
) -> None:
    """Draw curves over a number; those whose names are the same up to a comma share a color, the first one is solid.

    Args:
        path: the file; its suffix chooses the format.
        curves: name -> its points.
        x: the name of the number.
        y: the quantity that is drawn over it.

    Raises:
        Eagle3Error: no matplotlib.
    """
    with figure_file(path, 5.5, 4) as figure:
        panel = figure.subplots()
        groups: dict[str, int] = {}
        for name, points in curves.items():
            group = name.split(",")[0]
            style = ":" if group in groups else "-"
            color = f"C{groups.setdefault(group, len(groups))}"
            panel.plot(*zip(*points, strict=True), marker="o", ms=3, color=color, ls=style, label=name)
        panel.set_ylim(bottom=1)
        panel.set_xlabel(x)
        panel.set_ylabel(y)
        panel.legend(fontsize=8)


def _panel(panel: object, title: str, result: Result) -> None:
    draw = panel  # matplotlib has no types
    speeds = [side.speed for side in result.sides]
    names = [side.setting.title for side in result.sides]
    colors = [_COLORS.get(side.setting.kind, _COLOR_PEER) for side in result.sides]
    whiskers = [[s.median - s.low for s in speeds], [s.high - s.median for s in speeds]]
    draw.barh(names, [s.median for s in speeds], xerr=whiskers, color=colors, error_kw={"lw": 0.8})  # type: ignore[attr-defined]
    for i, speed in enumerate(speeds):
        draw.text(speed.high, i, f" {speed.median:.1f}", va="center", fontsize=8)  # type: ignore[attr-defined]
    draw.invert_yaxis()  # type: ignore[attr-defined]
    draw.margins(x=0.1)  # type: ignore[attr-defined]
    if result.synthetic:
        title += "\nSYNTHETIC ACCEPTANCE " + ", ".join(f"{rate:g}" for rate in result.synthetic)
    draw.set_title(title, loc="left", fontsize=9)  # type: ignore[attr-defined]
    plain = result.plain
    if plain is not None:
        draw.axvline(plain.speed.median, color="#888888", lw=0.8, ls=":")  # type: ignore[attr-defined]
