"""The head as it is loaded, and how to load it in another type."""

from __future__ import annotations

from collections.abc import Callable

from ._core import Drafter, Eagle3Drafter


class Head:
    """A drafter and the ggml type of its matrices."""

    def __init__(self, make: Callable[[int | None], Drafter], draft_type: int | None):
        """make: loads the head, its wider matrices converted to a type; None = as they are in the file."""
        self._make = make
        self.type_asked = draft_type
        """What the user wants; None = what is fastest."""
        self.type = draft_type
        self.drafter = make(draft_type)

    @property
    def n_bytes_own(self) -> int:
        """Bytes of the matrices that can be converted; 0 for a block of the target, which has the target's types."""
        return self.drafter.n_bytes_own if isinstance(self.drafter, Eagle3Drafter) else 0

    def convert(self, draft_type: int | None, use: Callable[[Drafter], None]) -> None:
        """Load the head again, its matrices in another type. Its K/V cache is empty then.

        use: takes the new drafter in place of the old one, which is freed then.
        """
        if draft_type != self.type:
            old, self.drafter = self.drafter, self._make(draft_type)
            self.type = draft_type
            use(self.drafter)
            old.close()
