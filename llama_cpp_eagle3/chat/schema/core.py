"""What a JSON schema asks for, without references and combinations: a list of cores, each of which is one way."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeVar
from urllib.parse import unquote

from .numbers import exact

T = TypeVar("T")
Schemas = tuple[Any, ...]
"""Subschemas that a value has to match, all of them. They are compared by identity, so that recursion ends."""

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_ALL = frozenset(TYPES)
_HINTS = {
    "object": {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
    | {"minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems"},
    "string": {"pattern", "format", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
_NOT_KEPT = (
    *("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "contains", "unevaluatedProperties"),
    *("unevaluatedItems", "$dynamicRef", "$recursiveRef"),
)
_WAYS_MAX = 200
_NESTING_MAX, _STEPS_MAX = 150, 1_000

Say = Callable[[str], None]
"""Takes note of what is not kept."""


@dataclass(frozen=True, slots=True)
class Core:
    """One way to match a schema."""

    types: frozenset[str] = _ALL
    hints: frozenset[str] = frozenset()
    """Types that its keywords are about: where it names no types, these are meant."""
    values: tuple[Any, ...] | None = None
    """The only ones: of enum and const."""
    patterns: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    length: tuple[int, int | None] = (0, None)
    low: tuple[Fraction, bool] | None = None
    """The least number, and whether that is excluded."""
    high: tuple[Fraction, bool] | None = None
    multiples: tuple[Fraction, ...] = ()
    properties: dict[str, Schemas] = field(default_factory=dict)
    is_listed: bool = False
    """Whether it lists properties, be it none: others are not written then, unless it asks for them."""
    required: tuple[str, ...] = ()
    by_pattern: tuple[tuple[str, Schemas], ...] = ()
    """Of properties whose names match."""
    others: Schemas | None = None
    """Of all other properties; None: nothing is said of them."""
    names: Schemas = ()
    """Of the properties' names."""
    n_properties: tuple[int, int | None] = (0, None)
    first: tuple[Schemas, ...] = ()
    """Of an array's first items."""
    items: Schemas | None = None
    """Of those that follow."""
    n_items: tuple[int, int | None] = (0, None)


ANY = Core()
"""Anything matches."""


class Reader:
    """Reads the schemas of one document."""

    def __init__(self, document: Any):
        self._document = document
        self._known: dict[int, list[Core]] = {}
        self._open: list[int] = []
        self._n_circles = self._n_steps = 0

    def cores(self, schemas: Schemas, say: Say) -> list[Core]:
        """The ways to match all of them; empty: nothing does."""
        ways = [ANY]
        for schema in schemas:
            ways = _met(ways, self._cores(schema, say), say)
        return ways

    def target(self, schema: Any) -> Any:
        """What a schema stands for that is a reference alone; the schema itself where it is not."""
        seen = set()
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and not _asks(schema, but="$ref"):
            found = self._resolve(schema["$ref"])
            if found is None or id(schema) in seen:
                return schema
            seen.add(id(schema))
            schema = found[0]
        return schema

    def _cores(self, schema: Any, say: Say) -> list[Core]:
        schema = self.target(schema)
        if schema is True:
            return [ANY]
        if schema is False:
            return []
        if not isinstance(schema, dict):
            say(f"expected a schema, found {_short(schema)}")
            return [ANY]
        key = id(schema)
        if key in self._known:
            return self._known[key]
        if key in self._open:  # what it is itself adds nothing to it
            self._n_circles += 1
            return []
        self._n_steps = self._n_steps + 1 if self._open else 0
        if len(self._open) > _NESTING_MAX or self._n_steps > _STEPS_MAX:
            say("its references and combinations are nested too deep")
            return [ANY]
        n_circles = self._n_circles
        self._open.append(key)
        try:
            found = self._combined(schema, say)
        finally:
            self._open.pop()
        if n_circles == self._n_circles or not self._open:
            self._known[key] = found
        return found

    def _combined(self, schema: dict[str, Any], say: Say) -> list[Core]:
        core = _plain(schema, say)
        ways = [] if core.values == () else [ANY if core == ANY else core]
        if "$ref" in schema:
            found = self._resolve(schema["$ref"])
            if found is None:
                say(f"cannot resolve $ref {_short(schema['$ref'])}")
            elif id(found[0]) not in self._open:
                ways = _met(ways, self._cores(found[0], say), say)
            elif not _asks(schema, but="$ref"):
                self._n_circles += 1
                return []
        for part in _list(schema, "allOf", say):
            ways = _met(ways, self._cores(part, say), say)
        for key in ("anyOf", "oneOf"):
            parts = _list(schema, key, say)
            if parts:
                alternatives = [self._cores(part, say) for part in parts]
                if key == "oneOf" and not _are_apart(alternatives):
                    say("oneOf is kept as anyOf: a value may match several of them")
                ways = _met(ways, [core for cores in alternatives for core in cores], say)
        return ways

    def _resolve(self, ref: Any) -> tuple[Any] | None:
        """The target, None if there is none."""
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            return None
        found = self._document
        for part in unquote(ref[2:]).split("/") if len(ref) > 2 else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(found):
                found = found[int(part)]
            else:
                return None
        return (found,)


