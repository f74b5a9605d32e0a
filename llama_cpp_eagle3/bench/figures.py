"""Medians and their spread, and tables of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A figure measured several times."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
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


def percent(part: float, digits: int = 1) -> str:
    """0.123 is 12.3 %."""
    return f"{100 * part:.{digits}f} %"
