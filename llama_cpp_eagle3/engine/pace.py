"""How much of a prompt may join a pass of running sequences."""

from __future__ import annotations

_N_ROWS_UNKNOWN = 32  # before anything was measured
_N_ROWS_MIN = 4
_RATE = 1.0 / 8.0


class Pace:
    """Measures what passes and their prompt rows take, so that a pass that reads takes twice a usual one.

    A running sequence then waits for its next token about as long again while somebody's prompt is read, however long
    that is. Nothing is calibrated beforehand: every pass is an observation.
    """

    def __init__(self, n_rows: int | None = None):
        """n_rows: prompt rows of such a pass; None = as measured."""
        self._fixed = n_rows
        self._round_ns = 0.0  # a pass without prompt rows
        self._row_ns = 0.0  # a prompt row more

    @property
    def n_rows(self) -> int:
        """Prompt rows that may join a pass now."""
        if self._fixed is not None:
            return self._fixed
        if not self._round_ns or not self._row_ns:
            return _N_ROWS_UNKNOWN
        return max(_N_ROWS_MIN, int(self._round_ns / self._row_ns))

    def observe(self, n_rows: int, n_prompt_rows: int, ns: int) -> None:
        """A pass took so long: n_rows in all, n_prompt_rows of prompts."""
        if n_prompt_rows == 0:
            self._round_ns = _average(self._round_ns, ns)
            return
        others_ns = self._round_ns if n_prompt_rows < n_rows else 0.0
        if ns > others_ns:
            self._row_ns = _average(self._row_ns, (ns - others_ns) / n_prompt_rows)


def _average(before: float, now: float) -> float:
    return before + _RATE * (now - before) if before else now
