"""The drafters with weights of one target, of which each sequence has the same tokens."""

from __future__ import annotations

import struct
from collections.abc import Sequence as SequenceOf
from typing import Any, overload

from .._core import Drafter, FeatureTap, GrammarLookahead, GumbelNoise

Rows = tuple[int, int, list[int], list[int], int]
"""One sequence's id, the position of the first token, the tokens, their rows in the batch, and the drafters that
may evaluate them later, as bits."""
_SIZE = struct.Struct("<Q")


class Drafters(SequenceOf[Drafter]):
    """All drafters with weights, in the order of their bits. A sequence ends at the same position in each of them."""

    def __init__(self, drafters: SequenceOf[Drafter] = (), tap: FeatureTap | None = None):
        """tap: reads the target's hidden states, for drafters that need them.

        Raises:
            ValueError: the drafters differ in their number of sequences or positions.
        """
        self._all, self._tap = tuple(drafters), tap
        sizes = {(d.n_seq_max, d.n_ctx) for d in self._all}
        if len(sizes) > 1:
            raise ValueError(f"expected drafters of one size, found (sequences, positions) of {sorted(sizes)}")
        self.names = tuple(type(d).__name__.removesuffix("Drafter").lower() for d in self._all)
        """As in `draft_sources`."""

    @overload
    def __getitem__(self, i: int) -> Drafter: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[Drafter, ...]: ...
    def __getitem__(self, i: Any) -> Any:
        return self._all[i]

    def __len__(self) -> int:
        return len(self._all)

    def n_past(self, seq_id: int) -> int:
        """Positions that all of them have."""
        return min(d.n_past(seq_id) for d in self._all)

    def process(self, sequences: SequenceOf[Rows]) -> None:
        """Give each drafter the rows of the tap's last decode that it does not have yet."""
        for i, drafter in enumerate(self._all):
            if self._tap is not None or not drafter.n_embd_feat:
                parts = [(s, n_past, tokens, rows, bool(bits >> i & 1)) for s, n_past, tokens, rows, bits in sequences]
                drafter.process_batch(self._tap, parts)

    def add_image(self, first: int, pos: Any, n_pos: int, seq_id: int) -> None:
        """Tell that rows of an image come next, see `Drafter.add_image`."""
        for drafter in self._all:
            if drafter.n_pos_per_row > 1:
                drafter.add_image(first, pos, n_pos, seq_id)

    def truncate(self, n_past: int, seq_id: int, same_next: bool = False) -> int:
        """Keep the first n_past positions of a sequence, or fewer: returns how many. See `Drafter.truncate`."""
        n_kept = n_past
        while any(d.n_past(seq_id) > n_kept for d in self._all):
            for drafter in self._all:
                if drafter.n_past(seq_id) > n_kept:
                    n_kept = min(n_kept, drafter.truncate(n_kept, seq_id, same_next or n_kept < n_past))
        return n_kept

    def copy(self, src: int, dst: int, n_past: int, same_next: bool) -> int:
        """Copy the first n_past positions of a sequence, or fewer: returns how many. See `Drafter.copy`."""
        try:
            n_kept = min(d.copy(src, dst, n_past, same_next) for d in self._all)
        except BaseException:
            self.restart(0, dst)
            raise
        return self.truncate(n_kept, dst, same_next=True)

    def restart(self, n_past: int, seq_id: int, tokens: SequenceOf[int] = ()) -> None:
        """Clear a sequence. The next rows come from n_past on.

        tokens: the text before. Drafters that read only tokens get it, and evaluate it when a draft is wanted.
        """
        is_known = n_past > 0 and len(tokens) == n_past and min(tokens) >= 0
        for drafter in self._all:
            if is_known and not drafter.n_embd_feat:
                drafter.restart(0, seq_id)
                drafter.process(None, tokens, 0, seq_id, can_defer=True)
            else:
                drafter.restart(n_past, seq_id)

    def set_foresight(self, noise: GumbelNoise | None, rules: GrammarLookahead | None, seq_id: int) -> None:
        """Tell the noise and grammar that a sequence's next tokens are sampled with; None: not known, or none."""
        for drafter in self._all:
            drafter.set_noise(noise, seq_id)
            drafter.set_rules(rules, seq_id)

    def state_get(self, seq_id: int) -> bytes:
        """Everything that they hold of a sequence; of several drafters, the sizes of their states come first."""
        states = [d.state_get(seq_id) for d in self._all]
        return states[0] if len(states) == 1 else b"".join(piece for s in states for piece in (_SIZE.pack(len(s)), s))

    def state_set(self, state: bytes, seq_id: int) -> None:
        """Make a sequence what `state_get` saved; an error leaves it empty.

        Raises:
            ValueError, IncompatibleDraftError: the state is damaged, or other drafters saved it.
        """
        states = [state] if len(self._all) == 1 else _split(state)
        if len(states) != len(self._all):
            raise ValueError(f"the saved state of the draft is damaged, or was not made by {len(self._all)} drafters")
        try:
            for drafter, own in zip(self._all, states, strict=True):
                drafter.state_set(own, seq_id)
            self.truncate(self.n_past(seq_id), seq_id, same_next=True)
        except BaseException:
            self.restart(0, seq_id)
            raise


def _split(state: bytes) -> list[bytes]:
    """The pieces of a state; none if it is not as long as its sizes say."""
    pieces, at = [], 0
    while at + _SIZE.size <= len(state):
        (n,) = _SIZE.unpack_from(state, at)
        at += _SIZE.size + n
        pieces.append(state[at - n : at])
    return pieces if at == len(state) else []
