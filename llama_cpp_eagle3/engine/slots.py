"""Slots: which sequence has which slot, and with which cached prefix it begins.

A slot is a sequence id of target and drafters. A sequence that ends leaves its tokens there as a cached prefix, for the
next prompt that begins with them, until the slot or its cells are needed. An evicted prefix may be kept in host memory,
up to a limit, and in a folder, and is loaded from there. `prefix_cache` finds and keeps prefixes, `prefix_tree` knows
where each is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future
from contextlib import contextmanager

from .._core import Drafter, SavedState
from ..errors import Eagle3Error
from .arguments import as_type
from .memory import N_MIN_COPIED, Memory
from .prefix_cache import Beginning, PrefixCache
from .prefix_disk import PrefixFiles
from .prefix_nodes import Prefix, Slot, key_of
from .sequence import Saved, Sequence, StoredPrefix

_log = logging.getLogger("llama_cpp_eagle3")


class Slots:
    """Assigns the slots of target and draft, and caches prefixes in those that are free."""

    def __init__(
        self,
        memory: Memory,
        prefix_cache_bytes: int = 0,
        ctx_checkpoints: int = 32,
        prefix_folder: PrefixFiles | Future[PrefixFiles | None] | None = None,
    ):
        """Make the slots of an empty context.

        Args:
            memory: of target and draft.
            prefix_cache_bytes: of host memory, for evicted prefixes and saved states.
            ctx_checkpoints: saved states of one text.
            prefix_folder: where prefixes and states are kept over restarts, now or once it is open.
        """
        self.memory = memory
        self.all = [Slot(i, Prefix(0, seq_id=i)) for i in range(memory.target.n_seq)]
        self.cache = PrefixCache(memory, self.all, prefix_cache_bytes, ctx_checkpoints, prefix_folder)
        self.has_bad_cells = False
        """Whether cells may hold NaN."""
        self._has_said_windows = False
        self._preempted: dict[int, Prefix] = {}  # by the id of the sequence

    def __getitem__(self, seq_id: int) -> Slot:
        return self.all[seq_id]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def set_drafters(self, drafters: SequenceOf[Drafter]) -> None:
        """Use other drafters, which have evaluated nothing of what the target holds."""
        self.memory.set_drafters(drafters)
        for slot in self.all:
            self.memory.drafters.restart(len(slot.tokens), slot.seq_id, slot.tokens)

    # slots

    def assign(self, sequence: Sequence, seq_id: int | None = None) -> bool:
        """Give a sequence a slot, with as much of its tokens as the prefix cache has; False if none is free.

        What cannot be loaded is evaluated. seq_id: only this slot will do, and it must be free.
        """
        free = [slot for slot in self.all if slot.is_free and (seq_id is None or slot.seq_id == seq_id)]
        if not free:
            return False
        self.cache.tree.clock += 1
        if sequence.saved is not None:
            try:
                return self._resume_preempted(self._cheapest(free), sequence, sequence.saved)
            except Exception as e:
                _log.warning("%d tokens of a preempted request are evaluated again: %s", sequence.n_past, e)
                self.forget(sequence)
                sequence.n_past, self.has_bad_cells = 0, True
        source = self.cache.find(sequence)
        prefix, tier = source.prefix, source.tier
        self.cache.use(source)
        n_hits = 0 if prefix is None else prefix.n_hits
        with self.cache.held(sequence, source):
            try:
                self._begin(free, sequence, source)
            except Exception as e:
                self.cache.drop(source, e)
                self.has_bad_cells = True  # some of what was refused may be there
                self._start_in(self._cheapest(free), sequence)
        if sequence.n_cached < 0:  # set already if it goes on after a pause
            self.cache.count(sequence, tier)
        self.all[sequence.seq_id].prefix.n_hits = n_hits if sequence.n_past else 0
        if sequence.n_past >= N_MIN_COPIED:
            self.cache.save(sequence)  # where texts have parted once
        sequence.saves.begin_at(sequence.n_past)
        return True

    def _begin(self, free: SequenceOf[Slot], sequence: Sequence, source: Beginning) -> None:
        prefix = source.prefix
        if prefix is None or source.n_past == 0:
            self._start_in(self._cheapest(free), sequence)
        elif prefix.saved is not None:
            self._load(self._cheapest(free), sequence, source, prefix.saved)
        else:
            self._share(self.all[prefix.seq_id], free, sequence, source)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's slot away; its tokens stay there as a cached prefix."""
        if sequence.seq_id < 0:
            return
        slot = self.all[sequence.seq_id]
        is_intact, tokens = slot.is_intact, sequence.tokens[: sequence.n_past]
        stats = sequence.result.stats
        self.cache.observe(stats.prompt_tokens, stats.prefill_ns)
        self._detach(sequence)
        slot.prefix.used_at = self.cache.tree.clock
        if is_intact:
            slot.cached = tokens
            self.cache.place(slot)
        else:
            slot.is_dirty = True

    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's slot and cells away and keep its state in host memory; `assign` resumes it.

        What cannot be kept is evaluated again.
        """
        if sequence.is_dirty:
            self.memory.settle(sequence)
        slot, n_past = self.all[sequence.seq_id], sequence.n_past
        if n_past > 0:
            try:
                sequence.saved = saved = self.memory.state_of(slot.seq_id)
                pinned = Prefix(saved.n_bytes, saved=saved, n_turn=sequence.saves.n_turn, is_pinned=True)
                pinned.n_past_min = 1 if self.memory.is_cut_anywhere else n_past
                self.cache.tree.insert(pinned, key_of(sequence.tokens[:n_past]))
                self._preempted[id(sequence)] = pinned
            except Exception as e:
                _log.warning("%d tokens of a preempted request are evaluated again: %s", n_past, e)
                n_past = 0
        slot.is_dirty = True
        self._detach(sequence)
        sequence.n_past = n_past

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a preempted sequence, which will not go on, and what was read for a waiting one."""
        sequence.saved = None
        self.cache.let_go(sequence)
        pinned = self._preempted.pop(id(sequence), None)
        if pinned is not None:
            self.cache.tree.drop(pinned)

    def take_over(self, sequence: Sequence, seq_id: int) -> None:
        """Assign a free slot that code outside of the engine has filled."""
        slot = self.all[seq_id]
        if slot.user is not None:
            self._detach(slot.user)
        slot.is_dirty = False
        self._occupy(slot, sequence, 0)

    def emptiest(self, seq_ids: SequenceOf[int]) -> int:
        """The one of these free slots whose eviction costs the least."""
        return self._cheapest([self.all[i] for i in seq_ids]).seq_id

    # prefix cache

    def evict(self) -> bool:
        """Evict the cached prefix of the least value; False if there is none."""
        if any(slot.is_dirty for slot in self.all):
            self.clear_dirty()
            return True
        return self._evict_other(None)

    def store_prefix(self, seq_id: int) -> StoredPrefix:
        """The cached prefix of a free slot, with all states that it can go back to."""
        slot = self._unused(seq_id)
        tokens, n_turn, saved = slot.cached, min(slot.prefix.n_turn, len(slot.cached)), self.memory.state_of(seq_id)
        states = self.cache.tree.match(key_of(tokens)).states
        kept = {state.n_tokens: state.saved for state in states if state.saved is not None}
        if self.memory.n_window:
            kept |= self._save_windows(slot, saved, kept)
        return StoredPrefix(tokens, saved.target, saved.draft, sorted(kept.items()), n_turn)

    def _save_windows(self, slot: Slot, saved: Saved, known: Collection[int]) -> dict[int, SavedState]:
        """Save the sliding windows of a free slot where other prompts may go on, and one after the other between.

        Of a slot, llama.cpp saves the last window alone. So the slot goes back to each position, and is loaded again;
        then it too can go back only to these states. known: positions of states that there are.
        """
        tokens, n_turn, ends, tree = slot.cached, slot.prefix.n_turn, slot.ends, self.cache.tree
        n_most = min(tree.n_states_max, tree.n_bytes_max // max(1, self.memory.target.n_state_bytes(slot.seq_id)))
        step = max(self.memory.n_window, len(tokens) // max(1, n_most - len(ends)))
        places = dict.fromkeys([*reversed(ends), *reversed(range(step, len(tokens), step))])
        wanted = [n for n in places if 0 < n < len(tokens) and n not in known][: max(0, n_most - len(known))]
        if not wanted:
            if n_most == 0 and not known and self.memory.n_window < len(tokens) and not self._has_said_windows:
                self._has_said_windows = True
                _log.warning(
                    "a saved slot has no sliding windows, since host memory has no room for one (--cache-ram, "
                    "prefix_cache_bytes): once restored, it goes on where it ends and nowhere else (said once)"
                )
            return {}
        self.memory.target.attach(tree.match(key_of(tokens)).saved, slot.seq_id)
        with self._changing(slot):
            found = self.memory.windows_at(slot.seq_id, wanted)
            self.memory.reset(slot.seq_id)
            is_there = self.memory.load(slot.seq_id, saved, tokens)
            while not is_there and self._evict_other(slot):
                is_there = self.memory.load(slot.seq_id, saved, tokens)
        if is_there:
            slot.cached, slot.ends, slot.prefix.n_turn = tokens, ends, n_turn
            self.cache.place(slot)
            for n, state in found:
                self.cache.add_state(tokens[:n], state)
        else:
            self._clear(slot)
        return dict(found)

    def restore_prefix(self, seq_id: int, stored: StoredPrefix) -> None:
        """Load what `store_prefix` gave into a free slot, as its cached prefix.

        Raises:
            ContextFullError: no room; the slot is empty then.
            Eagle3Error: the states are damaged, or of another model; the slot is empty then.
        """
        slot = self._unused(seq_id)
        self._clear(slot)
        with self._changing(slot):
            self.memory.load_states(seq_id, len(stored.tokens), stored.target, stored.draft)
        slot.cached, slot.ends = list(stored.tokens), [n for n, _ in stored.states]
        slot.prefix.n_turn = stored.n_turn
        self.cache.place(slot)
        self.cache.add_states(stored.tokens, stored.states)

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
        """Drop all cached prefixes, those in host memory included, and all saved states."""
        self.cache.clear()
        for slot in self.all:
            if slot.is_free:
                self._clear(slot)

    def clear_cells(self) -> None:
        """Clear all slots and their cells, which may hold NaN; no sequence runs."""
        self.clear()
        self.memory.target.clear()
        self.has_bad_cells = False

    def flush(self) -> None:
        """Let the target evaluate all tokens that it has put off, and free the leaves of trees."""
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
        """Change a free slot's contents; if an error or interrupt ends the block, the slot is cleared."""
        if slot.user is not None:
            self._detach(slot.user)
        slot.cached, slot.is_dirty = [], True
        yield
        slot.is_dirty = False

    def _start_in(self, slot: Slot, sequence: Sequence) -> None:
        self._evict(slot)
        self._occupy(slot, sequence, 0)

    def _share(self, source: Slot, free: SequenceOf[Slot], sequence: Sequence, found: Beginning) -> None:
        """Begin with what a slot holds: continue there, or get a copy."""
        if source not in free:
            if not self._copy_to(self._cheapest(free), source, sequence, found):
                self._start_in(self._cheapest(free), sequence)
            return
        if found.is_used_up:
            self._continue_in(source, sequence, found)
            return
        others = [slot for slot in free if slot is not source]
        to = self._cheapest(others) if others else source
        if to.tokens and self.cache.value(to) > self.cache.value(source):
            to = source
        if to is source or not self._copy_to(to, source, sequence, found):
            self.cache.store(source)
            self._continue_in(source, sequence, found)

    def _continue_in(self, slot: Slot, sequence: Sequence, found: Beginning) -> None:
        """Assign a free slot with the first n_past tokens that it holds, or fewer."""
        self.memory.target.attach(found.match.saved, slot.seq_id)
        with self._changing(slot):
            n_past = self.memory.truncate(slot.seq_id, found.n_past, found.same_next)
        self._occupy(slot, sequence, n_past)

    def _copy_to(self, slot: Slot, source: Slot, sequence: Sequence, found: Beginning) -> bool:
        """Copy the first tokens of another slot into a free one; False if it cannot go back there."""
        self._evict(slot)
        with self._changing(slot):
            n_past = self.memory.copy(source.seq_id, slot.seq_id, found.n_past, found.match.saved, found.same_next)
        if n_past == 0:
            self._clear(slot)
            return False
        self._occupy(slot, sequence, n_past)
        return True

    def _load(self, slot: Slot, sequence: Sequence, found: Beginning, saved: Saved) -> None:
        """Load a prefix from host memory into a free slot; it stays there if another text may go on from its end."""
        prefix = found.prefix
        assert prefix is not None
        is_taken = not prefix.is_pinned and found.is_used_up
        if is_taken:
            self.cache.tree.pin(prefix)  # so that the slot's present contents are not evicted for it
        self._evict(slot, keep=prefix)
        self.cache.place_at(slot, sequence.tokens[: found.n_past])  # its states go along
        if is_taken:
            self.cache.tree.leave_host(prefix)
        with self._changing(slot):
            tokens = sequence.tokens[: found.n_common]
            is_there = self.memory.load(slot.seq_id, saved, tokens)
            while not is_there and not self._has_room(slot, saved.n_past) and self._evict_other(slot):
                is_there = self.memory.load(slot.seq_id, saved, tokens)
            n_past = 0
            if not is_there and self._has_room(slot, saved.n_past):
                raise Eagle3Error("the target refuses its state, for which there is room")
            if is_there:
                self.memory.target.attach(found.match.saved, slot.seq_id)
                n_past = self.memory.truncate(slot.seq_id, found.n_past, found.same_next)
        self._occupy(slot, sequence, n_past)

    def _resume_preempted(self, slot: Slot, sequence: Sequence, saved: Saved) -> bool:
        """Load a preempted sequence's state; False if the context has no room."""
        n_past = sequence.n_past
        self._evict(slot)
        match = self.cache.tree.match(key_of(sequence.tokens[:n_past]))
        with self._changing(slot):
            if not self.memory.load(slot.seq_id, saved, sequence.tokens[:n_past]):
                return False
            self.memory.target.attach(match.saved, slot.seq_id)
        self._occupy(slot, sequence, n_past)
        self.forget(sequence)
        return True

    def _cheapest(self, slots: SequenceOf[Slot]) -> Slot:
        """The slot whose contents are worth the least: an empty one, else by the tree's value."""
        return min(slots, key=lambda slot: (bool(slot.tokens), self.cache.value(slot)))

    def _occupy(self, slot: Slot, sequence: Sequence, n_past: int) -> None:
        slot.user, slot.cached = sequence, []
        slot.ends = sequence.saves.ends
        sequence.seq_id, sequence.n_past, sequence.rows = slot.seq_id, n_past, []
        slot.prefix.n_turn, slot.prefix.used_at = sequence.saves.n_turn, self.cache.tree.clock
        self.cache.place(slot)

    def _detach(self, sequence: Sequence) -> None:
        """Detach a sequence from its slot; the caller decides about the tokens there."""
        self.all[sequence.seq_id].user = None
        sequence.seq_id, sequence.n_past, sequence.rows, sequence.is_dirty = -1, 0, [], False

    def _unused(self, seq_id: int) -> Slot:
        seq_id = as_type("seq_id", seq_id, int)
        if not 0 <= seq_id < len(self.all):
            raise ValueError(f"expected seq_id in 0..{len(self.all) - 1}, found {seq_id}")
        slot = self.all[seq_id]
        if not slot.is_free:
            raise Eagle3Error(f"slot {seq_id} is in use: wait until its sequence has ended, or cancel it")
        if slot.user is not None:
            self.release(slot.user)
        if slot.is_dirty:
            self._clear(slot)
        return slot

    def _evict(self, slot: Slot, keep: Prefix | None = None) -> None:
        """Empty a free slot. Its prefix is kept in host memory if it is worth it. keep: is not evicted for that."""
        self.cache.store(slot, keep)
        self._clear(slot)

    def _has_room(self, slot: Slot, n_tokens: int) -> bool:
        """Whether an empty slot certainly has cells for so many tokens."""
        target = self.memory.target
        n_others = sum(len(other.tokens) for other in self.all if other is not slot) if target.is_pooled else 0
        return n_others + n_tokens <= target.n_ctx

    def _evict_other(self, slot: Slot | None) -> bool:
        """Evict the cached prefix of the least value, in another slot than this; False if there is none."""
        cached = [other for other in self.all if other is not slot and other.is_free and other.tokens]
        if not cached:
            return False
        self._evict(self._cheapest(cached))
        return True

    def _clear(self, slot: Slot) -> None:
        with self._changing(slot):
            self.memory.reset(slot.seq_id)
        self.cache.tree.drop(slot.prefix)
