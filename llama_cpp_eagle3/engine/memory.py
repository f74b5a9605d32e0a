"""What target and draft hold of each sequence: places, prefixes that are kept, going back. Both move together, here.

A place is a sequence id of target and draft. A sequence that ends leaves its tokens there, for the next one that begins
with them, until the place or its cells are needed; what goes then may stay in host memory, up to a limit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from .._core import Drafter, FeatureTap, Target
from ..errors import ContextFullError, Eagle3Error
from .sequence import Part, Sequence, State

_N_WORTH_KEEPING = 32
"""Prefixes shorter than this are neither kept in host memory nor copied: to read them again is as quick."""
_SHARE_CONTINUED = 0.5
"""Of a kept prefix: a prompt that begins with so much of it goes on in its place, others get a copy."""


@dataclass(slots=True)
class Place:
    """A sequence id."""

    seq_id: int
    user: Sequence | None = None
    kept: list[int] = field(default_factory=list)
    """Tokens of a prefix that nobody uses."""
    used_at: int = 0

    @property
    def is_free(self) -> bool:
        """Whether another sequence may have it."""
        return self.user is None or self.user.state is State.HELD

    @property
    def tokens(self) -> SequenceOf[int]:
        """What target and draft hold there."""
        return self.kept if self.user is None else self.user.tokens[: self.user.n_past]


class HostStore:
    """Prefixes in host memory, the least recently used of which go first."""

    def __init__(self, n_bytes_max: int):
        self.n_bytes_max = n_bytes_max
        self.n_bytes = 0
        self._entries: OrderedDict[tuple[int, ...], tuple[bytes, bytes]] = OrderedDict()

    def put(self, tokens: SequenceOf[int], state: tuple[bytes, bytes]) -> None:
        """Keep a prefix; those that it begins with are dropped."""
        key = tuple(tokens)
        size = _n_bytes(state)
        if size > self.n_bytes_max:
            return
        for other in [other for other in self._entries if key[: len(other)] == other]:
            self._drop(other)
        self._entries[key] = state
        self.n_bytes += size
        while self.n_bytes > self.n_bytes_max:
            self._drop(next(iter(self._entries)))

    def find(self, tokens: SequenceOf[int]) -> tuple[tuple[int, ...], int]:
        """The prefix that shares the most tokens, and how many; ((), 0) if none does."""
        best: tuple[int, ...] = ()
        n_best = 0
        for key in self._entries:
            n = n_common(key, tokens)
            if n > n_best:
                best, n_best = key, n
        return best, n_best

    def take(self, key: tuple[int, ...]) -> tuple[bytes, bytes]:
        """Take a prefix out."""
        state = self._entries[key]
        self._drop(key)
        return state

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self.n_bytes = 0

    def _drop(self, key: tuple[int, ...]) -> None:
        self.n_bytes -= _n_bytes(self._entries.pop(key))

    def __len__(self) -> int:
        return len(self._entries)


class Memory:
    """The places of target and draft, and all that moves what they hold."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        tap: FeatureTap | None,
        n_host_bytes: int = 0,
        log: Callable[[str], None] = lambda text: None,
    ):
        """n_host_bytes: limit of host memory for prefixes that lost their place. log: told what users should know."""
        self.target, self.drafter, self.tap = target, drafter, tap
        self.places = [Place(seq_id) for seq_id in range(target.n_seq)]
        self.host = HostStore(n_host_bytes)
        self._log = log
        self._clock = 0

    # places

    def place(self, sequence: Sequence, seq_id: int | None = None) -> bool:
        """Give a sequence a place, with as much of its tokens as is there already; False if none is free.

        seq_id: this one and no other; it must be free.
        """
        free = [p for p in self.places if p.is_free and (seq_id is None or p.seq_id == seq_id)]
        if not free:
            return False
        if sequence.saved is not None:
            place = self._emptiest(free)
            self._vacate(place)
            if not self._load(place.seq_id, sequence.saved):
                return False
            sequence.saved = None
            self._occupy(place, sequence, sequence.n_past)
            return True
        n_wanted = len(sequence.tokens) - 1  # the last one is evaluated for its logits
        source, n_source = self._best(sequence.tokens, n_wanted, free)
        key, n_host = self.host.find(sequence.tokens[:n_wanted])
        if n_host > n_source:
            place = self._emptiest(free)
            self._vacate(place)
            state = self.host.take(key)
            place.kept = list(key) if self._load(place.seq_id, state) else []
            self._go_on_in(place, sequence, n_host)
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

    def _start_in(self, place: Place, sequence: Sequence) -> None:
        self._vacate(place)
        self._occupy(place, sequence, 0)

    def _go_on_in(self, place: Place, sequence: Sequence, n_past: int) -> None:
        """Take a free place over with the first n_past tokens that it holds, or fewer."""
        held = place.tokens
        if place.user is not None:
            self._dismiss(place.user)
        self._occupy(place, sequence, len(held))
        n_past = min(n_past, len(held))
        same_next = n_past < len(held) and held[n_past] == sequence.tokens[n_past]
        self.go_back(sequence, n_past, same_next)

    def _copy_to(self, place: Place, source: Place, sequence: Sequence, n_past: int) -> bool:
        """Have a free place hold the first tokens of another one too; False if it cannot go back there."""
        self._vacate(place)
        n = self.target.copy(source.seq_id, place.seq_id, n_past)
        if n == 0 and n_past >= _N_WORTH_KEEPING:
            # no cells to share: all that the other holds is copied, and taken back as far as need be
            try:
                self.target.state_set(place.seq_id, self.target.state_get(source.seq_id))
            except ContextFullError:
                return False
            n = self.target.truncate(n_past, place.seq_id)
        if n == 0:
            self._forget(place.seq_id)
            return False
        self._occupy(place, sequence, n)
        if self.drafter is not None:
            self.go_back(sequence, self.drafter.copy(source.seq_id, place.seq_id, n))
        return True

    def resume(self, sequence: Sequence, tokens: list[int]) -> None:
        """Have a sequence that is held in its place go on with other tokens, as far as they begin alike."""
        held = sequence.tokens[: sequence.n_past]
        n_same = n_common(held, tokens)
        if n_same == len(tokens) == len(held) and sequence.rows:
            sequence.tokens = tokens
            return  # its logits are still there
        if sequence.n_foreign == 0:
            seq_id = sequence.seq_id
            self.release(sequence)
            sequence.tokens = tokens
            self.place(sequence, seq_id)
            return
        consumed = n_same == len(tokens)
        n_reuse = n_same - 1 if consumed else n_same
        self.go_back(sequence, max(n_reuse, 0), same_next=consumed)
        if sequence.n_past < n_reuse and sequence.n_past < sequence.n_foreign:
            self.empty(sequence)
        sequence.n_foreign = min(sequence.n_foreign, sequence.n_past)
        sequence.tokens = tokens

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's place away; what it holds is kept there for others."""
        if sequence.seq_id < 0:
            return
        place = self.places[sequence.seq_id]
        if sequence.is_dirty or sequence.n_foreign > 0:
            self._forget(place.seq_id)
            place.kept = []
        else:
            place.kept = sequence.tokens[: sequence.n_past]
        place.user = None
        place.used_at = self._tick()
        sequence.seq_id = -1
        sequence.rows = []

    def put_aside(self, sequence: Sequence) -> None:
        """Take a sequence's place and cells away; `place` brings it back as it was."""
        place = self.places[sequence.seq_id]
        sequence.saved = self._save(place.seq_id)
        place.user, place.kept = None, []
        self._forget(place.seq_id)
        sequence.seq_id = -1
        sequence.rows = []

    def make_room(self) -> bool:
        """Let the least recently used prefix go that nobody uses; False if there is none."""
        kept = [p for p in self.places if p.is_free and p.tokens]
        if not kept:
            return False
        self._vacate(min(kept, key=lambda p: p.used_at))
        return True

    def adopt(self, sequence: Sequence, tokens: list[int]) -> None:
        """Somebody has filled the context anew: a held sequence has these tokens, and nothing else is there."""
        for place in self.places:
            if place.seq_id != sequence.seq_id:
                self.target.truncate(0, place.seq_id)
        sequence.tokens = tokens
        sequence.n_past = sequence.n_own = sequence.n_prompt = len(tokens)
        sequence.n_foreign, sequence.rows, sequence.is_dirty = 0, [], False

    def clear(self) -> None:
        """Forget everything that no running sequence holds, host memory included."""
        for place in self.places:
            if place.is_free:
                if place.user is not None:
                    self._dismiss(place.user)
                place.kept = []
                self._forget(place.seq_id)
        self.host.clear()

    def _best(self, tokens: SequenceOf[int], n_wanted: int, free: SequenceOf[Place]) -> tuple[Place | None, int]:
        """The place that shares the most tokens with a prompt, of equal ones a free one; and how many."""
        best, n_best = None, 0
        for place in self.places:
            if place.user is not None and place.user.n_foreign > 0:
                continue
            n = min(n_common(place.tokens, tokens), n_wanted)
            if n > n_best or (n == n_best > 0 and best not in free and place in free):
                best, n_best = place, n
        return best, n_best

    def _emptiest(self, free: SequenceOf[Place]) -> Place:
        return min(free, key=lambda p: (bool(p.tokens), p.used_at))

    def _occupy(self, place: Place, sequence: Sequence, n_past: int) -> None:
        place.user, place.kept = sequence, []
        place.used_at = self._tick()
        sequence.seq_id, sequence.n_past, sequence.n_own = place.seq_id, n_past, n_past
        sequence.rows = []

    def _vacate(self, place: Place) -> None:
        """Make a free place empty. A prefix that is worth it goes to host memory."""
        tokens = place.tokens
        if self.host.n_bytes_max > 0 and len(tokens) >= _N_WORTH_KEEPING:
            intact = place.user is None or (not place.user.is_dirty and place.user.n_foreign == 0)
            if intact:
                self.host.put(tokens, self._save(place.seq_id))
        if place.user is not None:
            self._dismiss(place.user)
        place.kept = []
        self._forget(place.seq_id)

    def _dismiss(self, held: Sequence) -> None:
        """The place of a sequence that nothing runs in goes to others."""
        self.places[held.seq_id].user = None
        held.seq_id, held.n_past, held.n_own, held.n_foreign, held.rows = -1, 0, 0, 0, []

    def _forget(self, seq_id: int) -> None:
        self.target.truncate(0, seq_id)
        if self.drafter is not None:
            self.drafter.reset(seq_id)

    def _save(self, seq_id: int) -> tuple[bytes, bytes]:
        return self.target.state_get(seq_id), b"" if self.drafter is None else self.drafter.state_get(seq_id)

    def _load(self, seq_id: int, state: tuple[bytes, bytes]) -> bool:
        try:
            self.target.state_set(seq_id, state[0])
        except ContextFullError:
            return False
        if self.drafter is not None and state[1]:
            self.drafter.state_set(state[1], seq_id)
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
        drafter, seq_id = self.drafter, sequence.seq_id
        start = n_past
        if drafter is not None and drafter.n_past(seq_id) > n_past:
            start = drafter.truncate(n_past, seq_id, same_next)
        start = self.target.truncate(start, seq_id)
        sequence.n_past = sequence.n_own = start
        sequence.rows = []
        sequence.is_dirty = False

    def settle(self, sequence: Sequence) -> None:
        """Make target and draft end where the sequence does; what must be evaluated again for that is pending then.

        Raises:
            Eagle3Error: what others decoded into it is gone; it is empty now.
        """
        n_past, seq_id = sequence.n_past, sequence.seq_id
        sequence.is_dirty = False
        if n_past > sequence.n_own:
            return  # somebody else has decoded, such as an image
        if self.target.n_past(seq_id) == n_past and not self.target.holds_draft(seq_id):
            drafter = self.drafter
            if drafter is None or drafter.n_past(seq_id) <= n_past:
                return
        self.go_back(sequence, n_past)
        if sequence.n_past < min(sequence.n_foreign, n_past):
            self.empty(sequence)
            raise Eagle3Error(f"the target's memory cannot go back to its first {n_past} tokens: it was reset")

    def empty(self, sequence: Sequence) -> None:
        """Forget all that target and draft hold of a sequence."""
        self._forget(sequence.seq_id)
        sequence.n_past = sequence.n_own = sequence.n_foreign = 0
        sequence.rows = []
        sequence.is_dirty = False

    def keep(self, part: Part) -> None:
        """After a pass: keep the accepted tokens of a part, and show their rows to the draft.

        Whoever comes back after an interrupt finds some of this done.
        """
        sequence, target = part.sequence, self.target
        if target.holds_draft(sequence.seq_id):
            target.keep(sequence.seq_id, part.path)
        drafter, tap = self.drafter, self.tap
        if drafter is None or tap is None:
            return
        n_seen = drafter.n_past(sequence.seq_id)
        if n_seen < part.n_past:
            sequence.n_foreign = part.n_past
            drafter.restart(part.n_past, sequence.seq_id)
            self._log(
                f"positions {n_seen} to {part.n_past - 1} were decoded behind the draft's back; it goes on without them"
            )
        first = max(0, n_seen - part.n_past)
        rows = [part.first_row + row for row in part.path[first:]]
        if rows:
            start = part.n_past + first
            drafter.process(tap, sequence.tokens[start : start + len(rows)], start, sequence.seq_id, rows)

    def save(self, sequence: Sequence) -> None:
        """Keep the present state of a sequence to go back to, if its memory needs that."""
        self.target.save(sequence.seq_id)


def n_common(a: SequenceOf[int], b: SequenceOf[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    return next(i for i in range(n) if a[i] != b[i])


def _n_bytes(state: tuple[bytes, bytes]) -> int:
    return len(state[0]) + len(state[1])