def _asks(schema: dict[str, Any], but: str) -> bool:
    """Whether it has other keywords that ask for something."""
    known = {"type", "enum", "const", "allOf", "anyOf", "oneOf", *_NOT_KEPT, "uniqueItems"}.union(*_HINTS.values())
    return any(key in known for key in schema if key != but)


def _list(schema: dict[str, Any], key: str, say: Say) -> list[Any]:
    value = schema.get(key, [])
    if isinstance(value, list) and (value or key not in schema):
        return value
    say(f"{key}: expected a list of schemas, found {_short(value)}")
    return []


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


# one schema


def _plain(schema: dict[str, Any], say: Say) -> Core:
    """The core of a schema's own keywords."""
    for key in _NOT_KEPT:
        if key in schema and schema[key] not in (True, {}):
            say(f"{key} is not kept")
    if schema.get("uniqueItems") is True:
        say("uniqueItems is not kept")
    types = _types(schema, say)
    values = _values(schema, say)
    if values is not None:
        kept = tuple(value for value in values if type_of(value) in types)
        if not kept and values:
            say(f"no value of its enum has its type {_short(schema.get('type'))}")
            types, kept = _ALL, values
        values = kept
    core = Core(
        types=types,
        hints=frozenset(name for name, keys in _HINTS.items() if not keys.isdisjoint(schema)),
        values=values,
        patterns=_texts(schema, "pattern", say),
        formats=_texts(schema, "format", say),
        length=_counts(schema, "Length", say),
        low=_bound(schema, "minimum", 1, say),
        high=_bound(schema, "maximum", -1, say),
        multiples=tuple(exact(x) for x in _numbers(schema, "multipleOf", say) if x > 0),
        n_properties=_counts(schema, "Properties", say),
        n_items=_counts(schema, "Items", say),
    )
    return _array(_object(core, schema, say), schema, say)


