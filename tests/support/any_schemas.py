"""JSON schemas of all keywords in any combination, for hypothesis, and what is wrong with an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jsonschema
from hypothesis import strategies as st
from referencing.exceptions import Unresolvable

from llama_cpp_eagle3.chat import Loosened

NAMES = ("a", "ab", "abc", "b", 'q"t', "ü", "x1")
PATTERNS = (
    *("^a", "b$", "^[a-c]{2,4}$", "^(ab|c)?d*$", r"^\d{1,3}$", r"^\w+$", "^.{1,5}$", r"^\S+$", r"^\D{2}$", "a|^b"),
    *("^x", "^(?:a*b*)*c$", "^$", "", "[a-z]", r"^(?!a)", r"(a)\1", "^a{,2}$", "^[^ab]*$", r"\p{L}", "^(a+)+$"),
)
FORMATS = ("date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "regex", "json-pointer", "int32")
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

_few = st.integers(0, 4)
_names = st.sampled_from(NAMES)
_patterns = st.sampled_from(PATTERNS)
_numbers = st.one_of(
    st.integers(-30, 30),
    st.integers(-300, 300).map(lambda n: n / 10),
    st.sampled_from([0, 1.0, -1e-7, 0.1, 1e18, 10**18 + 1, -16.509999999999998, 1e300, 2**53, 123456.789, 5e-324]),
)
_multiples = st.sampled_from([1, 2, 3, 5, 7, 0.1, 0.01, 0.5, 1.0, 2.5, 100, 1e18, 1.5])
_scalars = st.one_of(
    st.sampled_from([None, True, False, "", "a", "ab", "abc", "abcd", "ü", 'say "hi"\n', "12", 0, 1, 1.0, 5, -3, 2.5]),
    _numbers,
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=5,
)


def _keywords(inner: st.SearchStrategy[Any]) -> dict[str, dict[str, st.SearchStrategy[Any]]]:
    schemas = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(_names, inner, max_size=3)
    return {
        "string": {"minLength": _few, "maxLength": _few, "pattern": _patterns, "format": st.sampled_from(FORMATS)},
        "number": {
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _numbers),
            "multipleOf": _multiples,
        },
        "object": {
            "properties": by_name,
            "patternProperties": st.dictionaries(_patterns.filter(lambda p: r"\p" not in p), inner, max_size=2),
            "additionalProperties": inner,
            "required": st.lists(_names, max_size=3, unique=True),
            "propertyNames": inner,
            "minProperties": _few,
            "maxProperties": _few,
            "dependentRequired": st.dictionaries(_names, st.lists(_names, max_size=2, unique=True), max_size=1),
            "dependentSchemas": st.dictionaries(_names, inner, max_size=1),
            "unevaluatedProperties": inner,
        },
        "array": {
            "items": inner,
            "prefixItems": schemas,
            "minItems": _few,
            "maxItems": _few,
            "contains": inner,
            "uniqueItems": st.booleans(),
            "unevaluatedItems": inner,
        },
        "any": {
            "enum": st.lists(_values, min_size=1, max_size=4),
            "const": _values,
            **dict.fromkeys(("anyOf", "oneOf", "allOf"), schemas),
            **dict.fromkeys(("not", "if", "then", "else"), inner),
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/$defs/none", "#/properties/a"]),
        },
    }


@st.composite
def _of(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    """Return a schema that is about one type or several."""
    groups = _keywords(inner)
    kinds = draw(st.lists(st.sampled_from(list(groups)), min_size=1, max_size=2, unique=True))
    known = {name: strategy for kind in kinds for name, strategy in groups[kind].items()}
    names = draw(st.lists(st.sampled_from(list(known)), max_size=5, unique=True))
    schema = {name: draw(known[name]) for name in names}
    if draw(st.integers(0, 3)):
        types = [kind for kind in kinds if kind != "any"] or list(TYPES)
        more = draw(st.sampled_from([*types, *types, *types, *TYPES]))
        schema["type"] = draw(st.sampled_from([more, [more, "null"], [more, "integer"]]))
        schema["type"] = schema["type"] if isinstance(schema["type"], str) else list(dict.fromkeys(schema["type"]))
    return schema


_leaves = st.one_of(st.booleans(), st.just({}), _of(st.just(True)), st.sampled_from(TYPES).map(lambda t: {"type": t}))
_inner = st.recursive(_leaves, _of, max_leaves=6)


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """Return a whole schema."""
    schema = draw(_of(_inner))
    return {**schema, "$defs": {"a": draw(_inner), "b": draw(_inner)}} if "$ref" in str(schema) else schema


# the oracle


def _exact(value: float) -> Fraction:
    return Fraction(Decimal(repr(value)))


def _multiple_of(validator: Any, multiple: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Compare as decimals: jsonschema takes 0.07 for no multiple of 0.01."""
    if validator.is_type(value, "number") and (_exact(value) / _exact(multiple)).denominator != 1:
        yield jsonschema.ValidationError(f"{value} is not a multiple of {multiple}")


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    """Leave out what Python does not know, which is known by all to mean something else there."""
    if validator.is_type(value, "string") and r"\p" not in pattern and not re.search(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator, {"multipleOf": _multiple_of, "pattern": _pattern}
)


def unsaid(schema: Any, value: Any, loosened: tuple[Loosened, ...]) -> list[str]:
    """What is wrong with a value, and not said to be loosened where it is."""
    validator = Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    try:
        errors = list(validator.iter_errors(value))
    except (RecursionError, Unresolvable):  # it refers to itself without end, or to nowhere: that means nothing
        return []
    except BaseException as e:
        if type(e).__name__ != "PanicException":  # of a library of jsonschema's in Rust, for the same reason
            raise
        return []
    return [
        f"{error.json_path}: {error.message[:200]}"
        for error in errors
        if not any(_is_near(item.property, list(error.absolute_path)) for item in loosened)
    ]


def _is_near(place: str, path: list[str | int]) -> bool:
    """Whether a place, as `a.b[].c[0]`, is in a part of the value, or around it; a pattern stands for any name."""
    names = re.findall(r"\[\d*\]|\[.*|[^.\[]+", place)
    for name, step in zip(names, path, strict=False):
        if name == "*" or (name.startswith("[") and not re.fullmatch(r"\[\d*\]", name)):
            return True
        if name != step if isinstance(step, str) else name not in ("[]", f"[{step}]"):
            return False
    return True
