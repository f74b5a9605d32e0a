"""The keywords of one JSON schema as a core, without its references and combinations."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

from .core import ALL_TYPES, TYPES, Core, Items, Properties, Say, key_of, type_of
from .matching import Pattern
from .numbers import exact, strict
from .work import Work

LARK = "x-lark"
"""A keyword of ours: the text matches a grammar in Lark. Custom tools have it."""
_HINTS = {
    "object": {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
    | {"minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains"},
    "string": {"pattern", "format", "minLength", "maxLength", LARK},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
_NOT_KEPT = (
    *("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "contains", "unevaluatedProperties"),
    *("unevaluatedItems", "$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"),
    *("formatMinimum", "formatMaximum", "formatExclusiveMinimum", "formatExclusiveMaximum"),
)


_NUMBER_MAX = 10**400


def core_of(schema: dict[str, Any], say: Say, work: Work) -> Core:
    """The core of a schema's own keywords. work: is charged."""
    work.take(60)
    for key in _NOT_KEPT:
        if key in schema and not _is_idle(schema, key):
            say(f"{key} is not kept")
    if schema.get("uniqueItems") not in (None, False):
        say("uniqueItems is not kept")
    multiples = _numbers(schema, "multipleOf", say)
    for multiple in multiples:
        if multiple <= 0:
            say(f"multipleOf: expected a number above 0, found {short(multiple)}")
    types = _types(schema, say)
    values = _values(schema, say, work)
    if values is not None:
        kept = {key: value for key, value in values.items() if type_of(value) in types}
        if not kept and values:
            say(f"no value of its enum has its type {short(schema.get('type'))}")
            types, kept = ALL_TYPES, values
        values = kept
    return Core(
        types=types,
        hints=frozenset(name for name, keys in _HINTS.items() if not keys.isdisjoint(schema)),
        values=values,
        patterns=tuple(Pattern(source, work) for source in _texts(schema, "pattern", say)),
        formats=_texts(schema, "format", say),
        larks=_texts(schema, LARK, say),
        length=_counts(schema, "Length", say),
        low=_bound(schema, "minimum", 1, say),
        high=_bound(schema, "maximum", -1, say),
        multiple=next((exact(x) for x in multiples if x > 0), None),
        n_properties=_counts(schema, "Properties", say),
        n_items=_n_items(schema, say),
        **_of_objects(schema, say, work),
        **_of_arrays(schema, say),
    )


def _is_idle(schema: dict[str, Any], key: str) -> bool:
    """Whether one of `_NOT_KEPT` asks for nothing here, or for what is kept by other means."""
    value = schema[key]
    if key == "not":
        return value is False
    if key == "if":
        return "then" not in schema and "else" not in schema
    if key == "contains":
        return "maxContains" not in schema and (schema.get("minContains") == 0 or value in (True, {}))
    return value in (True, {}) and not key.startswith("$")


def _n_items(schema: dict[str, Any], say: Say) -> tuple[int, int | None]:
    """The least and the greatest number of items; an array that contains anything is not empty."""
    least, most = _counts(schema, "Items", say)
    if schema.get("contains") in (True, {}) and "contains" in schema:
        least = max([least, *map(math.ceil, _numbers({"minContains": 1, **schema}, "minContains", say))])
    return least, most


def _types(schema: dict[str, Any], say: Say) -> frozenset[str]:
    given = schema.get("type", list(TYPES))
    names = [*given] if isinstance(given, list) else [given]
    if schema.get("nullable") is True and names:  # OpenAPI 3.0
        names.append("null")
    known = frozenset(name for name in TYPES if name in names)
    if not names or any(name not in TYPES for name in names):
        say(f"type {short(given)} is none of JSON schemas")
    return (known | {"integer"} if "number" in known else known) or ALL_TYPES


def _values(schema: dict[str, Any], say: Say, work: Work) -> dict[str, Any] | None:
    found = None
    if "enum" in schema:
        values = schema["enum"]
        if isinstance(values, list) and values:
            found = keyed(values, work)
        else:
            say(f"enum: expected values, found {short(values)}")
    if "const" in schema:
        const = keyed([schema["const"]], work)
        found = const if found is None else {key: value for key, value in found.items() if key in const}
    return found


