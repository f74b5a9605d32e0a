"""The prefix cache: beginnings of evaluated texts in slots, host memory and a folder, found by the tree of prefixes.

`find` finds where the longest beginning of a prompt is held, `fetch` reads it from its file, `store` copies a slot to
host memory, `save` keeps the state of a running sequence. `slots` decides which sequence gets which slot, `prefix_disk`
what is written to the folder.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass

from .._core import SavedState
from .memory import N_MIN_COPIED, Memory, ends_with_media
from .prefix_disk import PrefixDisk, PrefixFiles
from .prefix_nodes import KeptState, Match, Prefix, Slot, key_of, n_common
from .prefix_tree import PrefixTree
from .sequence import Sequence, State

_EVALUATE_NS = 1e6
"""Nanoseconds to evaluate a token, until prompts were evaluated."""
_N_SHARE = 8
"""A text is copied from its slot while the engine is idle once an eighth of it is new: so a conversation of many turns
is written a few times, and what is lost when the process is killed is little of it."""
_CLOSE_SECONDS = 5.0
"""What `close` waits at most for a folder that is being opened."""
_log = logging.getLogger("llama_cpp_eagle3")


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is held of a sequence's beginning, where it can begin."""

    match: Match
    prefix: Prefix | None = None
    n_common: int = 0
    """Length of the common prefix."""
    n_past: int = 0
    """How many of them need not be evaluated again."""
    state: KeptState | None = None
    """The state to go back to for that; None: no state is needed."""
    same_next: bool = False
    """Whether the token after the first n_past is the same too, or an image ends there."""

    @property
    def tier(self) -> str:
        """ "slot", "host" or "disk": where it is, or was until the request asked for it; empty: nowhere."""
        if self.prefix is None:
            return ""
        if self.prefix.was_read or (self.state is not None and self.state.was_read):
            return "disk"
        return "slot" if self.prefix.is_in_slot else "host"

    @property
    def is_used_up(self) -> bool:
        """Whether no other request is likely to use the prefix: only its answer differs, which was sent changed."""
        assert self.prefix is not None
        n_lost = self.prefix.n_tokens - self.n_common
        return self.n_common >= self.prefix.n_turn or n_lost < N_MIN_COPIED


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """The contents of the prefix cache, and what it did since the model was loaded."""

    n_bytes: int
    """Bytes of host memory that prefixes and states take."""
    n_bytes_max: int
    n_prefixes: int
    """Prefixes in host memory; those in slots are not counted."""
    n_states: int
    """Saved states of recurrent layers and sliding windows."""
    n_evicted: int
    """Prefixes and states that were evicted from host memory for others."""
    n_too_large: int
    """Prefixes and states that were not kept because host memory may not hold one of them."""
    reused_tokens: dict[str, int]
    """Prompt tokens that were not evaluated again, by where they were: "slot", "host" or "disk"."""
    n_file_bytes: int = 0
    """Bytes of files; a prefix in a file and in host memory counts in both."""
    n_file_bytes_max: int = 0
    """Limit of these; 0: there is no folder."""
    n_prefix_files: int = 0
    n_state_files: int = 0
    n_evicted_files: int = 0
    """Files that were removed for others."""


