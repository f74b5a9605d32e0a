"""Several cores: the ways to match one of each, and whether alternatives exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from .core import ANY, Core, Say, Schemas, key_of, of_name, same, type_of, types_of

T = TypeVar("T")
_WAYS_MAX = 200


def met(ways: list[Core], others: list[Core], say: Say) -> list[Core]:
    """The ways to match one of each list."""
    found: dict[Any, Core] = {}
    for a in ways:
        for b in others:
            if a is ANY or b is ANY:
                core: Core | None = b if a is ANY else a
                key: Any = id(core)
            else:
                core = _meet(a, b)
                key = repr(core)
            if core is not None:
                found.setdefault(key, core)
            if len(found) > _WAYS_MAX:
                say(f"its combinations give more than {_WAYS_MAX} alternatives")
                return ways
    return list(found.values())


def _meet(a: Core, b: Core) -> Core | None:
    """What matches both; None: nothing does."""
    types = a.types & b.types
    if not types:
        return None
    values = a.values if b.values is None else b.values
    if a.values is not None and b.values is not None:
        keys = {key_of(value) for value in b.values}
        values = tuple(value for value in a.values if key_of(value) in keys)
    if values is not None:
        values = tuple(value for value in values if type_of(value) in types)
        if not values:
            return None
    names = dict.fromkeys((*a.properties, *b.properties))
    n_first = max(len(a.first), len(b.first))
    return Core(
        types=types,
        hints=a.hints | b.hints,
        values=values,
        patterns=_both(a.patterns, b.patterns),
        formats=_both(a.formats, b.formats),
        length=_range(a.length, b.length),
        low=max((x for x in (a.low, b.low) if x is not None), default=None),
        high=min((x for x in (a.high, b.high) if x is not None), key=lambda x: (x[0], not x[1]), default=None),
        multiples=_both(a.multiples, b.multiples),
        properties={name: _both(of_name(a, name), of_name(b, name)) for name in names},
        is_listed=a.is_listed or b.is_listed,
        required=_both(a.required, b.required),
        by_pattern=_both(_narrowed(a, b), _narrowed(b, a)),
        others=_maybe(a.others, b.others),
        names=_both(a.names, b.names),
        n_properties=_range(a.n_properties, b.n_properties),
        first=tuple(_both(_of_item(a, i), _of_item(b, i)) for i in range(n_first)),
        items=_maybe(a.items, b.items),
        n_items=_range(a.n_items, b.n_items),
    )


def _both(a: Sequence[T], b: Sequence[T]) -> tuple[T, ...]:
    """The union of both, each once. Schemas are equal if they are the same object."""
    return tuple({(id(x) if isinstance(x, (dict, list)) else repr(x)): x for x in (*a, *b)}.values())


def _maybe(a: Schemas | None, b: Schemas | None) -> Schemas | None:
    return b if a is None else a if b is None else _both(a, b)


def _range(a: tuple[int, int | None], b: tuple[int, int | None]) -> tuple[int, int | None]:
    tops = [top for top in (a[1], b[1]) if top is not None]
    return max(a[0], b[0]), min(tops, default=None)


def _narrowed(a: Core, b: Core) -> tuple[tuple[str, Schemas], ...]:
    """The pattern properties of a, each with b's schemas for other properties, which b may count it among."""
    return tuple((p, schemas if b.others is None else _both(schemas, b.others)) for p, schemas in a.by_pattern)


def _of_item(core: Core, i: int) -> Schemas:
    return core.first[i] if i < len(core.first) else core.items or ()


def are_apart(alternatives: list[list[Core]]) -> bool:
    """Whether it is certain that no value matches two of them."""
    if len(alternatives) > 50:
        return False
    return all(
        _exclude(a, b)
        for i, cores in enumerate(alternatives)
        for others in alternatives[i + 1 :]
        for a in cores
        for b in others
    )


def _exclude(a: Core, b: Core) -> bool:
    """Whether it is certain that no value that the grammar writes for one matches the other."""
    a, b = _hinted(a), _hinted(b)
    if _meet(a, b) is None:
        return True
    if a.types != {"object"} or b.types != {"object"}:
        return False
    both = [name for name in a.required if name in b.required]
    if any(_differ(of_name(a, name), of_name(b, name)) for name in both):
        return True
    return _fails(a, b) and _fails(b, a)


def _fails(a: Core, b: Core) -> bool:
    """Whether an object that the grammar writes for a lacks what b requires, or has what b forbids."""
    never = a.others in (None, (False,)) and not a.by_pattern and a.properties
    lacks = never and any(name not in a.properties and name not in a.required for name in b.required)
    return bool(lacks) or (
        b.others == (False,) and not b.by_pattern and any(name not in b.properties for name in a.required)
    )


def _hinted(core: Core) -> Core:
    return replace(core, types=core.types & types_of(core))


def _differ(a: Schemas, b: Schemas) -> bool:
    """Whether two properties have constants or types of their own."""
    plain_a, plain_b = (list(_constants(schemas)) for schemas in (a, b))
    return bool(plain_a) and bool(plain_b) and not any(same(x, y) for x in plain_a for y in plain_b)


def _constants(schemas: Schemas) -> Iterator[Any]:
    for schema in schemas:
        if isinstance(schema, dict):
            enum = schema.get("enum")
            yield from [schema["const"]] if "const" in schema else enum if isinstance(enum, list) else ()
