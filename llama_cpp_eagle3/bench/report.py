"""The table of `bench`: medians and their spread."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ggml_types import type_name
from .compare import Config, Result, Side


@dataclass(frozen=True)
class Spread:
    """A figure measured several times."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of at least one value."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1], len(found))

    def text(self, digits: int = 1, unit: float = 1.0) -> str:
        """`median (low - high)`, in units of `unit`."""
        median, low, high = (f"{value / unit:.{digits}f}" for value in (self.median, self.low, self.high))
        return f"{median} ({low} - {high})" if self.n > 1 else median


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = [" | ".join(head), " | ".join(["---"] + ["---:"] * (len(head) - 1))]
    lines += [" | ".join(str(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def markdown(config: Config, result: Result) -> str:
    """The table, with a line on what it shows."""
    return f"{table(*_cells(result))}\n\n{_about(config, result)}"


def for_terminal(config: Config, result: Result, width: int) -> str:
    """The same in `width` columns: a line for each figure, the sides beside each other."""
    head, rows = _cells(result)
    lines = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    turned = ["  ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*turned, "", textwrap.fill(_about(config, result), width)])


def _about(config: Config, result: Result) -> str:
    draw = f"temperature {config.temperature:g}" if config.temperature > 0.0 else "greedy"
    text = [
        f"{len(config.texts)} prompts, {config.n_predict} tokens each, {draw}; medians of {config.n_runs} interleaved "
        f"runs (lowest - highest). Prompts to which the sides wrote different texts: {result.n_different}.",
        "" if result.draft_type is None else f"The head was converted to {type_name(result.draft_type)}.",
        f"CPU kernels: {result.cpu_kernels}." if result.cpu_kernels else "",
    ]
    return " ".join(filter(None, text))


def _cells(result: Result) -> tuple[list[str], list[list[str]]]:
    plain = next((side for side in result.sides if side.name == "plain"), None)
    names = ("tokens/s", "of plain", "mean acceptance length", "accepted per position, %", "first token, ms")
    return ["", *names, "drafter, ms a step", "verify, ms a step"], [_row(side, plain) for side in result.sides]


def _row(side: Side, plain: Side | None) -> list[str]:
    stats, speed = side.stats, Spread.of(side.tokens_per_second)
    ms_a_step = 1e3 / max(stats.steps, 1)
    return [
        side.name,
        speed.text(1),
        f"{speed.median / Spread.of(plain.tokens_per_second).median:.2f}" if plain else "",
        f"{stats.mean_acceptance_length:.2f}",
        " ".join(f"{100 * rate:.0f}" for rate in stats.acceptance_rate_per_position),
        Spread.of(side.t_first).text(0, 1e-3) if side.t_first else "",
        f"{ms_a_step * stats.draft_seconds:.2f}" if stats.drafted else "",
        f"{ms_a_step * stats.verify_seconds:.1f}",
    ]
