"""Texts that are kept for learning: their tokens, and the hidden states that pass by while they are evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._core import FeatureTap
from .sequence import ScheduledSequence, Sequence

N_BEFORE = 256
"""Tokens of a prompt, its last ones, of which rows are kept: those before them matter little, and cost as much."""


@dataclass(frozen=True, slots=True)
class KeptText:
    """A prompt with the answer that it got."""

    tokens: list[int]
    n_prompt: int
    first_row: int
    """The first token with a row."""
    rows: npt.NDArray[np.float16]
    """Hidden states of the tokens from there on, (n, n_boundaries * n_embd); without a tap there are none."""
    n_steps: int
    """Passes that the answer took."""
    n_tokens: int
    """Tokens that they gave."""


class Keeping:
    """Gathers the rows of sequences that may be kept, and hands their texts over when they end."""

    def __init__(self, tap: FeatureTap | None, take: Callable[[KeptText], None]):
        """take: gets each text, in the engine's thread: it must not wait."""
        self._tap, self._take = tap, take

    def see(self, part: ScheduledSequence) -> None:
        """Keep the rows of what a sequence has evaluated in a step, before the next step overwrites them."""
        s = part.sequence
        if self._tap is None or not s.keeps or s.media:
            return
        first = max(part.n_past, s.n_prompt - N_BEFORE)
        n_left_out = first - part.n_past
        if n_left_out >= len(part.path):
            return
        if s.kept_rows:
            at, known = s.kept_rows[-1]
            n_known = at + len(known)
            if n_known > first:  # it was preempted, and evaluates these again
                n_left_out += n_known - first
                first = n_known
            elif n_known < first:
                s.kept_rows.clear()
        if n_left_out < len(part.path):
            s.kept_rows.append((first, half(self._tap.rows[part.rows[n_left_out:]])))

    def end(self, s: Sequence) -> None:
        """Hand over the text of a sequence that has ended, if it is whole."""
        kept, s.kept_rows = s.kept_rows, []
        if not s.keeps or s.media or s.n_cut or s.n_prompt < len(s.request.tokens) or len(s.tokens) <= s.n_prompt:
            return
        if min(s.tokens) < 0:  # tokens that were decoded outside of the engine
            return
        rows = np.concatenate([rows for _, rows in kept]) if kept else np.zeros((0, 0), np.float16)
        stats = s.result.stats
        first = kept[0][0] if kept else 0
        self._take(KeptText(s.tokens.copy(), s.n_prompt, first, rows, stats.steps, stats.tokens))


def half(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Return rows (n, n_boundaries, n_embd) as (n, n_boundaries * n_embd) in float16, clipped to its range."""
    limit = np.finfo(np.float16).max
    flat = np.asarray(rows).reshape(len(rows), -1)
    return np.clip(flat, -limit, limit).astype(np.float16)
