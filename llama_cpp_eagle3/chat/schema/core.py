"""One way to match a JSON schema, without references and combinations, and which values match it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from .numbers import exact

Schemas = tuple[Any, ...]
"""Subschemas, all of which a value must match. They are compared by identity, so that recursion ends."""

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
ALL_TYPES = frozenset(TYPES)

Say = Callable[[str], None]
"""Notes a part of a schema that is not enforced."""


@dataclass(frozen=True, slots=True)
class Core:
    """One way to match a schema."""

    types: frozenset[str] = ALL_TYPES
    hints: frozenset[str] = frozenset()
    """Types that its keywords are about: these are meant if it names no types."""
    values: tuple[Any, ...] | None = None
    """The only allowed values, by enum and const; None: any."""
    patterns: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    length: tuple[int, int | None] = (0, None)
    low: tuple[Fraction, bool] | None = None
    """The least number, and whether it is excluded."""
    high: tuple[Fraction, bool] | None = None
    multiples: tuple[Fraction, ...] = ()
    properties: dict[str, Schemas] = field(default_factory=dict)
    is_listed: bool = False
    """Whether it has a list of properties, even an empty one: others are then written only if it asks for them."""
    required: tuple[str, ...] = ()
    by_pattern: tuple[tuple[str, Schemas], ...] = ()
    """Schemas of properties whose names match a pattern."""
    others: Schemas | None = None
    """Schemas of all other properties; None: the schema does not mention them."""
    names: Schemas = ()
    """Schemas of the properties' names."""
    n_properties: tuple[int, int | None] = (0, None)
    first: tuple[Schemas, ...] = ()
    """Schemas of an array's first items."""
    items: Schemas | None = None
    """Schemas of the items that follow."""
    n_items: tuple[int, int | None] = (0, None)


ANY = Core()
"""Anything matches."""


def of_name(core: Core, name: str) -> Schemas:
    """The schemas that a core has for a property."""
    if name in core.properties:
        return core.properties[name]
    matching = [schemas for pattern, schemas in core.by_pattern if matches(pattern, name)]
    return tuple(schema for schemas in matching for schema in schemas) if matching else core.others or ()


def types_of(core: Core) -> frozenset[str]:
    """Its types, or those that its keywords are about."""
    if core.types != ALL_TYPES or not core.hints:
        return core.types
    return core.hints | ({"integer"} if "number" in core.hints else frozenset())


def fits(value: Any, core: Core) -> bool:
    """Whether a value matches a core's keywords for texts and numbers."""
    if isinstance(value, str):
        least, most = core.length
        in_length = least <= len(value) and (most is None or len(value) <= most)
        return in_length and all(matches(pattern, value, default=True) for pattern in core.patterns)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = exact(value)
        return (
            (core.low is None or number > core.low[0] or (number == core.low[0] and not core.low[1]))
            and (core.high is None or number < core.high[0] or (number == core.high[0] and not core.high[1]))
            and all((number / x).denominator == 1 for x in core.multiples)
        )
    return True


def matches(pattern: str, text: str, default: bool = False) -> bool:
    """Whether a pattern matches somewhere; default: the result for a pattern that Python cannot read."""
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return default


def type_of(value: Any) -> str:
    """The type of a value of JSON."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    names = {dict: "object", list: "array", str: "string"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "null")


def same(a: Any, b: Any) -> bool:
    """Whether two values of JSON are equal: true is no 1, and 1.0 is."""
    return key_of(a) == key_of(b)


def key_of(value: Any) -> str:
    """A text that is the same for equal values of JSON."""
    return json.dumps(_plain_numbers(value), sort_keys=True)


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain_numbers(item) for name, item in value.items()}
    return value
