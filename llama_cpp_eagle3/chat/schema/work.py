"""The bound for the work that one schema or pattern may ask for."""

from __future__ import annotations

N_STEPS_MAX = 3_000_000
"""Steps of one conversion: some three seconds. A schema of 100,000 values takes half of them."""


class SchemaError(ValueError):
    """No grammar can be made of a schema."""


class Work:
    """Counts the steps of a conversion, so that the same is refused on every machine, however busy."""

    def __init__(self, n_max: int = N_STEPS_MAX):
        self._left = n_max

    def take(self, n: int = 1) -> None:
        """Count n steps, of about a microsecond each.

        Raises:
            SchemaError: there were too many.
        """
        self._left -= n
        if self._left < 0:
            raise SchemaError("it takes too much work: expected fewer combinations, references, or smaller patterns")
