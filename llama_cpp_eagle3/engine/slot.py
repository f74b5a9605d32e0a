"""A slot: a sequence id of target and draft, and who has it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from .prefix_nodes import Prefix
from .sequence import Sequence, State


@dataclass(slots=True)
class Slot:
    """A sequence id of target and draft."""

    seq_id: int
    prefix: Prefix
    """What it holds, in the tree: of a running sequence, what it will hold of its prompt."""
    user: Sequence | None = None
    cached: list[int] = field(default_factory=list)
    """Tokens of the cached prefix, while no sequence uses the slot."""
    is_dirty: bool = False
    """No sequence uses it, and what target and draft hold there is to be cleared."""

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
        return not self.is_dirty if self.user is None else not self.user.is_dirty
