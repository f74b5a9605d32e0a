"""What target and draft hold of each sequence: places, prefixes that are kept, going back. Both move together, here.

A place is a sequence id of target and draft. A sequence that ends leaves its tokens there, for the next one that begins
with them, until the place or its cells are needed; what goes then may stay in host memory, up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field

from .._core import Drafter, FeatureTap, Target
from ..errors import ContextFullError, Eagle3Error
from .host_store import HostStore, n_common
from .media import Media
from .sequence import Part, Saved, Sequence, State

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
    is_dirty: bool = False
    """Nobody uses it, and what target and draft hold there is to be forgotten."""
    used_at: int = 0

    @property
    def is_free(self) -> bool:
        """Whether another sequence may have it."""
        return self.user is None or self.user.state is State.HELD

    @property
    def tokens(self) -> SequenceOf[int]:
        """What target and draft hold there."""
        return self.kept if self.user is None else self.user.tokens[: self.user.n_past]


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
        self._n_heads = 1
        self.places = [Place(seq_id) for seq_id in range(target.n_seq)]
        self.host = HostStore(n_host_bytes)
        self._log = log
        self._clock = 0

    def set_drafter(self, drafter: Drafter | None) -> None:
        """Have another draft, which has seen nothing of what the target holds."""
        self.drafter = drafter
        self._n_heads += 1
        for place in self.places:
            self._draft_from(place.seq_id, len(place.tokens))

    def _draft_from(self, seq_id: int, n_past: int) -> None:
        """Have the draft go on at a position, without what lies before."""
        if self.drafter is not None:
            self.drafter.restart(n_past, seq_id)

    # places

    def place(self, sequence: Sequence, seq_id: int | None = None) -> bool:
        """Give a sequence a place, with as much of its tokens as is there already; False if none is free.

        seq_id: this one and no other; it must be free.
        """
        free = [p for p in self.places if p.is_free and (seq_id is None or p.seq_id == seq_id)]
        if not free:
            return False
        if sequence.saved is not None:
            place, n_past = self._emptiest(free), sequence.n_past
            self._vacate(place)
            with self._changing(place):
                if not self._load(place.seq_id, sequence.saved):
                    return False
            sequence.saved = None
            self._occupy(place, sequence, n_past)
            return True
        if not sequence.use_kept:
            self._start_in(self._emptiest(free), sequence)
            return True
        n_wanted = len(sequence.tokens) - 1  # the last one is evaluated for its logits
        if sequence.seq_id_wanted is not None:  # it is to go on from what is there
            n_kept = min(n_common(free[0].kept, sequence.tokens), n_wanted)
            if n_kept > 0:
                self._go_on_in(free[0], sequence, n_kept)
            else:
                self._start_in(free[0], sequence)
            return True
        source, n_source = self._best(sequence.tokens, n_wanted, free)
        key, n_host = self.host.find(sequence.tokens[:n_wanted])
        if n_host > n_source:
            place, saved = self._emptiest(free), self.host.take(key)  # before what is there now goes to host memory
            self._vacate(place)
            self._bring_back(place, key, saved)
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

    @contextmanager
    def _changing(self, place: Place) -> Iterator[None]:
        """Change what a free place holds; whoever comes after an error or interrupt in the middle forgets all of it."""
        if place.user is not None:
            self._detach(place.user)
        place.kept, place.is_dirty = [], True
        yield
        place.is_dirty = False

    def _start_in(self, place: Place, sequence: Sequence) -> None:
        self._vacate(place)
        self._occupy(place, sequence, 0)

    def _bring_back(self, place: Place, key: tuple[int, ...], saved: Saved) -> None:
        """Load a prefix from host memory into an empty place, if there is room."""
        with self._changing(place):
            is_there = self._load(place.seq_id, saved)
        place.kept = list(key) if is_there else []

    def _go_on_in(self, place: Place, sequence: Sequence, n_past: int) -> None:
        """Take a free place over with the first n_past tokens that it holds, or fewer."""
        held = place.tokens
        n_past = min(n_past, len(held))
        same_next = n_past < len(held) and held[n_past] == sequence.tokens[n_past]
        same_next = same_next or ends_with_media(held, n_past)
        with self._changing(place):
            n_past = self._truncate(place.seq_id, n_past, same_next)
        self._occupy(place, sequence, n_past)

    def _copy_to(self, place: Place, source: Place, sequence: Sequence, n_past: int) -> bool:
        """Have a free place hold the first tokens of another one too; False if it cannot go back there."""
        self._vacate(place)
        with self._changing(place):
            n_past = self._copy(source.seq_id, place.seq_id, n_past)
            if n_past > 0 and self.drafter is not None:
                same_next = ends_with_media(source.tokens, n_past)
                n_seen = self.drafter.copy(source.seq_id, place.seq_id, n_past, same_next)
                n_past = self.target.truncate(n_seen, place.seq_id)
        if n_past == 0:
            self._forget(place)
            return False
        self._occupy(place, sequence, n_past)
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
            place.is_dirty = True
        else:
            place.kept = sequence.tokens[: sequence.n_past]
        place.used_at = self._tick()
        self._detach(sequence)

    def put_aside(self, sequence: Sequence) -> None:
        """Take a sequence's place and cells away; `place` brings it back as it was."""
        if sequence.is_dirty:
            self.settle(sequence)
        place, n_past = self.places[sequence.seq_id], sequence.n_past
        sequence.saved = self._save(place.seq_id)
        place.is_dirty = True
        self._detach(sequence)
        sequence.n_past = n_past

    def tidy(self) -> None:
        """Forget what nobody uses and nobody can go on from."""
        for place in self.places:
            if place.is_dirty:
                self._forget(place)

    def make_room(self) -> bool:
        """Let the least recently used prefix go that nobody uses; False if there is none."""
        if any(place.is_dirty for place in self.places):
            self.tidy()
            return True
        kept = [p for p in self.places if p.is_free and p.tokens]
        if not kept:
            return False
        self._vacate(min(kept, key=lambda p: p.used_at))
        return True

    def take_over(self, sequence: Sequence, seq_id: int) -> None:
        """Somebody has filled a free place: it is this sequence's, which has not taken in anything yet."""
        place = self.places[seq_id]
        if place.user is not None:
            self._detach(place.user)
        place.is_dirty = False
        self._occupy(place, sequence, 0)

    def adopt(self, sequence: Sequence, tokens: list[int], seq_id: int) -> None:
        """Somebody has filled the context anew: a sequence has these tokens, and nothing else is there."""
        for place in self.places:
            if place.seq_id != seq_id:
                self._forget(place)
        self._draft_from(seq_id, len(tokens))
        self.take_over(sequence, seq_id)
        sequence.tokens = tokens
        sequence.n_past = sequence.n_own = sequence.n_prompt = len(tokens)

    def kept(self, seq_id: int) -> tuple[list[int], Saved]:
        """Tokens that are kept in a place that nobody uses, and what target and draft hold of them."""
        return self._unused(seq_id).kept, self._save(seq_id)

    def keep_there(self, seq_id: int, tokens: SequenceOf[int], target: bytes, draft: bytes) -> None:
        """Have a place that nobody uses keep tokens, from what `kept` gave somewhere else; draft: empty without a head.

        Raises:
            ContextFullError: no room; the place is empty then.
            Eagle3Error: the states are not what they should be; the place is empty then.
        """
        place = self._unused(seq_id)
        self._forget(place)
        with self._changing(place):
            self.target.state_set(seq_id, target)
            if self.target.n_past(seq_id) != len(tokens):
                raise Eagle3Error(f"expected a state of {len(tokens)} tokens, found {self.target.n_past(seq_id)}")
            if self.drafter is not None and draft:
                self.drafter.state_set(draft, seq_id)
            else:
                self._draft_from(seq_id, len(tokens))
        place.kept, place.used_at = list(tokens), self._tick()

    def forget(self, seq_id: int) -> int:
        """Forget what is kept in a place that nobody uses; returns how many tokens that was."""
        place = self._unused(seq_id)
        n_tokens = len(place.tokens)
        self._forget(place)
        return n_tokens

    def _unused(self, seq_id: int) -> Place:
        place = self.places[seq_id]
        if not place.is_free:
            raise Eagle3Error(f"place {seq_id} is in use")
        if place.user is not None:
            self.release(place.user)
        if place.is_dirty:
            self._forget(place)
        return place

    def clear(self) -> None:
        """Forget everything that no running sequence holds, host memory included."""
        self.host.clear()
        for place in self.places:
            if place.is_free:
                self._forget(place)

    def scrub(self) -> None:
        """Forget everything, and clear the cells too: no sequence runs, and what is in the cells may be NaN."""
        self.clear()
        self.target.clear()

    def _best(self, tokens: SequenceOf[int], n_wanted: int, free: SequenceOf[Place]) -> tuple[Place | None, int]:
        """The place that shares the most tokens with a prompt, of equal ones a free one; and how many."""
        best, n_best = None, 0
        for place in self.places:
            if place.user is not None and (place.user.is_dirty or place.user.n_foreign > 0):
                continue
            n = min(n_common(place.tokens, tokens), n_wanted)
            if n > n_best or (n == n_best > 0 and best not in free and place in free):
                best, n_best = place, n
        return best, n_best

    def _emptiest(self, free: SequenceOf[Place]) -> Place:
        return min(free, key=lambda p: (bool(p.tokens), p.used_at))

    def emptiest(self, seq_ids: SequenceOf[int]) -> int:
        """The one of these free places that has the least to lose."""
        return self._emptiest([self.places[i] for i in seq_ids]).seq_id

    def _occupy(self, place: Place, sequence: Sequence, n_past: int) -> None:
        place.user, place.kept = sequence, []
        place.used_at = self._tick()
        sequence.seq_id, sequence.n_past, sequence.n_own = place.seq_id, n_past, n_past
        sequence.rows = []

    def _detach(self, sequence: Sequence) -> None:
        """A sequence has no place any more; what is there is the caller's business."""
        self.places[sequence.seq_id].user = None
        sequence.seq_id, sequence.n_past, sequence.n_own, sequence.n_foreign = -1, 0, 0, 0
        sequence.rows, sequence.is_dirty = [], False

    def _vacate(self, place: Place) -> None:
        """Make a free place empty. A prefix that is worth it goes to host memory."""
        tokens = place.tokens
        if self.host.n_bytes_max > 0 and len(tokens) >= _N_WORTH_KEEPING:
            intact = place.user is None or (not place.user.is_dirty and place.user.n_foreign == 0)
            if intact:
                self.host.put(tokens, self._save(place.seq_id))
        self._forget(place)

    def _forget(self, place: Place) -> None:
        """Make a free place empty."""
        with self._changing(place):
            self._reset(place.seq_id)

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
        """Load into an empty place; False if there is no room."""
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
        behind = [place for place in self.places if self.target.n_replay(place.seq_id) > 0]
        owners: list[Place | Sequence] = [place.user or place for place in behind]
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

    def keep(self, parts: SequenceOf[Part], has_rows: bool, may_wait: SequenceOf[bool]) -> None:
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
