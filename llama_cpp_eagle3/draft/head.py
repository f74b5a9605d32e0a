"""The loaded drafters, and loading a head again in another type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._core import Drafter, Eagle3Drafter


class Head:
    """The drafters with weights, and the ggml type of a head's matrices."""

    def __init__(self, makes: Sequence[Callable[[int | None], Drafter]], draft_type: int | None):
        """makes: each loads a drafter, with a head's wider matrices converted to a type; None = as in the file."""
        self._makes = makes
        self.type_asked = draft_type
        """The type that the user chose; None = the fastest one."""
        self.type = draft_type
        self.drafters: list[Drafter] = []
        try:
            for make in makes:
                self.drafters.append(make(draft_type))
        except BaseException:
            self.close()
            raise

    @property
    def i_converted(self) -> int:
        """Index of the drafter that can be converted; of the first one if none can."""
        return next((i for i, part in enumerate(self.drafters) if isinstance(part, Eagle3Drafter)), 0)

    @property
    def n_bytes_own(self) -> int:
        """Bytes of the matrices that can be converted: a head's."""
        return sum(part.n_bytes_own for part in self.drafters if isinstance(part, Eagle3Drafter))

    def convert(self, draft_type: int | None, use: Callable[[Sequence[Drafter]], None]) -> None:
        """Load a head again, its matrices in another type. The drafters' caches are empty then.

        use: takes the drafters in place of the old ones; the old head is freed then.
        """
        if draft_type == self.type:
            return
        old = [part for part in self.drafters if isinstance(part, Eagle3Drafter)]
        self.drafters = [
            make(draft_type) if part in old else part for make, part in zip(self._makes, self.drafters, strict=True)
        ]
        self.type = draft_type
        use(self.drafters)
        for part in old:
            part.close()

    def close(self) -> None:
        """Free all drafters, before the model whose tables they use."""
        for drafter in self.drafters:
            drafter.close()
