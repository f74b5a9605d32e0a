"""The memories of target and drafters, which are changed together here.

Both have evaluated the first `n_past` tokens of a sequence. Going back, copying, saving and loading cut both at one
position; `commit` keeps the accepted rows of a step in both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from .._core import Drafter, FeatureTap, SavedState, Target
from ..errors import ContextFullError, Eagle3Error
from .drafters import Drafters
from .media import Media
from .request import WITHOUT_MODEL
from .sequence import Saved, ScheduledSequence, Sequence, StoredPrefix

_log = logging.getLogger("llama_cpp_eagle3")
N_MIN_COPIED = 32
"""Shorter prefixes are neither stored in host memory nor copied: evaluating them again is as fast."""


class Memory:
    """The memories of target and drafters."""

    def __init__(
        self,
        target: Target,
        drafters: SequenceOf[Drafter],
        tap: FeatureTap | None,
        log: Callable[[str], None] = lambda text: None,
        n_swa: int = 0,
        swa_full: bool = True,
    ):
        """Join the memories of a target and its drafters.

        Args:
            target: the target.
            drafters: the drafters with weights.
            tap: reads the target's hidden states.
            log: called with lines for the user.
            n_swa: tokens of the target's sliding windows; 0 = it has none.
            swa_full: whether the context keeps tokens that have left them.
        """
        self.target, self.tap = target, tap
        self.drafters = Drafters(drafters, tap)
        self.source_names: tuple[str, ...] = (*WITHOUT_MODEL, *self.drafters.names)
        """The sources that may draft, as in `draft_sources`, in the order of their bits in a `Draft`."""
        self._can_replay = target.rollback_kind != "trim"
        self.needs_states = self._can_replay or (n_swa > 0 and not swa_full)
        """Whether the target can go back far only to saved states."""
        self.is_cut_anywhere = not self.needs_states and n_swa == 0
        """Whether a saved slot can be cut anywhere once it is loaded: only the end of a window is saved."""
        self.n_window = 0 if self._can_replay else n_swa
        """Tokens of a window, if a slot may hold what has left it, and what is saved of a slot does not; else 0."""
        self._drafters_id = 1
        self._log = log

    # one slot

    def set_drafters(self, drafters: SequenceOf[Drafter]) -> None:
        """Use other drafters, which must be restarted in each slot next."""
        self.drafters = Drafters(drafters, self.tap)
        self.source_names = (*WITHOUT_MODEL, *self.drafters.names)
        self._drafters_id += 1

    def names_of(self, bits: int) -> tuple[str, ...]:
        """The names of sources that are given as bits."""
        return tuple(name for i, name in enumerate(self.source_names) if bits >> i & 1)

    def n_replay(self, s: Sequence) -> int:
        """Accepted tokens of a sequence that the target has to evaluate again with the next batch."""
        return self.target.n_replay(s.seq_id) if self._can_replay else 0

    def reset(self, seq_id: int) -> None:
        """Clear a slot."""
        self.target.truncate(0, seq_id)
        self.drafters.restart(0, seq_id)

    def truncate(self, seq_id: int, n_past: int, same_next: bool) -> int:
        """Keep the first n_past tokens of a slot, or fewer; same_next: the next token will be the same as now."""
        return self.target.truncate(self.drafters.truncate(n_past, seq_id, same_next), seq_id)

    def copy(self, source: int, seq_id: int, n_past: int, states: SequenceOf[SavedState], same_next: bool) -> int:
        """Copy the first n_past tokens of a slot, or fewer, into an empty one.

        states: states that both can go back to. same_next: the next token will be the same as in `source`.
        """
        n_past = self._copy_target(source, seq_id, n_past, states)
        if n_past > 0 and self.drafters:
            n_past = self.target.truncate(self.drafters.copy(source, seq_id, n_past, same_next), seq_id)
        return n_past

    def _copy_target(self, source: int, seq_id: int, n_past: int, states: SequenceOf[SavedState]) -> int:
        self.target.attach(states, source)
        n = self.target.copy(source, seq_id, n_past)
        if n == 0 and n_past >= N_MIN_COPIED:
            # without shared cells: the whole slot is copied, and then truncated
            try:
                self.target.state_set(seq_id, self.target.state_get(source))
            except ContextFullError:
                return 0
            self.target.attach(states, seq_id)
            n = self.target.truncate(n_past, seq_id)
        self.target.attach(states, seq_id)
        return n

    def state_of(self, seq_id: int) -> Saved:
        """The state of a slot, to be loaded later."""
        target = self.target
        n_past = target.n_past(seq_id)
        return Saved(target.state_get(seq_id), self.drafters.state_get(seq_id), n_past, self._drafters_id)

    def knows_draft(self, state: Saved) -> bool:
        """Whether the drafters' part of a state was saved by the present drafters."""
        return state.drafters_id == self._drafters_id

    def saved_of(self, stored: StoredPrefix) -> Saved:
        """The state that a file holds, for `load`. Without the drafters' part, drafters go on after its tokens."""
        drafters_id = self._drafters_id if stored.draft else 0
        return Saved(stored.target, stored.draft, len(stored.tokens), drafters_id)

    def load(self, seq_id: int, state: Saved, tokens: SequenceOf[int]) -> bool:
        """Load a state into an empty slot; False if there is no room. tokens: the state's tokens, or more.

        Drafters that refuse their part go on after its tokens.
        """
        try:
            self.target.state_set(seq_id, state.target)
        except ContextFullError:
            return False
        if self.drafters and self.knows_draft(state):
            try:
                self.drafters.state_set(state.draft, seq_id)
                return True
            except Exception as e:
                _log.warning("the drafters' part of a cached prefix is left out: %s", e)
        self.drafters.restart(len(tokens), seq_id, tokens)
        return True

    def load_states(self, seq_id: int, n_tokens: int, target: bytes, draft: bytes) -> None:
        """Load states that come from elsewhere into an empty slot.

        Raises:
            ContextFullError: no room.
            Eagle3Error: the states are damaged, or of another model.
        """
        self.target.state_set(seq_id, target)
        if self.target.n_past(seq_id) != n_tokens:
            raise Eagle3Error(f"expected a state of {n_tokens} tokens, found {self.target.n_past(seq_id)}")
        if self.drafters and draft:
            self.drafters.state_set(draft, seq_id)
        else:
            self.drafters.restart(n_tokens, seq_id)

    def windows_at(self, seq_id: int, positions: SequenceOf[int]) -> list[tuple[int, SavedState]]:
        """States of the sliding windows at these positions. The slot is cut to the first of them."""
        found = []
        for n in sorted(positions, reverse=True):
            if self.target.truncate(n, seq_id) == n and (state := self.target.save(seq_id)) is not None:
                found.append((n, state))
        return found[::-1]

    # one sequence

    def go_back(self, sequence: Sequence, n_past: int, same_next: bool = False) -> None:
        """Keep at most the first n_past tokens that a sequence has evaluated; the others are pending again.

        Fewer are kept where memory can only go back to a saved state, or where the drafter must see the last row again
        because another token follows it now (not same_next).
        """
        sequence.is_dirty, sequence.rows = True, []
        same_next = same_next or ends_with_media(sequence.tokens, n_past)
        sequence.n_past = self.truncate(sequence.seq_id, n_past, same_next)
        sequence.is_dirty = False

    def settle(self, sequence: Sequence) -> None:
        """Make target and drafters end where the sequence does; tokens to be evaluated again are pending then."""
        n_past, seq_id, target = sequence.n_past, sequence.seq_id, self.target
        # after an interrupt the drafters may have gone back already
        n_seen = self.drafters.n_past(seq_id) if self.drafters else n_past
        if target.n_past(seq_id) != n_past or target.has_draft(seq_id) or n_seen != n_past:
            self.go_back(sequence, min(n_past, n_seen))
        sequence.is_dirty = False

    def decoded_elsewhere(self, sequence: Sequence) -> None:
        """Tell that code outside of the engine has decoded all pending tokens of a sequence."""
        seq_id, target = sequence.seq_id, self.target
        n_past, n_held = len(sequence.tokens), target.n_past(seq_id)
        first = sequence.n_past
        if n_held <= first:
            raise Eagle3Error(f"expected {n_past} tokens in slot {seq_id}, found {n_held}: decode them first")
        if n_held < n_past:  # an image may have fewer positions than tokens
            target.set_spans([*target.spans(seq_id), (first, n_past - first, n_held - first)], seq_id)
        sequence.n_past = n_past
        if self.drafters and (n_seen := self.drafters.n_past(seq_id)) < n_past:
            self.drafters.restart(n_past, seq_id)
            positions = f"positions {n_seen} to {n_past - 1}"
            self._log(f"{positions} were decoded outside of the engine; the draft continues without them")

    def commit(self, scheduled: SequenceOf[ScheduledSequence], has_rows: bool, can_defer: SequenceOf[int]) -> None:
        """Keep the accepted tokens of a step, and give drafters their rows if these still exist.

        can_defer: for each sequence the drafters, as bits, that may evaluate its rows later, because they are not
            asked for it soon. A call that repeats this after an interrupt finds some of it done.
        """
        drafts = [x for x in scheduled if x.draft.tokens]
        if drafts:
            self.target.accept_batch([x.sequence.seq_id for x in drafts], [x.path for x in drafts])
        if not self.drafters or not has_rows:
            return
        seen = []
        for x, defers in zip(scheduled, can_defer, strict=True):
            s, start = x.sequence, x.n_past
            tokens = s.tokens[start : start + len(x.path)]
            if x.media:
                self._show_image(x.media, start, s.seq_id)
                tokens = [x.media.placeholder] * len(tokens)
            seen.append((s.seq_id, start, tokens, x.rows, defers))
        self.drafters.process(seen)

    def _show_image(self, media: Media, start: int, seq_id: int) -> None:
        """Tell drafters that rows of an image come next: with M-RoPE they need its positions."""
        target, drafters = self.target, self.drafters
        if start != media.first or target.n_pos_per_row == 1 or all(d.n_pos_per_row == 1 for d in drafters):
            return
        n_seen = drafters.n_past(seq_id)
        if n_seen < start:  # the slot was used outside of the engine
            drafters.restart(start, seq_id)
        if n_seen <= start:
            pos = media.positions(target.position(start, seq_id)).copy()
            pos[3] = pos[0]  # pairs of channels that no section has are the first one's
            drafters.add_image(start, pos, media.n_pos, seq_id)


def ends_with_media(tokens: SequenceOf[int], n: int) -> bool:
    """Whether the n-th token is an image's.

    The draft then keeps that row although another token may follow now: it is one row of many, and for it alone the
    image would have to be encoded again.
    """
    return 0 < n <= len(tokens) and tokens[n - 1] < 0
