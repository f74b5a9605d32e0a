"""The prefill budget: how many rows of prompts a step may read while other sequences wait for its end."""

from __future__ import annotations

from collections.abc import Callable

_N_ROWS_UNKNOWN = 32  # rows until something is measured
_N_ROWS_MIN = 4
_TIMES_STEP = 2.0  # a step with prefill takes so many times as long as one without
_RATE = 1.0 / 8.0
_RATE_SELDOM = 1.0 / 2.0  # rate of learning from steps without prefill, which are rare while a long prompt is evaluated
_LESS, _MORE = 0.5, 1.25  # how much fewer or more rows the next step may have
_N_MIXED = 16
_QUICK_NS = 0.25e9
_SHARE_READING = 0.02  # with what else a step begins with, throughput loses 3 %
_N_ROWS_EACH = 64  # rows that our kernels multiply together
_N_ROWS_FIRST = 128


class PrefillBudget:
    """Keeps steps with prefill at twice the time of steps without.

    A decoding sequence then waits about twice its usual time for a token while another prompt is evaluated, however
    long that prompt is. Every step is an observation: the next one has fewer or more rows of prompts if this one took
    longer or shorter than allowed. One step in 17 has none, to measure that again, since it grows with the texts.
    """

    def __init__(self, n_rows: int | None = None, reading_ns: Callable[[], float] = lambda: 0.0):
        """n_rows: rows of prompts in such a step; None = as measured. reading_ns: of all weights; 0 = not known."""
        self._fixed = n_rows
        self._reading_ns = reading_ns
        self._step_ns = 0.0  # a step without prefill
        self._step_rows = 0.0  # rows that it has
        self._row_ns = 0.0  # a row of a step that is only prefill
        self._n_rows = 0.0  # of prompts in the next step; 0 = there was no such step
        self._n_mixed = 0  # steps with prefill since one without

    def n_drafts(self, n_sequences: int) -> int:
        """Tokens to draft for each of so many sequences in a step with prefill: no more rows than in one without."""
        return max(0, round(self._step_rows / n_sequences) - 1)

    @property
    def n_rows(self) -> int:
        """Rows of prompts that may join the next step."""
        if self._fixed is not None:
            return self._fixed
        return 0 if self._n_mixed >= _N_MIXED else self._n_allowed

    def n_rows_alone(self, n_ubatch: int, n_batch: int, *, may_wait: bool) -> int:
        """Rows of a step that reads nothing but prompts.

        A batch if that is soon over, else a ubatch, for which llama.cpp takes as long within a batch. may_wait: whether
        other prompts wait for the step's end or may come meanwhile. It then has only so many rows that reading the
        weights is 2 % of its time.
        """
        if self._fixed is not None:
            return n_batch  # who says how many rows a step may read wants no other bound
        if not self._row_ns:
            return min(n_ubatch, _N_ROWS_FIRST) if may_wait else n_ubatch
        n_rows = n_batch if self._row_ns * n_batch <= _QUICK_NS else n_ubatch
        reading_ns = self._reading_ns() or self._step_ns
        if not may_wait or not reading_ns:
            return n_rows
        n_groups = round(reading_ns / self._row_ns / _SHARE_READING / _N_ROWS_EACH)
        return min(n_rows, max(n_groups, 1) * _N_ROWS_EACH)

    @property
    def _n_allowed(self) -> int:
        if self._n_rows:
            return int(self._n_rows)
        if not self._step_ns or not self._row_ns:
            return _N_ROWS_UNKNOWN
        return max(_N_ROWS_MIN, int((_TIMES_STEP - 1.0) * self._step_ns / self._row_ns))

    def observe(self, n_rows: int, n_prefill_rows: int, ns: int) -> None:
        """Learn from a step: its rows, those of prompts among them, and nanoseconds."""
        if n_prefill_rows == 0:
            rate = _RATE_SELDOM if self._n_mixed else _RATE
            self._step_ns = _average(self._step_ns, ns, rate)
            self._step_rows = _average(self._step_rows, n_rows, rate)
            self._n_mixed = 0
        elif n_prefill_rows == n_rows:
            self._row_ns = _average(self._row_ns, ns / n_rows, _RATE)
        elif self._step_ns:
            self._n_mixed += 1
            if n_prefill_rows > self._n_allowed // 2:  # fewer rows are the end of a prompt, or a short one
                factor = min(max(_TIMES_STEP * self._step_ns / ns, _LESS), _MORE)
                self._n_rows = max(_N_ROWS_MIN, n_prefill_rows * factor)


def _average(before: float, now: float, rate: float) -> float:
    return before + rate * (now - before) if before else now
