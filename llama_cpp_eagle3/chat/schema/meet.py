"""Several cores: the ways to match one of each, and whether alternatives exclude each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from .core import ANY, Core, Say, Schemas, distinct, identity, key_of, type_of
from .work import Work

_WAYS_MAX = 200
_APART_MAX = 50
"""Alternatives that are compared with each other."""


def met(ways: list[Core], others: list[Core], say: Say, work: Work) -> list[Core]:
    """The ways to match one of each list. work: is charged."""
    found: dict[Any, Core] = {}
    for a in ways:
        for b in others:
            core = b if a is ANY else a if b is ANY else _meet(a, b, work)
            if core is not None:
                found.setdefault(_key(core), core)
            if len(found) > _WAYS_MAX:
                say(f"its combinations give more than {_WAYS_MAX} alternatives")
                return ways
    return list(found.values())


def _meet(a: Core, b: Core, work: Work) -> Core | None:
    """What matches both; None: nothing does."""
    work.take(40 + sum(map(_size, (a, b))))
    types = a.types & b.types
    if not types:
        return None
    values = a.values if b.values is None else b.values
    if values is not None:
        both = (
            values
            if a.values is None or b.values is None
            else {key: a.values[key] for key in a.values if key in b.values}
        )
        values = {key: value for key, value in both.items() if type_of(value) in types}
        if not values:
            return None
    return Core(
        types=types,
        hints=a.hints | b.hints,
        values=values,
        patterns=tuple({pattern.source: pattern for pattern in (*a.patterns, *b.patterns)}.values()),
        formats=_both(a.formats, b.formats),
        larks=_both(a.larks, b.larks),
        length=_range(a.length, b.length),
        low=max((x for x in (a.low, b.low) if x is not None), default=None),
        high=min((x for x in (a.high, b.high) if x is not None), key=lambda x: (x[0], not x[1]), default=None),
        multiple=_multiple(a.multiple, b.multiple, work),
        properties=_both(a.properties, b.properties),
        required=_both(a.required, b.required),
        names=distinct((*a.names, *b.names)),
        n_properties=_range(a.n_properties, b.n_properties),
        items=_both(a.items, b.items),
        n_items=_range(a.n_items, b.n_items),
    )


def _size(core: Core) -> int:
    parts = (core.values or (), core.patterns, core.formats, core.properties, core.required, core.names)
    return sum(map(len, parts)) + len(core.items)


def _multiple(a: Fraction | None, b: Fraction | None, work: Work) -> Fraction | None:
    """The least number whose multiples are multiples of both."""
    if a is None or b is None:
        return b if a is None else a
    work.take((a.numerator.bit_length() + a.denominator.bit_length()) // 8)
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def _key(core: Core) -> Any:
    """The same for cores that mean the same, as far as one can see."""
    return (
        *(core.types, core.hints, None if core.values is None else tuple(core.values), core.larks),
        tuple(pattern.source for pattern in core.patterns),
        *(core.formats, core.length, core.low, core.high, core.multiple, core.properties, core.required),
        *(tuple(map(identity, core.names)), core.n_properties, core.items, core.n_items),
    )


def _both(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """The union of both, each once."""
    return tuple(dict.fromkeys((*a, *b)))


def _range(a: tuple[int, int | None], b: tuple[int, int | None]) -> tuple[int, int | None]:
    tops = [top for top in (a[1], b[1]) if top is not None]
    return max(a[0], b[0]), min(tops, default=None)


def are_apart(alternatives: list[list[Core]], work: Work) -> bool:
    """Whether it is certain that no value that the grammar writes for one of them matches another one."""
    if len(alternatives) > _APART_MAX:
        return False
    return all(
        _fails(a, b, work)
        for i, cores in enumerate(alternatives)
        for k, others in enumerate(alternatives)
        if i != k
        for a in cores
        for b in others
    )


def _fails(a: Core, b: Core, work: Work) -> bool:
    """Whether it is certain that what the grammar writes for a does not match b."""
    a = replace(a, types=a.types & a.written_types)
    if _meet(a, b, work) is None:
        return True
    if a.types != {"object"} or a.values is not None:
        return False
    names, required = frozenset(a.property_names), frozenset(b.required)
    work.take(len(names) + len(required))
    if any(_differ(a.of_property(name), b.of_property(name)) for name in a.required if name in required):
        return True
    if not (a.may_add or required <= names):
        return True
    return any(part.forbids(name) for part in b.properties for name in a.required)


def _differ(a: Schemas, b: Schemas) -> bool:
    """Whether two properties have constants of their own."""
    plain_a, plain_b = ({key_of(value) for value in _constants(schemas)} for schemas in (a, b))
    return bool(plain_a) and bool(plain_b) and plain_a.isdisjoint(plain_b)


def _constants(schemas: Schemas) -> Iterator[Any]:
    for schema in schemas:
        if isinstance(schema, dict):
            enum = schema.get("enum")
            yield from [schema["const"]] if "const" in schema else enum if isinstance(enum, list) else ()
