"""What target and draft hold of each sequence: slots, prefixes that are kept, going back. Both move together, here.

A slot is a sequence id of target and draft. A sequence that ends leaves its tokens there, for the next one that begins
with them, until the slot or its cells are needed; what goes then may stay in host memory, up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field

from .._core import Drafter, FeatureTap, Target
from ..errors import ContextFullError, Eagle3Error
from .host_cache import HostCache, n_common
from .media import Media
from .sequence import Saved, ScheduledSequence, Sequence, State

_N_WORTH_KEEPING = 32
"""Prefixes shorter than this are neither kept in host memory nor copied: to read them again is as quick."""
_SHARE_CONTINUED = 0.5
"""Of a kept prefix: a prompt that begins with so much of it goes on in its slot, others get a copy."""


@dataclass(slots=True)
class Slot:
    """A sequence id of target and draft."""

    seq_id: int
    user: Sequence | None = None
    cached: list[int] = field(default_factory=list)
    """Tokens of the cached prefix, while no sequence uses the slot."""
    is_dirty: bool = False
    """Nobody uses it, and what target and draft hold there is to be forgotten."""
    used_at: int = 0

    @property
    def is_free(self) -> bool:
        """Whether another sequence may have it."""
        return self.user is None or self.user.state is State.IDLE

    @property
    def tokens(self) -> SequenceOf[int]:
        """What target and draft hold there."""
        return self.cached if self.user is None else self.user.tokens[: self.user.n_past]


class Memory:
    """The slots of target and draft, and all that moves what they hold."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        tap: FeatureTap | None,
        prefix_cache_bytes: int = 0,
        log: Callable[[str], None] = lambda text: None,
    ):
        """prefix_cache_bytes: limit of host memory for evicted prefixes. log: told what users should know."""
        self.target, self.drafter, self.tap = target, drafter, tap
        self._n_heads = 1
        self.slots = [Slot(seq_id) for seq_id in range(target.n_seq)]
        self.host = HostCache(prefix_cache_bytes)
        self._log = log
        self._clock = 0

    def set_drafter(self, drafter: Drafter | None) -> None:
        """Have another draft, which has seen nothing of what the target holds."""
        self.drafter = drafter
        self._n_heads += 1
        for slot in self.slots:
            self._draft_from(slot.seq_id, len(slot.tokens))

    def _draft_from(self, seq_id: int, n_past: int) -> None:
        """Have the draft go on at a position, without what lies before."""
        if self.drafter is not None:
            self.drafter.restart(n_past, seq_id)

    # slots

    def assign(self, sequence: Sequence, seq_id: int | None = None) -> bool:
        """Give a sequence a slot, with as much of its tokens as is there already; False if none is free.

        seq_id: this one and no other; it must be free.
        """
        free = [p for p in self.slots if p.is_free and (seq_id is None or p.seq_id == seq_id)]
        if not free:
            return False
        if sequence.saved is not None:
            slot, n_past = self._emptiest(free), sequence.n_past
            self._vacate(slot)
            with self._changing(slot):
                if not self._load(slot.seq_id, sequence.saved):
                    return False
            sequence.saved = None
            self._occupy(slot, sequence, n_past)
            return True
        if not sequence.cache_prompt:
            self._start_in(self._emptiest(free), sequence)
            return True
        n_wanted = len(sequence.tokens) - 1  # the last one is evaluated for its logits
        if sequence.seq_id_wanted is not None:  # it is to go on from what is there
            n_cached = min(n_common(free[0].cached, sequence.tokens), n_wanted)
            if n_cached > 0:
                self._go_on_in(free[0], sequence, n_cached)
            else:
                self._start_in(free[0], sequence)
            return True
        source, n_source = self._best(sequence.tokens, n_wanted, free)
        key, n_host = self.host.find(sequence.tokens[:n_wanted])
        if n_host > n_source:
            slot, saved = self._emptiest(free), self.host.take(key)  # before what is there now goes to host memory
            self._vacate(slot)
            self._bring_back(slot, key, saved)
            self._go_on_in(slot, sequence, n_host)
        elif source is None:
            self._start_in(self._emptiest(free), sequence)
        elif source in free and (len(free) == 1 or n_source >= _SHARE_CONTINUED * len(source.tokens)):
            self._go_on_in(source, sequence, n_source)
        elif not self._copy_to(self._emptiest([p for p in free if p is not source]), source, sequence, n_source):
            if source in free:  # it cannot be shared, but it can be gone on from
                self._go_on_in(source, sequence, n_source)
            else:
                self._start_in(self._emptiest(free), sequence)
        return True

    @contextmanager
    def _changing(self, slot: Slot) -> Iterator[None]:
        """Change what a free slot holds; whoever comes after an error or interrupt in the middle forgets all of it."""
        if slot.user is not None:
            self._detach(slot.user)
        slot.cached, slot.is_dirty = [], True
        yield
        slot.is_dirty = False

    def _start_in(self, slot: Slot, sequence: Sequence) -> None:
        self._vacate(slot)
        self._occupy(slot, sequence, 0)

    def _bring_back(self, slot: Slot, key: tuple[int, ...], saved: Saved) -> None:
        """Load a prefix from host memory into an empty slot, if there is room."""
        with self._changing(slot):
            is_there = self._load(slot.seq_id, saved)
        slot.cached = list(key) if is_there else []

    def _go_on_in(self, slot: Slot, sequence: Sequence, n_past: int) -> None:
        """Take a free slot over with the first n_past tokens that it holds, or fewer."""
        held = slot.tokens
        n_past = min(n_past, len(held))
        same_next = n_past < len(held) and held[n_past] == sequence.tokens[n_past]
        same_next = same_next or ends_with_media(held, n_past)
        with self._changing(slot):
            n_past = self._truncate(slot.seq_id, n_past, same_next)
        self._occupy(slot, sequence, n_past)

    def _copy_to(self, slot: Slot, source: Slot, sequence: Sequence, n_past: int) -> bool:
        """Have a free slot hold the first tokens of another one too; False if it cannot go back there."""
        self._vacate(slot)
        with self._changing(slot):
            n_past = self._copy(source.seq_id, slot.seq_id, n_past)
            if n_past > 0 and self.drafter is not None:
                same_next = ends_with_media(source.tokens, n_past)
                n_seen = self.drafter.copy(source.seq_id, slot.seq_id, n_past, same_next)
                n_past = self.target.truncate(n_seen, slot.seq_id)
        if n_past == 0:
            self._forget(slot)
            return False
        self._occupy(slot, sequence, n_past)
        return True

    def _copy(self, source: int, seq_id: int, n_past: int) -> int:
        """Have the target hold the first n_past tokens of a sequence in an empty one too, or fewer."""
        n = self.target.copy(source, seq_id, n_past)
        if n == 0 and n_past >= _N_WORTH_KEEPING:
            # no cells to share: all that the other holds is copied, and taken back as far as need be
            try:
                self.target.state_set(seq_id, self.target.state_get(source))
            except ContextFullError:
                return 0
            n = self.target.truncate(n_past, seq_id)
        return n

    def resume(self, sequence: Sequence, tokens: list[int]) -> None:
        """Have a sequence that is held in its slot go on with other tokens, as far as they begin alike."""
        held = sequence.tokens[: sequence.n_past]
        n_same = n_common(held, tokens)
        if n_same == len(tokens) == len(held) and sequence.rows:
            sequence.tokens = tokens
            return  # its logits are still there
        if sequence.n_foreign == 0:
            seq_id = sequence.seq_id
            self.release(sequence)
            sequence.tokens = tokens
            self.assign(sequence, seq_id)
            return
        consumed = n_same == len(tokens)
        n_reuse = n_same - 1 if consumed else n_same
        self.go_back(sequence, max(n_reuse, 0), same_next=consumed)
        if sequence.n_past < n_reuse and sequence.n_past < sequence.n_foreign:
            self.empty(sequence)
        sequence.n_foreign = min(sequence.n_foreign, sequence.n_past)
        sequence.tokens = tokens

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's slot away; what it holds is kept there for others."""
        if sequence.seq_id < 0:
            return
        slot = self.slots[sequence.seq_id]
        if sequence.is_dirty or sequence.n_foreign > 0:
            slot.is_dirty = True
        else:
            slot.cached = sequence.tokens[: sequence.n_past]
        slot.used_at = self._tick()
        self._detach(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's slot and cells away; `slot` brings it back as it was."""
        if sequence.is_dirty:
            self.settle(sequence)
        slot, n_past = self.slots[sequence.seq_id], sequence.n_past
        sequence.saved = self._save(slot.seq_id)
        slot.is_dirty = True
        self._detach(sequence)
        sequence.n_past = n_past

    def tidy(self) -> None:
        """Forget what nobody uses and nobody can go on from."""
        for slot in self.slots:
            if slot.is_dirty:
                self._forget(slot)

    def evict(self) -> bool:
        """Let the least recently used prefix go that nobody uses; False if there is none."""
        if any(slot.is_dirty for slot in self.slots):
            self.tidy()
            return True
        kept = [p for p in self.slots if p.is_free and p.tokens]
        if not kept:
            return False
        self._vacate(min(kept, key=lambda p: p.used_at))
        return True

    def take_over(self, sequence: Sequence, seq_id: int) -> None:
        """Somebody has filled a free slot: it is this sequence's, which has not taken in anything yet."""
        slot = self.slots[seq_id]
        if slot.user is not None:
            self._detach(slot.user)
        slot.is_dirty = False
        self._occupy(slot, sequence, 0)

    def adopt(self, sequence: Sequence, tokens: list[int], seq_id: int) -> None:
        """Somebody has filled the context anew: a sequence has these tokens, and nothing else is there."""
        for slot in self.slots:
            if slot.seq_id != seq_id:
                self._forget(slot)
        self._draft_from(seq_id, len(tokens))
        self.take_over(sequence, seq_id)
        sequence.tokens = tokens
        sequence.n_past = sequence.n_own = sequence.n_prompt = len(tokens)

    def store_prefix(self, seq_id: int) -> tuple[list[int], Saved]:
        """Tokens that are kept in a slot that nobody uses, and what target and draft hold of them."""
        return self._unused(seq_id).cached, self._save(seq_id)

    def restore_prefix(self, seq_id: int, tokens: SequenceOf[int], target: bytes, draft: bytes) -> None:
        """Have a slot that nobody uses keep tokens, from what `kept` gave somewhere else; draft: empty without a head.

        Raises:
            ContextFullError: no room; the slot is empty then.
            Eagle3Error: the states are not what they should be; the slot is empty then.
        """
        slot = self._unused(seq_id)
        self._forget(slot)
        with self._changing(slot):
            self.target.state_set(seq_id, target)
            if self.target.n_past(seq_id) != len(tokens):
                raise Eagle3Error(f"expected a state of {len(tokens)} tokens, found {self.target.n_past(seq_id)}")
            if self.drafter is not None and draft:
                self.drafter.state_set(draft, seq_id)
            else:
                self._draft_from(seq_id, len(tokens))
        slot.cached, slot.used_at = list(tokens), self._tick()

    def evict_prefix(self, seq_id: int) -> int:
        """Forget what is kept in a slot that nobody uses; returns how many tokens that was."""
        slot = self._unused(seq_id)
        n_tokens = len(slot.tokens)
        self._forget(slot)
        return n_tokens

    def _unused(self, seq_id: int) -> Slot:
        slot = self.slots[seq_id]
        if not slot.is_free:
            raise Eagle3Error(f"slot {seq_id} is in use")
        if slot.user is not None:
            self.release(slot.user)
        if slot.is_dirty:
            self._forget(slot)
        return slot

    def clear(self) -> None:
        """Forget everything that no running sequence holds, host memory included."""
        self.host.clear()
        for slot in self.slots:
            if slot.is_free:
                self._forget(slot)

    def scrub(self) -> None:
        """Forget everything, and clear the cells too: no sequence runs, and what is in the cells may be NaN."""
        self.clear()
        self.target.clear()

    def _best(self, tokens: SequenceOf[int], n_wanted: int, free: SequenceOf[Slot]) -> tuple[Slot | None, int]:
        """The slot that shares the most tokens with a prompt, of equal ones a free one; and how many."""
        best, n_best = None, 0
        for slot in self.slots:
            if slot.user is not None and (slot.user.is_dirty or slot.user.n_foreign > 0):
                continue
            n = min(n_common(slot.tokens, tokens), n_wanted)
            if n > n_best or (n == n_best > 0 and best not in free and slot in free):
                best, n_best = slot, n
        return best, n_best

    def _emptiest(self, free: SequenceOf[Slot]) -> Slot:
        return min(free, key=lambda p: (bool(p.tokens), p.used_at))

    def emptiest(self, seq_ids: SequenceOf[int]) -> int:
        """The one of these free slots that has the least to lose."""
        return self._emptiest([self.slots[i] for i in seq_ids]).seq_id

    def _occupy(self, slot: Slot, sequence: Sequence, n_past: int) -> None:
        slot.user, slot.cached = sequence, []
        slot.used_at = self._tick()
        sequence.seq_id, sequence.n_past, sequence.n_own = slot.seq_id, n_past, n_past
        sequence.rows = []

    def _detach(self, sequence: Sequence) -> None:
        """A sequence has no slot any more; what is there is the caller's business."""
        self.slots[sequence.seq_id].user = None
        sequence.seq_id, sequence.n_past, sequence.n_own, sequence.n_foreign = -1, 0, 0, 0
        sequence.rows, sequence.is_dirty = [], False

    def _vacate(self, slot: Slot) -> None:
        """Make a free slot empty. A prefix that is worth it goes to host memory."""
        tokens = slot.tokens
        if self.host.n_bytes_max > 0 and len(tokens) >= _N_WORTH_KEEPING:
            intact = slot.user is None or (not slot.user.is_dirty and slot.user.n_foreign == 0)
            if intact:
                self.host.put(tokens, self._save(slot.seq_id))
        self._forget(slot)

    def _forget(self, slot: Slot) -> None:
        """Make a free slot empty."""
        with self._changing(slot):
            self._reset(slot.seq_id)

    def _reset(self, seq_id: int) -> None:
        self.target.truncate(0, seq_id)
        if self.drafter is not None:
            self.drafter.reset(seq_id)

    def _save(self, seq_id: int) -> Saved:
        target, drafter = self.target, self.drafter
        n_past = target.n_past(seq_id)
        return Saved(
            target.state_get(seq_id), b"" if drafter is None else drafter.state_get(seq_id), n_past, self._n_heads
        )

    def _load(self, seq_id: int, state: Saved) -> bool:
        """Load into an empty slot; False if there is no room."""
        try:
            self.target.state_set(seq_id, state.target)
        except ContextFullError:
            return False
        if self.drafter is not None:
            if state.n_heads == self._n_heads:
                self.drafter.state_set(state.draft, seq_id)
            else:
                self.drafter.restart(state.n_past, seq_id)
        return True

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    # one sequence

    def go_back(self, sequence: Sequence, n_past: int, same_next: bool = False) -> None:
        """Keep the first tokens of a sequence; what must be evaluated again is pending then.

        That is more where the memory can only go back to a saved state, or where the draft needs the row before once
        more because another token is to follow it; with `same_next` it is the same one.
        """
        sequence.is_dirty, sequence.rows = True, []
        same_next = same_next or ends_with_media(sequence.tokens, n_past)
        sequence.n_past = sequence.n_own = self._truncate(sequence.seq_id, n_past, same_next)
        sequence.is_dirty = False

    def _truncate(self, seq_id: int, n_past: int, same_next: bool) -> int:
        if self.drafter is not None and self.drafter.n_past(seq_id) > n_past:
            n_past = self.drafter.truncate(n_past, seq_id, same_next)
        return self.target.truncate(n_past, seq_id)

    def settle(self, sequence: Sequence) -> bool:
        """Make target and draft end where the sequence does; what must be evaluated again for that is pending then.

        False if what others decoded into it is gone; it is empty now.
        """
        n_past, seq_id, target, drafter = sequence.n_past, sequence.seq_id, self.target, self.drafter
        n_target = target.n_past(seq_id)
        # where somebody else has decoded, such as an image, positions may be fewer than tokens
        is_there = n_target == n_past or n_target < n_past > sequence.n_own
        # after an interrupt the draft may have gone back already
        n_seen = n_past if drafter is None else drafter.n_past(seq_id)
        if not is_there or target.holds_draft(seq_id) or n_seen != n_past:
            self.go_back(sequence, min(n_past, n_seen))
            if sequence.n_past < min(sequence.n_foreign, n_past):
                self.empty(sequence)
                return False
        sequence.is_dirty = False
        return True

    def flush(self) -> None:
        """Have the target evaluate all tokens that it has put off, and give up what leaves of trees share."""
        behind = [slot for slot in self.slots if self.target.n_replay(slot.seq_id) > 0]
        owners: list[Slot | Sequence] = [slot.user or slot for slot in behind]
        owners = [owner for owner in owners if not owner.is_dirty]
        for owner in owners:
            owner.is_dirty = True
        self.target.settle()
        for owner in owners:
            owner.is_dirty = False

    def empty(self, sequence: Sequence) -> None:
        """Forget all that target and draft hold of a sequence."""
        sequence.is_dirty, sequence.rows = True, []
        sequence.n_past = sequence.n_own = sequence.n_foreign = 0
        self._reset(sequence.seq_id)
        sequence.is_dirty = False

    def decoded_elsewhere(self, sequence: Sequence, n_past: int) -> None:
        """Somebody else has decoded into a sequence, up to n_past."""
        sequence.n_past = sequence.n_foreign = n_past
        drafter = self.drafter
        if drafter is not None and (n_seen := drafter.n_past(sequence.seq_id)) < n_past:
            self._draft_from(sequence.seq_id, n_past)
            positions = f"positions {n_seen} to {n_past - 1}"
            self._log(f"{positions} were decoded behind the draft's back; it goes on without them")

    def keep(self, parts: SequenceOf[ScheduledSequence], has_rows: bool, may_wait: SequenceOf[bool]) -> None:
        """After a pass: keep the accepted tokens of its parts, and show their rows to the draft if these still exist.

        may_wait: for each part whether nobody is going to draft soon. Whoever comes back after an interrupt finds some
        of this done.
        """
        drafts = [part for part in parts if part.draft.tokens]
        if drafts:
            self.target.keep_batch([part.sequence.seq_id for part in drafts], [part.path for part in drafts])
        drafter, tap = self.drafter, self.tap
        if drafter is None or tap is None or not has_rows:
            return
        seen = []
        for part, waits in zip(parts, may_wait, strict=True):
            s, start = part.sequence, part.n_past
            tokens = s.tokens[start : start + len(part.path)]
            if part.media:
                self._show_image(part.media, start, s.seq_id)
                tokens = [part.media.placeholder] * len(tokens)
            seen.append((s.seq_id, start, tokens, part.rows, waits))
        drafter.process_batch(tap, seen)

    def _show_image(self, media: Media, start: int, seq_id: int) -> None:
        """Rows of an image come next for the draft: it needs their positions if heads and targets have sections."""
        target, drafter = self.target, self.drafter
        assert drafter is not None
        if start != media.first or drafter.n_pos_per_row == 1 or target.n_pos_per_row == 1:
            return
        n_seen = drafter.n_past(seq_id)
        if n_seen < start:  # somebody has used it
            self._draft_from(seq_id, start)
        if n_seen <= start:
            pos = media.positions(target.position(start, seq_id)).copy()
            pos[3] = pos[0]  # pairs of channels that no section has are the first one's
            drafter.add_image(start, pos, media.n_pos, seq_id)

    def save(self, sequence: Sequence) -> None:
        """Keep the present state of a sequence to go back to, if its memory needs that."""
        self.target.save(sequence.seq_id)


def ends_with_media(tokens: SequenceOf[int], n: int) -> bool:
    """Whether the n-th token is an image's.

    The draft then keeps the slot of that row although another token may follow now: it is one row of many, and for it
    alone the image would have to be encoded again.
    """
    return 0 < n <= len(tokens) and tokens[n - 1] < 0