def keyed(values: list[Any], work: Work) -> dict[str, Any]:
    """Values under their keys."""
    found: dict[str, Any] = {}
    for value in values:
        key = key_of(value)
        work.take(2 + len(key) // 16)
        found.setdefault(key, value)
    return found


def _texts(schema: dict[str, Any], key: str, say: Say) -> tuple[str, ...]:
    value = schema.get(key)
    if value is None or isinstance(value, str):
        return (value,) if value else ()
    say(f"{key}: expected a text, found {short(value)}")
    return ()


def _numbers(schema: dict[str, Any], key: str, say: Say) -> list[float]:
    value = schema.get(key)
    if value is None:
        return []
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and abs(value) <= _NUMBER_MAX:
        return [value]
    say(f"{key}: expected a number, found {short(value)}")
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
    """The stricter one of a bound and its exclusive form, which is a flag in draft 4."""
    exclusive = f"exclusive{key.capitalize()}"
    is_flag = isinstance(schema.get(exclusive), bool)
    found = [(strict(x, sign), is_flag and schema[exclusive]) for x in _numbers(schema, key, say)]
    if not is_flag:
        found += [(strict(x, sign), True) for x in _numbers(schema, exclusive, say)]
    return max(found, key=lambda bound: (sign * bound[0], bound[1]), default=None)


def _of_objects(schema: dict[str, Any], say: Say, work: Work) -> dict[str, Any]:
    properties, by_pattern = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in (("properties", properties), ("patternProperties", by_pattern)):
        if not isinstance(value, dict):
            say(f"{key}: expected an object of schemas, found {short(value)}")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        if not isinstance(required, bool):
            say(f"required: expected a list of names, found {short(required)}")
        required = []
    named = properties if isinstance(properties, dict) else {}
    # draft 3 has this in the property
    flagged = (name for name, part in named.items() if isinstance(part, dict) and part.get("required") is True)
    patterns = by_pattern if isinstance(by_pattern, dict) else {}
    others = schema.get("additionalProperties")
    work.take(len(named) + 10 * len(patterns) + len(required))
    part = Properties(
        named=named,
        by_pattern=tuple((Pattern(source, work), value) for source, value in patterns.items()),
        others=() if others is None else (others,),
        is_listed=isinstance(schema.get("properties"), dict) or isinstance(schema.get("patternProperties"), dict),
    )
    return {
        "properties": (part,) if part.is_listed or part.others else (),
        "required": tuple(dict.fromkeys((*required, *flagged))),
        "names": () if "propertyNames" not in schema else (schema["propertyNames"],),
    }


def _of_arrays(schema: dict[str, Any], say: Say) -> dict[str, Any]:
    first, items = schema.get("prefixItems", []), schema.get("items")
    if isinstance(items, list) and first:
        say(f"items: expected a schema, found {short(items)}")
        items = None
    elif isinstance(items, list):  # before 2020
        first, items = items, schema.get("additionalItems")
    if not isinstance(first, list):
        say(f"prefixItems: expected a list of schemas, found {short(first)}")
        first = []
    part = Items(tuple(first), () if items is None else (items,))
    return {"items": (part,) if part.first or part.rest else ()}


def asks(schema: dict[str, Any], but: str) -> bool:
    """Whether a schema has other keywords that require something."""
    known = {"type", "enum", "const", "allOf", "anyOf", "oneOf", *_NOT_KEPT, "uniqueItems"}.union(*_HINTS.values())
    return any(key in known for key in schema if key != but)


def list_of(schema: dict[str, Any], key: str, say: Say) -> list[Any]:
    """A keyword's list of schemas; empty where it is none."""
    value = schema.get(key, [])
    if isinstance(value, list) and (value or key not in schema):
        return value
    say(f"{key}: expected a list of schemas, found {short(value)}")
    return []


def short(value: Any) -> str:
    """A value of JSON for a message."""
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += part[:61]
        if len(text) > 60:
            break
    return text if len(text) <= 60 else f"{text[:57]}..."