def type_of(value: Any) -> str:
    """The type of a value of JSON."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    names = {dict: "object", list: "array", str: "string"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "null")


def _types(schema: dict[str, Any], say: Say) -> frozenset[str]:
    given = schema.get("type", list(TYPES))
    names = given if isinstance(given, list) else [given]
    known = frozenset(name for name in TYPES if name in names)
    if not names or any(name not in TYPES for name in names):
        say(f"type {_short(given)} is none of JSON schemas")
    return (known | {"integer"} if "number" in known else known) or _ALL


def _values(schema: dict[str, Any], say: Say) -> tuple[Any, ...] | None:
    found = None
    if "enum" in schema:
        values = schema["enum"]
        if isinstance(values, list) and values:
            found = tuple(values)
        else:
            say(f"enum: expected values, found {_short(values)}")
    if "const" in schema:
        found = tuple(v for v in found or (schema["const"],) if same(v, schema["const"]))
    return found


def same(a: Any, b: Any) -> bool:
    """Whether two values of JSON are equal: true is no 1, and 1.0 is."""
    return key_of(a) == key_of(b)


def key_of(value: Any) -> str:
    """A text that equal values of JSON have in common."""
    return json.dumps(_plain_numbers(value), sort_keys=True)


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain_numbers(item) for name, item in value.items()}
    return value


def _texts(schema: dict[str, Any], key: str, say: Say) -> tuple[str, ...]:
    value = schema.get(key)
    if value is None or isinstance(value, str):
        return (value,) if value else ()
    say(f"{key}: expected a text, found {_short(value)}")
    return ()


def _numbers(schema: dict[str, Any], key: str, say: Say) -> list[float]:
    value = schema.get(key)
    if value is None:
        return []
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return [value]
    say(f"{key}: expected a number, found {_short(value)}")
    return []


def _counts(schema: dict[str, Any], noun: str, say: Say) -> tuple[int, int | None]:
    least, most = (
        next((math.ceil(x) if word == "min" else math.floor(x) for x in _numbers(schema, word + noun, say)), None)
        for word in ("min", "max")
    )
    if most is not None and (most < 0 or most < (least or 0)):
        say(
            f"max{noun} {most} is less than min{noun}" if least else f"max{noun}: expected no less than 0, found {most}"
        )
        most = None
    return max(0, least or 0), most


def _bound(schema: dict[str, Any], key: str, sign: int, say: Say) -> tuple[Fraction, bool] | None:
    """The stricter one of a bound and the exclusive one; that may be a flag, as in draft 4."""
    exclusive = f"exclusive{key.capitalize()}"
    is_flag = isinstance(schema.get(exclusive), bool)
    found = [(exact(x), is_flag and schema[exclusive]) for x in _numbers(schema, key, say)]
    if not is_flag:
        found += [(exact(x), True) for x in _numbers(schema, exclusive, say)]
    return max(found, key=lambda bound: (sign * bound[0], bound[1]), default=None)


def _object(core: Core, schema: dict[str, Any], say: Say) -> Core:
    properties, by_pattern = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in (("properties", properties), ("patternProperties", by_pattern)):
        if not isinstance(value, dict):
            say(f"{key}: expected an object of schemas, found {_short(value)}")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        if not isinstance(required, bool):  # of a property itself, in draft 3
            say(f"required: expected a list of names, found {_short(required)}")
        required = []
    others = schema.get("additionalProperties")
    return replace(
        core,
        properties={name: (value,) for name, value in properties.items()} if isinstance(properties, dict) else {},
        is_listed=isinstance(schema.get("properties"), dict) or isinstance(schema.get("patternProperties"), dict),
        required=tuple(dict.fromkeys(required)),
        by_pattern=tuple((p, (value,)) for p, value in by_pattern.items()) if isinstance(by_pattern, dict) else (),
        others=None if others is None else (others,),
        names=() if "propertyNames" not in schema else (schema["propertyNames"],),
    )


def _array(core: Core, schema: dict[str, Any], say: Say) -> Core:
    first, items = schema.get("prefixItems", []), schema.get("items")
    if isinstance(items, list) and first:
        say(f"items: expected a schema, found {_short(items)}")
        items = None
    elif isinstance(items, list):  # before 2020
        first, items = items, schema.get("additionalItems")
    if not isinstance(first, list):
        say(f"prefixItems: expected a list of schemas, found {_short(first)}")
        first = []
    return replace(core, first=tuple((item,) for item in first), items=None if items is None else (items,))


# several


def _met(ways: list[Core], others: list[Core], say: Say) -> list[Core]:
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
    """All of both, once each. Schemas are the same if they are the same object."""
    return tuple({(id(x) if isinstance(x, (dict, list)) else repr(x)): x for x in (*a, *b)}.values())


def _maybe(a: Schemas | None, b: Schemas | None) -> Schemas | None:
    return b if a is None else a if b is None else _both(a, b)


def _range(a: tuple[int, int | None], b: tuple[int, int | None]) -> tuple[int, int | None]:
    tops = [top for top in (a[1], b[1]) if top is not None]
    return max(a[0], b[0]), min(tops, default=None)


def of_name(core: Core, name: str) -> Schemas:
    """What a core asks of a property."""
    if name in core.properties:
        return core.properties[name]
    matching = [schemas for pattern, schemas in core.by_pattern if matches(pattern, name)]
    return tuple(schema for schemas in matching for schema in schemas) if matching else core.others or ()


def matches(pattern: str, text: str, default: bool = False) -> bool:
    """Whether a pattern matches somewhere; default: what one gives that Python does not read."""
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return default


def _narrowed(a: Core, b: Core) -> tuple[tuple[str, Schemas], ...]:
    """The properties by pattern of a, which may be others to b."""
    return tuple((p, schemas if b.others is None else _both(schemas, b.others)) for p, schemas in a.by_pattern)


def _of_item(core: Core, i: int) -> Schemas:
    return core.first[i] if i < len(core.first) else core.items or ()


# whether alternatives exclude each other


def _are_apart(alternatives: list[list[Core]]) -> bool:
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
    """Whether it is plain that what is written for one does not match the other one."""
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
    """Whether an object as it is written for a lacks what b requires, or has what b forbids."""
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
            yield from [schema["const"]] if "const" in schema else _as_list(schema.get("enum"))


def _as_list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def types_of(core: Core) -> frozenset[str]:
    """Its types, or those that its keywords are about."""
    if core.types != _ALL or not core.hints:
        return core.types
    return core.hints | ({"integer"} if "number" in core.hints else frozenset())


def fits(value: Any, core: Core) -> bool:
    """Whether a value matches what a core asks of texts and numbers."""
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
