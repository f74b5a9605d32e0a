"""One way to match a JSON schema, without references and combinations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .matching import Pattern

Schemas = tuple[Any, ...]
"""Subschemas, all of which a value must match. They are compared by identity, so that recursion ends."""

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
ALL_TYPES = frozenset(TYPES)

Say = Callable[[str], None]
"""Notes a part of a schema that is not enforced."""


@dataclass(frozen=True, slots=True, eq=False)
class Properties:
    """What one schema says about the properties of objects."""

    named: dict[str, Any]
    """Schemas by name."""
    by_pattern: tuple[tuple[Pattern, Any], ...]
    """Schemas of properties whose names match a pattern."""
    others: tuple[Any, ...]
    """The schema of all other properties; empty: the schema does not mention them."""
    is_listed: bool
    """Whether it has a list of properties, even an empty one: others are then written only if it asks for them."""

    def of(self, name: str) -> Schemas:
        """The schemas of a property. A pattern counts if it may match, and so do others then."""
        found = [self.named[name]] if name in self.named else []
        is_known = bool(found)
        for pattern, schema in self.by_pattern:
            matches = pattern.matches(name)
            found += [] if matches is False else [schema]
            is_known = is_known or matches is True
        return tuple(found) if is_known else (*found, *self.others)

    def forbids(self, name: str) -> bool:
        """Whether an object that it matches certainly lacks a property."""
        return self.of(name) == (False,)


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """What one schema says about the items of arrays."""

    first: tuple[Any, ...]
    """Schemas of the first items."""
    rest: tuple[Any, ...]
    """The schema of the items that follow; empty: the schema does not mention them."""

    def of(self, i: int) -> Schemas:
        """The schemas of an item."""
        return (self.first[i],) if i < len(self.first) else self.rest


@dataclass(frozen=True, slots=True)
class Core:
    """One way to match a schema."""

    types: frozenset[str] = ALL_TYPES
    hints: frozenset[str] = frozenset()
    """Types that its keywords are about: these are meant if it names no types."""
    values: dict[str, Any] | None = None
    """The only allowed values, by enum and const, under their keys (`key_of`); None: any."""
    patterns: tuple[Pattern, ...] = ()
    formats: tuple[str, ...] = ()
    larks: tuple[str, ...] = ()
    """Grammars in Lark that texts match."""
    length: tuple[int, int | None] = (0, None)
    low: tuple[Fraction, bool] | None = None
    """The least number, and whether it is excluded."""
    high: tuple[Fraction, bool] | None = None
    multiple: Fraction | None = None
    """Numbers are multiples of this one."""
    properties: tuple[Properties, ...] = ()
    """Of each schema that it was made of, as far as it says anything."""
    required: tuple[str, ...] = ()
    names: Schemas = ()
    """Schemas of the properties' names."""
    n_properties: tuple[int, int | None] = (0, None)
    items: tuple[Items, ...] = ()
    n_items: tuple[int, int | None] = (0, None)

    @property
    def written_types(self) -> frozenset[str]:
        """Its types, or those that its keywords are about."""
        if self.types != ALL_TYPES or not self.hints:
            return self.types
        return self.hints | ({"integer"} if "number" in self.hints else frozenset())

    @property
    def property_names(self) -> tuple[str, ...]:
        """The properties that it names, in its order."""
        return tuple(dict.fromkeys((*(name for part in self.properties for name in part.named), *self.required)))

    def of_property(self, name: str) -> Schemas:
        """All schemas of a property."""
        return distinct(schema for part in self.properties for schema in part.of(name))

    def of_item(self, i: int) -> Schemas:
        """All schemas of an item."""
        return distinct(schema for part in self.items for schema in part.of(i))

    @property
    def may_add(self) -> bool:
        """Whether properties that it does not name may be written."""
        if any(part.others == (False,) and not part.by_pattern for part in self.properties):
            return False
        asks = any(part.others or part.by_pattern for part in self.properties)
        names = self.property_names
        is_listed = bool(names) or any(part.is_listed for part in self.properties)
        return asks or not is_listed or self.n_properties[0] > len(names)


ANY = Core()
"""Anything matches."""


def distinct(schemas: Iterable[Any]) -> Schemas:
    """Schemas without those that come twice."""
    return tuple({identity(schema): schema for schema in schemas}.values())


def identity(schema: Any) -> Any:
    """The same for the same object, or for equal schemas without parts."""
    return id(schema) if isinstance(schema, (dict, list)) else repr(schema)


def type_of(value: Any) -> str:
    """The type of a value of JSON."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    names = {dict: "object", list: "array", str: "string"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "null")


def key_of(value: Any) -> str:
    """A text that is the same for equal values of JSON: true is no 1, and 1.0 is."""
    if isinstance(value, str):
        return f'"{value}'
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    return json.dumps(json.loads(json.dumps(value), parse_float=_number), sort_keys=True)


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value
