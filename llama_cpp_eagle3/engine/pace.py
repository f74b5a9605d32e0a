"""How much of a prompt may join a pass of running sequences."""

from __future__ import annotations

_N_ROWS_UNKNOWN = 32  # before anything was measured
_N_ROWS_MIN = 4
_RATE = 1.0 / 8.0
_RATE_ALONE = 1.0 / 2.0  # of what is seldom seen while a long prompt is read
_N_MIXED = 16


class Pace:
    """Measures what passes and their prompt rows take, so that a pass that reads takes twice a usual one.

    A running sequence then waits for its next token about as long again while somebody's prompt is read, however long
    that is. Nothing is calibrated beforehand: every pass is an observation. What the others' rows alone would have
    taken, drafts included, is told by the passes without a prompt that had as many; one in 16 has none, since texts
    that grow take longer.
    """

    def __init__(self, n_rows: int | None = None):
        """n_rows: prompt rows of such a pass; None = as measured."""
        self._fixed = n_rows
        self._round_ns = 0.0  # a pass without prompt rows
        self._round_rows = 0.0  # rows that it has
        self._by_rows: dict[int, float] = {}  # what passes of so many take
        self._row_ns = 0.0  # a prompt row more
        self._n_mixed = 0  # passes with prompt rows since one without

    def n_drafts(self, n_sequences: int) -> int:
        """Tokens to draft for each of so many sequences beside a prompt: no more rows than they have without one."""
        return max(0, round(self._round_rows / n_sequences) - 1)

    @property
    def n_rows(self) -> int:
        """Prompt rows that may join a pass now."""
        if self._fixed is not None:
            return self._fixed
        if not self._round_ns or not self._row_ns:
            return _N_ROWS_UNKNOWN
        if self._n_mixed >= _N_MIXED:
            return 0
        return max(_N_ROWS_MIN, int(self._round_ns / self._row_ns))

    def observe(self, n_rows: int, n_prompt_rows: int, ns: int) -> None:
        """A pass took so long: n_rows in all, n_prompt_rows of prompts."""
        if n_prompt_rows == 0:
            self._round_ns = _average(self._round_ns, ns)
            self._round_rows = _average(self._round_rows, n_rows)
            self._by_rows[n_rows] = _average(self._by_rows.get(n_rows, 0.0), ns, _RATE_ALONE)
            self._n_mixed = 0
            return
        n_others = n_rows - n_prompt_rows
        if n_others and not self._by_rows:
            return  # nobody knows whose time it was
        self._n_mixed += n_others > 0
        others_ns = self._without_prompt(n_others)
        if ns > others_ns:
            self._row_ns = _average(self._row_ns, (ns - others_ns) / n_prompt_rows)

    def _without_prompt(self, n: int) -> float:
        """What a pass over n rows takes: as measured, between its neighbours, or in proportion to the nearest."""
        known = self._by_rows
        if n == 0:
            return 0.0
        below = max((m for m in known if m <= n), default=0)
        above = min((m for m in known if m >= n), default=0)
        if below == above:
            return known[n]
        if not below or not above:
            nearest = below or above
            return known[nearest] * n / nearest
        return known[below] + (known[above] - known[below]) * (n - below) / (above - below)


def _average(before: float, now: float, rate: float = _RATE) -> float:
    return before + rate * (now - before) if before else now