class PrefixCache:
    """Finds and keeps prefixes and states in slots, in host memory and in a folder."""

    def __init__(
        self,
        memory: Memory,
        slots: SequenceOf[Slot],
        n_bytes_max: int,
        n_states_max: int,
        folder: PrefixFiles | Future[PrefixFiles | None] | None = None,
    ):
        """n_bytes_max: limit of host memory. n_states_max: states of one text at most. folder: kept over restarts."""
        self.memory, self.slots = memory, slots
        self.tree = PrefixTree(n_bytes_max, n_states_max)
        self._disk: PrefixDisk | None = None
        self._coming: Future[PrefixFiles | None] | None = None
        if folder is not None and n_bytes_max == 0:
            _log.warning(
                "nothing is kept over restarts: what is written is in host memory first, of which --cache-ram 0 "
                "(prefix_cache_bytes) leaves none"
            )
        if isinstance(folder, Future):
            self._coming = folder
            self._open()
        elif folder is not None:
            self._disk = PrefixDisk(folder, self.tree, memory)
        self.n_too_large = 0
        """Prefixes and states that were not kept because host memory may not hold one of them."""
        self._n_too_long = 0  # tokens of the shortest such prefix
        self._evaluate_ns = _EVALUATE_NS
        self._awaited: dict[Sequence, SequenceOf[Prefix | KeptState]] = {}  # what is read for waiting ones
        self._has_failed = False
        self._offered: dict[int, tuple[int, int]] = {}  # [slot]: what was copied last, or could not be
        self._n_reused = {"slot": 0, "host": 0, "disk": 0}

    @property
    def may_have_folder(self) -> bool:
        """Whether prefixes are kept in a folder, now or once it is open."""
        return self._disk is not None or self._coming is not None

    def _open(self, seconds: float = 0.0) -> None:
        """Use the folder once it is open. seconds: how long to wait for that."""
        if self._coming is None or not wait([self._coming], seconds).done:
            return
        coming, self._coming = self._coming, None
        try:
            folder = coming.result()
            if folder is not None:
                self._disk = PrefixDisk(folder, self.tree, self.memory)
        except Exception as e:
            _log.warning("nothing is kept over restarts: %s (--cache-disk, prefix_cache_dir)", e)

    @property
    def stats(self) -> PrefixStats:
        """What it holds and did. May be called from any thread."""
        tree = self.tree
        filed = tuple(tree.filed)
        n_prefix_files = sum(isinstance(item, Prefix) for item in filed)
        return PrefixStats(
            n_bytes=tree.n_bytes,
            n_bytes_max=tree.n_bytes_max,
            n_prefixes=len(tree.hosted),
            n_states=len(tree.states),
            n_evicted=tree.n_evicted,
            n_too_large=self.n_too_large,
            reused_tokens=dict(self._n_reused),
            n_file_bytes=tree.n_file_bytes,
            n_file_bytes_max=tree.n_file_bytes_max,
            n_prefix_files=n_prefix_files,
            n_state_files=len(filed) - n_prefix_files,
            n_evicted_files=tree.n_evicted_files,
        )

    # looking up

    def place_paused(self) -> None:
        """Put slots of paused sequences in the tree where their tokens end now: their clients may have changed them."""
        for slot in self.slots:
            if slot.is_free and slot.user is not None and slot.is_intact:
                self.place(slot)

    def find(self, sequence: Sequence, *, in_files: bool = False) -> Beginning:
        """Find where the longest beginning of a sequence's tokens is held, without the last one: its logits are needed.

        in_files: also in files, which must be read first.
        """
        if not sequence.request.reuses_prefix:
            return Beginning(Match(0, [], None))
        tokens = sequence.tokens
        match = self.tree.match(key_of(tokens))
        best, rank = Beginning(match), (0, 0, 0)
        for n, prefix in match.prefixes:
            if n < best.n_past:
                break
            n_past_min = prefix.n_past_min
            if not (prefix.is_in_slot or prefix.saved is not None or in_files):
                continue
            if prefix.is_in_slot:
                slot = self.slots[prefix.seq_id]
                if not slot.is_intact:
                    continue
                n = n_common(slot.tokens, tokens)  # a running sequence may not have evaluated so much
                n_past_min = 1 if self.memory.is_cut_anywhere else self.memory.target.n_past_min(slot.seq_id)
            n_past, state = min(n, len(tokens) - 1), None
            if n_past < n_past_min:
                state = match.state(n_past, in_files=in_files)
                n_past = 0 if state is None else state.n_tokens
            # among equals: the slot that the request names, a free slot, a busy one, host memory, the shortest file
            nearness = 0 if prefix.saved is not None else -1
            if prefix.is_in_slot:
                nearness = 1 + self.slots[prefix.seq_id].is_free + (prefix.seq_id == sequence.request.seq_id)
            n_to_read = prefix.file.n_bytes if nearness < 0 and prefix.file is not None else 0
            if (n_past, nearness, -n_to_read) > rank:
                same_next = n_past < n or ends_with_media(tokens, n_past)
                best, rank = Beginning(match, prefix, n, n_past, state, same_next), (n_past, nearness, -n_to_read)
        return best

    def fetch(self, sequence: Sequence, blocks: bool) -> bool:
        """Read what a sequence can begin with from its files; False: not yet, ask again. blocks: wait for that.

        What is read stays in host memory until `let_go`. It is not begun where not all of it has room there.
        """
        if self._disk is None or sequence.saved is not None:
            return True
        was_begun = self.let_go(sequence)
        source = self.find(sequence, in_files=True)
        items = [x for x in (source.prefix, source.state) if x is not None and (x.saved or x.file)]
        missing = [x for x in items if x.saved is None]
        if missing:
            n_new = source.n_past - self.find(sequence).n_past
            n_bytes, n_bytes_max = sum(x.n_bytes for x in items), self.tree.n_bytes_max
            is_slow = self._disk.read_ns(missing) > self._evaluate_ns * n_new
            if n_new < N_MIN_COPIED or is_slow or n_bytes > n_bytes_max:
                return True
            others = {x for held in self._awaited.values() for x in held} - {*items}
            if not blocks and n_bytes + sum(x.n_bytes for x in others) > n_bytes_max:
                return False
        elif not was_begun:
            return True
        self._hold(sequence, items)
        return not missing or self._disk.fetch(missing, blocks)

    def _hold(self, sequence: Sequence, items: SequenceOf[Prefix | KeptState]) -> None:
        """Keep items in host memory, as a sequence is about to begin with them."""
        self._awaited[sequence] = items
        for item in items:
            item.n_waiting += 1

    def let_go(self, sequence: Sequence) -> bool:
        """Tell that a sequence has begun, or will not; returns whether something was read for it."""
        items = self._awaited.pop(sequence, None)
        for item in items or ():
            item.n_waiting -= 1
        return items is not None

    @contextmanager
    def held(self, sequence: Sequence, source: Beginning) -> Iterator[None]:
        """Keep a source where it is while a sequence begins with it."""
        self.let_go(sequence)
        self._hold(sequence, [x for x in (source.prefix, source.state) if x is not None])
        try:
            yield
        finally:
            self.let_go(sequence)

    def drop(self, source: Beginning, error: Exception) -> None:
        """Drop a source that a sequence could not begin with."""
        prefix, items = source.prefix, [source.prefix, source.state]
        if prefix is None:
            return
        _log.warning(
            "%d tokens of the prefix cache cannot be loaded and are evaluated: %s", source.n_past, _reason(error)
        )
        for item in items:
            if item is None or (isinstance(item, Prefix) and (item.is_in_slot or item.is_pinned)):
                continue
            if isinstance(error, MemoryError):
                self.tree.leave_host(item)
            else:
                self.tree.drop(item)

    def ahead_of(self, sequence: Sequence, running: SequenceOf[Sequence]) -> tuple[Sequence, int] | None:
        """A running sequence that is about to evaluate a beginning of this one, and its length; None: none worth it."""
        if not sequence.request.reuses_prefix or sequence.saved is not None:
            return None
        ahead = [s for s in running if s.n_past < s.n_prompt and s.request.cache_prompt and not s.is_paced]
        n_there = -1
        for other in ahead:
            n = n_common(other.tokens[: other.n_prompt], sequence.tokens[:-1])
            if n <= other.n_past + N_MIN_COPIED or other.result.finish_reason:
                continue
            if n_there < 0:
                n_there = self.find(sequence).n_past
            if n - n_there >= N_MIN_COPIED:
                return other, n
        return None

    def observe(self, n_tokens: int, evaluate_ns: int) -> None:
        """Tell that n_tokens of a prompt were evaluated, which took evaluate_ns."""
        if n_tokens >= N_MIN_COPIED:
            self._evaluate_ns += (evaluate_ns / n_tokens - self._evaluate_ns) / 4

    def value(self, slot: Slot) -> float:
        """What it would cost to lose a slot's contents."""
        return self.tree.value(slot.prefix) if slot.prefix.node is not None else 0.0

    def n_states(self, slot: Slot) -> int:
        """Number of saved states that a slot can go back to."""
        return len(self.tree.match(key_of(slot.tokens)).states)

    def use(self, source: Beginning) -> None:
        """Tell that a request begins with a source."""
        items = source.prefix, source.match.state(source.n_past)
        self.tree.use(*items)
        if self._disk is not None:
            self._disk.used(*items)

    def count(self, sequence: Sequence, tier: str) -> None:
        """Count the tokens with which a request has begun, by the tier that they were in."""
        if sequence.n_past > 0:
            sequence.cached_in = tier
            self._n_reused[tier] += sequence.n_past

    # keeping

    def place(self, slot: Slot) -> None:
        """Put a slot in the tree where its tokens end; for a running sequence, where its prompt ends."""
        user = slot.user
        if user is None:
            tokens: SequenceOf[int] = slot.cached
        else:
            tokens = user.tokens[: max(user.n_past, user.n_prompt if user.state is not State.PAUSED else 0)]
        self.place_at(slot, tokens)

    def place_at(self, slot: Slot, tokens: SequenceOf[int]) -> None:
        """Put a slot in the tree where these tokens end."""
        if tokens:
            self.tree.insert(slot.prefix, key_of(tokens))
        else:
            self.tree.drop(slot.prefix)

    def save(self, sequence: Sequence) -> bool:
        """Keep the present state of a sequence to go back to, if its memory needs that.

        Returns:
            False if the state cannot be saved now, as the target has put tokens off to the next pass.
        """
        if not self.memory.needs_states or self.tree.n_states_max == 0:
            return True
        slot = self.slots[sequence.seq_id]
        self.place(slot)
        tokens = sequence.tokens[: sequence.n_past]
        if any(state.n_tokens == sequence.n_past for state in self.tree.match(key_of(tokens)).states):
            return True
        try:
            saved = self.memory.target.save(slot.seq_id)
        except Exception as e:
            self._not_kept("state", e)
            return True
        if saved is not None:
            self.add_state(tokens, saved)
        return saved is not None

    def add_state(self, tokens: SequenceOf[int], saved: SavedState) -> None:
        """Keep a state of these tokens."""
        if self._fits(saved.n_bytes, "state", len(tokens)):
            self.tree.insert_state(key_of(tokens), saved)

    def add_states(self, tokens: SequenceOf[int], states: SequenceOf[tuple[int, SavedState]]) -> None:
        """Keep the states of a slot that was loaded, or say once that it can only be continued where it ends."""
        for n_tokens, state in states:
            self.add_state(tokens[:n_tokens], state)
        if states and self.tree.n_bytes_max == 0 and not self._has_failed:
            self._has_failed = True
            _log.warning(
                "a slot of %d tokens was restored without its %d states, so only a prompt that goes on where it ends "
                "reuses it: there is no host memory for them (--cache-ram 0, prefix_cache_bytes; said once)",
                *(len(tokens), len(states)),
            )

    def store(self, slot: Slot, keep: Prefix | None = None, *, for_file: bool = False) -> bool:
        """Copy a slot to host memory, unless it is there already or too short; returns whether it was copied.

        keep: must not be evicted for it. for_file: evict others rather than this one until it is in a file.
        """
        tokens = slot.tokens
        if self.tree.n_bytes_max == 0 or len(tokens) < N_MIN_COPIED or not slot.is_intact:
            return False
        self.place_at(slot, tokens)
        key = key_of(tokens)
        found = list(self.tree.match(key).prefixes)
        held = [(n, prefix) for n, prefix in found if prefix.saved is not None]
        if any(n == len(tokens) and (prefix.n_tokens == n or self.memory.is_cut_anywhere) for n, prefix in held):
            return False
        if 0 < self._n_too_long <= len(tokens):
            self.n_too_large += 1
            return False
        try:
            saved = self.memory.state_of(slot.seq_id)
        except Exception as e:
            self._not_kept("prefix", e)
            return False
        if not self._fits(saved.n_bytes, "prefix", len(tokens)):
            self._n_too_long = len(tokens)
            return False
        n_past_min = 1 if self.memory.is_cut_anywhere else len(tokens)
        before = slot.prefix
        in_file = next((p for n, p in found if p.file is not None and n == p.n_tokens == len(tokens)), None)
        if in_file is None:
            prefix = Prefix(saved.n_bytes, saved=saved, n_past_min=n_past_min, n_hits=before.n_hits)
            self.tree.insert(prefix, key)
        else:
            prefix = in_file
            self.tree.host(prefix, saved)
        prefix.n_turn, prefix.used_at, prefix.is_busy = before.n_turn, before.used_at, for_file
        for n, other in held:
            if n == other.n_tokens and other is not keep and not other.is_pinned and not other.n_waiting:
                self.tree.leave_host(other)  # the new one begins with it
        self.tree.evict()
        return True

    def sync(self) -> None:
        """Take over what the folder's threads have read and written, and start more. Called before each step."""
        self._open()
        if self._disk is not None:
            self._disk.sync()

    def keep(self, share: int = _N_SHARE) -> bool:
        """Write to the folder while the engine has nothing to do; returns whether there is more to write.

        Then copies slots to host memory, one a call, if at least 1 / share of their tokens is in no file.
        """
        self._open()
        if self._disk is None:
            return self._coming is not None
        if self._disk.sync():
            return True
        for slot in self.slots:
            n = len(slot.tokens)
            what = slot.prefix.used_at, n
            if not slot.is_free or not slot.is_intact or n < N_MIN_COPIED or self._offered.get(slot.seq_id) == what:
                continue
            found = self.tree.match(key_of(slot.tokens)).prefixes
            kept = (m for m, p in found if not p.is_in_slot and (self.memory.is_cut_anywhere or p.n_tokens == m))
            if n - max(kept, default=0) >= max(N_MIN_COPIED, n // share):
                self._offered[slot.seq_id] = what  # once, or a slot that is refused would be copied again and again
                if self.store(slot, for_file=True):
                    self._disk.sync()
                    return True
        return False

    def read_ahead(self) -> bool:
        """Read what the last process used last while the engine has nothing to do; returns whether that goes on."""
        return self._disk is not None and self._disk.read_ahead()

    def close(self) -> None:
        """Write what is worth it before the process ends."""
        self._open(_CLOSE_SECONDS)
        if self._disk is None:
            if self._coming is not None:
                _log.warning(
                    "nothing of this run is kept: the model's files, which the prefix cache's files are named by, were "
                    "not read to their end (--cache-disk, prefix_cache_dir)"
                )
            return
        while self.keep(sys.maxsize):
            self._disk.flush()
        self._disk.close()

    def clear(self) -> None:
        """Clear host memory, except what preempted sequences go on from. Files stay."""
        for prefix in list(self.tree.hosted):
            if not prefix.is_pinned:
                self.tree.leave_host(prefix)
        self.tree.clear_states()

    def distrust(self, tokens: SequenceOf[int]) -> None:
        """Drop the beginnings of a text from host memory and files, because they gave NaN."""
        match = self.tree.match(key_of(tokens))
        for prefix in [prefix for n, prefix in match.prefixes if n > 0]:
            if not (prefix.is_in_slot or prefix.is_pinned):
                self.tree.drop(prefix)
        for state in match.states:
            self.tree.drop(state)

    def _not_kept(self, what: str, error: Exception) -> None:
        """Log once that something could not be copied to host memory."""
        if not self._has_failed:
            self._has_failed = True
            _log.warning("a %s is not kept (said once): %s", what, _reason(error))

    def _fits(self, n_bytes: int, what: str, n_tokens: int) -> bool:
        """Whether n_bytes are within the limit of host memory; if not, log it once."""
        n_max = self.tree.n_bytes_max
        if n_bytes <= n_max:
            return True
        self.n_too_large += 1
        if self.n_too_large == 1 and n_max > 0:
            _log.warning(
                "a %s of %d tokens has %.1f MiB and is not kept: the prefix cache may have %.1f MiB of host memory "
                "(--cache-ram, prefix_cache_bytes)",
                *(what, n_tokens, n_bytes / 2**20, n_max / 2**20),
            )
        return False


def _reason(error: Exception) -> str:
    return "no host memory" if isinstance(error, MemoryError) else str(error) or type(error).__name__
