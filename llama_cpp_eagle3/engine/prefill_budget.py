"""How much of a prompt may join a pass of running sequences."""

from __future__ import annotations

_N_ROWS_UNKNOWN = 32  # before anything was measured
_N_ROWS_MIN = 4
_TIMES_ROUND = 2.0  # what a pass with prompt rows may take, in those without
_RATE = 1.0 / 8.0
_RATE_SELDOM = 1.0 / 2.0  # of what is seldom seen while a long prompt is read
_LESS, _MORE = 0.5, 1.25  # rows of the next pass, by those of this one
_N_MIXED = 16


class PrefillBudget:
    """Has passes that read take twice as long as those that do not.

    A running sequence then waits for its next token about as long again while somebody's prompt is read, however long
    that is. Nothing is calibrated beforehand: every pass is an observation, and the next one has fewer or more rows of
    the prompt as this one took too long or not. What a pass without any takes is seen again in one of 17, since texts
    that grow take longer.
    """

    def __init__(self, n_rows: int | None = None):
        """n_rows: prompt rows of such a pass; None = as measured."""
        self._fixed = n_rows
        self._round_ns = 0.0  # a pass without prompt rows
        self._round_rows = 0.0  # rows that it has
        self._row_ns = 0.0  # a row of a pass that does nothing but read
        self._n_rows = 0.0  # of prompts in the next pass; 0 = none had some
        self._n_mixed = 0  # passes with prompt rows since one without

    def n_drafts(self, n_sequences: int) -> int:
        """Tokens to draft for each of so many sequences beside a prompt: no more rows than they have without one."""
        return max(0, round(self._round_rows / n_sequences) - 1)

    @property
    def n_rows(self) -> int:
        """Prompt rows that may join a pass now."""
        if self._fixed is not None:
            return self._fixed
        return 0 if self._n_mixed >= _N_MIXED else self._n_allowed

    @property
    def _n_allowed(self) -> int:
        if self._n_rows:
            return int(self._n_rows)
        if not self._round_ns or not self._row_ns:
            return _N_ROWS_UNKNOWN
        return max(_N_ROWS_MIN, int((_TIMES_ROUND - 1.0) * self._round_ns / self._row_ns))

    def observe(self, n_rows: int, prefill_budget: int, ns: int) -> None:
        """A pass took so long: n_rows in all, prefill_budget of prompts."""
        if prefill_budget == 0:
            rate = _RATE_SELDOM if self._n_mixed else _RATE
            self._round_ns = _average(self._round_ns, ns, rate)
            self._round_rows = _average(self._round_rows, n_rows, rate)
            self._n_mixed = 0
        elif prefill_budget == n_rows:
            self._row_ns = _average(self._row_ns, ns / n_rows, _RATE)
        elif self._round_ns:
            self._n_mixed += 1
            if prefill_budget > self._n_allowed // 2:  # else it was a prompt's end, or a short one
                factor = min(max(_TIMES_ROUND * self._round_ns / ns, _LESS), _MORE)
                self._n_rows = max(_N_ROWS_MIN, prefill_budget * factor)


def _average(before: float, now: float, rate: float) -> float:
    return before + rate * (now - before) if before else now
