"""Slots and the prefix cache.

A slot is a sequence id of target and draft. A sequence that ends leaves its tokens there as a cached prefix, for the
next prompt that begins with them, until the slot or its cells are needed. An evicted prefix may go to host memory, up
to a limit, and is restored from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field

from .._core import Drafter
from ..errors import Eagle3Error
from .memory import N_MIN_COPIED, Memory, ends_with_media
from .prefix_cache import HostPrefixCache, n_common
from .sequence import Saved, Sequence, State

_SHARE_CONTINUED = 0.5
"""Of a cached prefix: a prompt that begins with so much of it continues in its slot, others get a copy."""


@dataclass(slots=True)
class Slot:
    """A sequence id of target and draft."""

    seq_id: int
    user: Sequence | None = None
    cached: list[int] = field(default_factory=list)
    """Tokens of the cached prefix, while no sequence uses the slot."""
    is_dirty: bool = False
    """No sequence uses it, and what target and draft hold there is to be cleared."""
    used_at: int = 0

    @property
    def is_free(self) -> bool:
        """Whether another sequence may have it."""
        return self.user is None or self.user.state is State.PAUSED

    @property
    def tokens(self) -> SequenceOf[int]:
        """What target and draft hold there."""
        return self.cached if self.user is None else self.user.tokens[: self.user.n_past]

    @property
    def is_intact(self) -> bool:
        """Whether what it holds can be used by other sequences."""
        return self.user is None or not self.user.is_dirty


class Slots:
    """Assigns the slots of target and draft, and caches prefixes in those that are free."""

    def __init__(self, memory: Memory, prefix_cache_bytes: int = 0):
        """prefix_cache_bytes: of host memory, for evicted prefixes."""
        self.memory = memory
        self.all = [Slot(seq_id) for seq_id in range(memory.target.n_seq)]
        self.host = HostPrefixCache(prefix_cache_bytes)
        self._clock = 0

    def __getitem__(self, seq_id: int) -> Slot:
        return self.all[seq_id]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def set_drafter(self, drafter: Drafter | None) -> None:
        """Have another draft, which has evaluated nothing of what the target holds."""
        self.memory.set_drafter(drafter)
        for slot in self.all:
            self.memory.draft_from(slot.seq_id, len(slot.tokens))

    # slots

    def assign(self, sequence: Sequence, seq_id: int | None = None) -> bool:
        """Give a sequence a slot, with as much of its tokens as the prefix cache has; False if none is free.

        seq_id: this one and no other; it must be free.
        """
        free = [slot for slot in self.all if slot.is_free and (seq_id is None or slot.seq_id == seq_id)]
        if not free:
            return False
        if sequence.saved is not None:
            return self._resume_preempted(self._emptiest(free), sequence, sequence.saved)
        if not sequence.request.reuses_prefix:
            self._start_in(self._emptiest(free), sequence)
            return True
        n_wanted = len(sequence.tokens) - 1  # the last one is evaluated for its logits
        if sequence.request.seq_id is not None and not sequence.is_paced:  # it continues what this slot has cached
            n_cached = min(n_common(free[0].tokens, sequence.tokens), n_wanted)
            if n_cached > 0:
                self._continue_in(free[0], sequence, n_cached)
            else:
                self._start_in(free[0], sequence)
            return True
        source, n_source = self._best(sequence.tokens, n_wanted, free)
        key, n_host = self.host.find(sequence.tokens[:n_wanted])
        if n_host > n_source:
            slot, saved = self._emptiest(free), self.host.take(key)  # before what is there now goes to host memory
            self._evict(slot)
            with self._changing(slot):
                is_there = self.memory.load(slot.seq_id, saved)
            slot.cached = list(key) if is_there else []
            self._continue_in(slot, sequence, n_host)
        elif source is None:
            self._start_in(self._emptiest(free), sequence)
        elif source in free and (len(free) == 1 or n_source >= _SHARE_CONTINUED * len(source.tokens)):
            self._continue_in(source, sequence, n_source)
        elif not self._copy_to(self._emptiest([s for s in free if s is not source]), source, sequence, n_source):
            if source in free:  # it cannot be shared, but continued
                self._continue_in(source, sequence, n_source)
            else:
                self._start_in(self._emptiest(free), sequence)
        return True

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's slot away; its tokens stay there as a cached prefix."""
        if sequence.seq_id < 0:
            return
        slot = self.all[sequence.seq_id]
        if slot.is_intact:
            slot.cached = sequence.tokens[: sequence.n_past]
        else:
            slot.is_dirty = True
        slot.used_at = self._tick()
        self._detach(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's slot and cells away, its state to host memory; `assign` resumes it."""
        if sequence.is_dirty:
            self.memory.settle(sequence)
        slot, n_past = self.all[sequence.seq_id], sequence.n_past
        sequence.saved = self.memory.state_of(slot.seq_id)
        slot.is_dirty = True
        self._detach(sequence)
        sequence.n_past = n_past

    def take_over(self, sequence: Sequence, seq_id: int) -> None:
        """Assign a free slot that code outside of the engine has filled."""
        slot = self.all[seq_id]
        if slot.user is not None:
            self._detach(slot.user)
        slot.is_dirty = False
        self._occupy(slot, sequence, 0)

    def emptiest(self, seq_ids: SequenceOf[int]) -> int:
        """The one of these free slots whose eviction costs the least."""
        return self._emptiest([self.all[i] for i in seq_ids]).seq_id

    # prefix cache

    def evict(self) -> bool:
        """Evict the least recently used cached prefix; False if there is none."""
        if any(slot.is_dirty for slot in self.all):
            self.clear_dirty()
            return True
        cached = [slot for slot in self.all if slot.is_free and slot.tokens]
        if not cached:
            return False
        self._evict(min(cached, key=lambda slot: slot.used_at))
        return True

    def store_prefix(self, seq_id: int) -> tuple[list[int], Saved]:
        """Tokens of the cached prefix of a free slot, and the state of target and draft."""
        return self._unused(seq_id).cached, self.memory.state_of(seq_id)

    def restore_prefix(self, seq_id: int, tokens: SequenceOf[int], target: bytes, draft: bytes) -> None:
        """Load what `store_prefix` gave into a free slot, as its cached prefix. draft: empty without a head.

        Raises:
            ContextFullError: no room; the slot is empty then.
            Eagle3Error: the states are not what they should be; the slot is empty then.
        """
        slot = self._unused(seq_id)
        self._clear(slot)
        with self._changing(slot):
            self.memory.load_states(seq_id, len(tokens), target, draft)
        slot.cached, slot.used_at = list(tokens), self._tick()

    def evict_prefix(self, seq_id: int) -> int:
        """Clear a free slot; returns the length of its cached prefix."""
        slot = self._unused(seq_id)
        n_tokens = len(slot.tokens)
        self._clear(slot)
        return n_tokens

    def clear_dirty(self) -> None:
        """Clear free slots whose tokens no sequence can continue."""
        for slot in self.all:
            if slot.is_dirty:
                self._clear(slot)

    def clear(self) -> None:
        """Drop all cached prefixes, those in host memory included."""
        self.host.clear()
        for slot in self.all:
            if slot.is_free:
                self._clear(slot)

    def clear_cells(self) -> None:
        """Clear all slots and their cells, which may hold NaN; no sequence runs."""
        self.clear()
        self.memory.target.clear()

    def flush(self) -> None:
        """Have the target evaluate all tokens that it has put off, and give up what leaves of trees share."""
        behind = [slot for slot in self.all if self.memory.target.n_replay(slot.seq_id) > 0]
        owners: list[Slot | Sequence] = [slot.user or slot for slot in behind]
        owners = [owner for owner in owners if not owner.is_dirty]
        for owner in owners:
            owner.is_dirty = True
        self.memory.target.settle()
        for owner in owners:
            owner.is_dirty = False

    @contextmanager
    def _changing(self, slot: Slot) -> Iterator[None]:
        """Change what a free slot holds; after an error or interrupt in the middle it is cleared."""
        if slot.user is not None:
            self._detach(slot.user)
        slot.cached, slot.is_dirty = [], True
        yield
        slot.is_dirty = False

    def _start_in(self, slot: Slot, sequence: Sequence) -> None:
        self._evict(slot)
        self._occupy(slot, sequence, 0)

    def _continue_in(self, slot: Slot, sequence: Sequence, n_past: int) -> None:
        """Assign a free slot with the first n_past tokens that it holds, or fewer."""
        held = slot.tokens
        n_past = min(n_past, len(held))
        same_next = n_past < len(held) and held[n_past] == sequence.tokens[n_past]
        same_next = same_next or ends_with_media(held, n_past)
        with self._changing(slot):
            n_past = self.memory.truncate(slot.seq_id, n_past, same_next)
        self._occupy(slot, sequence, n_past)

    def _copy_to(self, slot: Slot, source: Slot, sequence: Sequence, n_past: int) -> bool:
        """Copy the first tokens of another slot into a free one; False if it cannot go back there."""
        self._evict(slot)
        with self._changing(slot):
            n_past = self.memory.copy(source.seq_id, slot.seq_id, n_past, source.tokens)
        if n_past == 0:
            self._clear(slot)
            return False
        self._occupy(slot, sequence, n_past)
        return True

    def _resume_preempted(self, slot: Slot, sequence: Sequence, saved: Saved) -> bool:
        """Load a preempted sequence's state; False if the context has no room."""
        n_past = sequence.n_past
        self._evict(slot)
        with self._changing(slot):
            if not self.memory.load(slot.seq_id, saved):
                return False
        sequence.saved = None
        self._occupy(slot, sequence, n_past)
        return True

    def _best(self, tokens: SequenceOf[int], n_wanted: int, free: SequenceOf[Slot]) -> tuple[Slot | None, int]:
        """The slot with the longest common prefix, of equal ones a free one; and its length."""
        best, n_best = None, 0
        for slot in self.all:
            if not slot.is_intact:
                continue
            n = min(n_common(slot.tokens, tokens), n_wanted)
            if n > n_best or (n == n_best > 0 and best not in free and slot in free):
                best, n_best = slot, n
        return best, n_best

    def _emptiest(self, free: SequenceOf[Slot]) -> Slot:
        return min(free, key=lambda slot: (bool(slot.tokens), slot.used_at))

    def _occupy(self, slot: Slot, sequence: Sequence, n_past: int) -> None:
        slot.user, slot.cached = sequence, []
        slot.used_at = self._tick()
        sequence.seq_id, sequence.n_past, sequence.rows = slot.seq_id, n_past, []

    def _detach(self, sequence: Sequence) -> None:
        """A sequence has no slot any more; the caller decides about the tokens in it."""
        self.all[sequence.seq_id].user = None
        sequence.seq_id, sequence.n_past, sequence.rows, sequence.is_dirty = -1, 0, [], False

    def _unused(self, seq_id: int) -> Slot:
        slot = self.all[seq_id]
        if not slot.is_free:
            raise Eagle3Error(f"slot {seq_id} is in use")
        if slot.user is not None:
            self.release(slot.user)
        if slot.is_dirty:
            self._clear(slot)
        return slot

    def _evict(self, slot: Slot) -> None:
        """Empty a free slot. A prefix that is worth it goes to host memory."""
        tokens = slot.tokens
        if self.host.n_bytes_max > 0 and len(tokens) >= N_MIN_COPIED and slot.is_intact:
            self.host.put(tokens, self.memory.state_of(slot.seq_id))
        self._clear(slot)

    def _clear(self, slot: Slot) -> None:
        with self._changing(slot):
            self.memory.reset(slot.seq_id)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
