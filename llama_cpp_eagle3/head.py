"""The head as it is loaded, and how to load it in another type."""

from __future__ import annotations

from collections.abc import Callable

from ._core import Drafter


class Head:
    """A drafter and the ggml type of its matrices."""

    def __init__(self, make: Callable[[int | None], Drafter], draft_type: int | None):
        """make: loads the head, its wider matrices converted to a type; None = as they are in the file."""
        self._make = make
        self.type_asked = draft_type
        """What the user wants; None = what is fastest."""
        self.type = draft_type
        self.drafter = make(draft_type)

    def convert(self, draft_type: int | None) -> Drafter:
        """Load the head again, its matrices in another type. What it has seen is forgotten."""
        if draft_type != self.type:
            self.drafter = self._make(draft_type)
            self.type = draft_type
        return self.drafter
