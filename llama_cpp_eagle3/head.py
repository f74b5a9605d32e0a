"""What drafts, as it is loaded, and how to load a head in another type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ._core import Drafter, Eagle3Drafter, JointDrafter


class Head:
    """One drafter or several, held as one, and the ggml type of a head's matrices."""

    def __init__(self, makes: Sequence[Callable[[int | None], Drafter]], draft_type: int | None, n_embd: int):
        """makes: load each, the wider matrices of a head converted to a type; None = as they are in the file.

        n_embd: width of the target.
        """
        self._makes, self._n_embd = makes, n_embd
        self.type_asked = draft_type
        """What the user wants; None = what is fastest."""
        self.type = draft_type
        self._parts: list[Drafter] = []
        try:
            for make in makes:
                self._parts.append(make(draft_type))
            self.drafter = self._join()
        except BaseException:
            _close(self._parts)
            raise

    def _join(self) -> Drafter:
        return self._parts[0] if len(self._parts) == 1 else JointDrafter(self._parts, self._n_embd)

    @property
    def i_converted(self) -> int:
        """Which of the drafter's parts can be converted; the first if none can."""
        return next((i for i, part in enumerate(self._parts) if isinstance(part, Eagle3Drafter)), 0)

    @property
    def n_bytes_own(self) -> int:
        """Bytes of the matrices that can be converted: a head's."""
        return sum(part.n_bytes_own for part in self._parts if isinstance(part, Eagle3Drafter))

    def convert(self, draft_type: int | None, use: Callable[[Drafter], None]) -> None:
        """Load a head again, its matrices in another type. The K/V cache of the drafter is empty then.

        use: takes the new drafter in place of the old one, which is freed then.
        """
        if draft_type == self.type:
            return
        old, before = [part for part in self._parts if isinstance(part, Eagle3Drafter)], self.drafter
        self._parts = [
            make(draft_type) if part in old else part for make, part in zip(self._makes, self._parts, strict=True)
        ]
        self.drafter, self.type = self._join(), draft_type
        use(self.drafter)
        _close([before, *old] if old else [])

    def close(self) -> None:
        """Free all of it, before the model goes whose tables it uses."""
        _close([self.drafter, *self._parts])


def _close(drafters: Sequence[Drafter]) -> None:
    for drafter in drafters:
        drafter.close()
