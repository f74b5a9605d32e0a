"""The table of docs/schemas.md: each keyword of JSON schemas is held, or what is not held is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema_specifications import REGISTRY

from llama_cpp_eagle3.chat import schema_grammar

DOC = Path(__file__).parents[2] / "docs/schemas.md"
VOCABULARIES = ("core", "applicator", "validation", "unevaluated", "format-annotation")
NO_RULES = frozenset(
    ("$id", "$schema", "$anchor", "$dynamicAnchor", "$vocabulary", "$comment", "$defs", "definitions", "dependencies")
)
"""Keywords that ask nothing of a value, and one that is not of the newest draft."""
A, B = {"const": "a"}, {"type": "string"}
MANY: list[Any] = [{"anyOf": [{name: i} for i in range(20)]} for name in ("minimum", "maximum")]
"""Two choices, with 400 combinations."""
HELD: dict[str, list[Any]] = {
    "type": [{"type": ["string", "null"]}],
    "enum": [{"enum": [1, "a", {"b": [2]}]}],
    "const": [{"const": {"a": 1}}],
    "properties": [{"properties": {"a": B, "b": False}}],
    "required": [{"properties": {"a": B}, "required": ["a", "z"]}],
    "additionalProperties": [{"properties": {"a": B}, "additionalProperties": {"type": "integer"}}],
    "patternProperties": [{"properties": {"ab": {"minLength": 1}}, "patternProperties": {"^a": B}}],
    "propertyNames": [{"properties": {"a": B}, "propertyNames": {"maxLength": 3}}],
    "minProperties": [{"properties": {"a": B, "b": B}, "minProperties": 1}],
    "maxProperties": [{"properties": {"a": B, "b": B}, "maxProperties": 1}],
    "items": [{"items": B}, {"items": [B, A], "additionalItems": False}],
    "prefixItems": [{"prefixItems": [A, B], "items": False}],
    "minItems": [{"items": B, "minItems": 2}],
    "maxItems": [{"items": B, "maxItems": 100_000}],
    "contains": [{"items": B, "contains": {}}],
    "minContains": [{"items": B, "contains": {}, "minContains": 2}],
    "minLength": [{"type": "string", "minLength": 3}, {"pattern": "^a*$", "minLength": 30}],
    "maxLength": [{"type": "string", "maxLength": 100_000}],
    "pattern": [{"type": "string", "pattern": r"^[a-c]{2}\d"}],
    "format": [{"type": "string", "format": name} for name in ("date", "time", "uuid", "email", "uri", "int32")],
    "minimum": [{"type": "integer", "minimum": -3}],
    "maximum": [{"type": "number", "maximum": 2.5}],
    "exclusiveMinimum": [{"type": "number", "exclusiveMinimum": 0}],
    "exclusiveMaximum": [{"type": "integer", "exclusiveMaximum": 99}],
    "multipleOf": [{"type": "integer", "multipleOf": 128}, {"type": "number", "multipleOf": 0.01}],
    "$ref": [{"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/properties/p/properties/c"}, "c": B}}],
    "anyOf": [{"anyOf": [A, {"type": "integer"}]}],
    "allOf": [{"allOf": [{"required": ["a"]}, {"properties": {"a": B}}]}],
    "oneOf": [{"oneOf": [A, {"const": "b"}]}, {"oneOf": [B, {"type": "array"}]}],
    "x-lark": [{"type": "string", "x-lark": 'start: "a"+'}],
    "nullable": [{"type": "string", "nullable": True}],
}
SAID: dict[str, list[Any]] = {
    "patternProperties": [{"patternProperties": {"^a": {"type": "integer"}, "b$": B}, "minProperties": 1}],
    "propertyNames": [{"patternProperties": {"^a": B}, "propertyNames": {"maxLength": 3}}],
    "minItems": [{"items": B, "minItems": 100_001}],
    "maxItems": [{"items": B, "maxItems": 100_001}],
    "contains": [{"items": B, "contains": A}],
    "minContains": [{"items": B, "contains": A, "minContains": 2}],
    "maxContains": [{"items": B, "contains": {}, "maxContains": 2}],
    "minLength": [{"type": "string", "minLength": 100_001}],
    "maxLength": [{"type": "string", "maxLength": 100_001}],
    "pattern": [{"type": "string", "pattern": "(?=a)b"}, {"type": "string", "pattern": "("}],
    "format": [{"type": "string", "format": name} for name in ("regex", "json-pointer", "idn-email", "uri-template")],
    "minimum": [{"type": "integer", "minimum": 10**401}],
    "maximum": [{"type": "integer", "maximum": -(10**401)}],
    "exclusiveMinimum": [{"type": "integer", "exclusiveMinimum": 10**401}],
    "exclusiveMaximum": [{"type": "integer", "exclusiveMaximum": -(10**401)}],
    "multipleOf": [{"type": "number", "multipleOf": 1.5}, {"type": "integer", "multipleOf": 129}],
    "$ref": [{"$ref": "#/nowhere"}, {"$ref": "other.json"}],
    "anyOf": [{"type": "integer", "allOf": MANY}],
    "allOf": [{"type": "integer", "allOf": MANY}],
    "oneOf": [{"oneOf": [{"minLength": 1, **B}, B]}],
    "x-lark": [{"type": "string", "x-lark": 'start: "a"+', "maxLength": 3}],
    "not": [{**B, "not": A}],
    "if": [{**B, "if": A, "then": B}],
    "then": [{**B, "if": A, "then": {"minLength": 1}}],
    "else": [{**B, "if": A, "else": {"minLength": 1}}],
    "uniqueItems": [{"items": B, "uniqueItems": True}],
    "dependentRequired": [{"properties": {"a": B}, "dependentRequired": {"a": ["b"]}}],
    "dependentSchemas": [{"properties": {"a": B}, "dependentSchemas": {"a": {"required": ["b"]}}}],
    "dependencies": [{"properties": {"a": B}, "dependencies": {"a": ["b"]}}],
    "unevaluatedItems": [{"prefixItems": [B], "unevaluatedItems": False}],
    "unevaluatedProperties": [{"properties": {"a": B}, "unevaluatedProperties": False}],
    "$dynamicRef": [{"$dynamicRef": "#a"}],
    "divisibleBy": [{"type": "integer", "divisibleBy": 3}],
    "extends": [{**B, "extends": A}],
    "disallow": [{**B, "disallow": "null"}],
    "formatMinimum": [{**B, "format": "date", "formatMinimum": "2026-01-01"}],
    "formatMaximum": [{**B, "format": "date", "formatMaximum": "2026-01-01"}],
}


def rows() -> dict[str, tuple[bool, bool]]:
    """Return whether a part of each keyword of the table is held, and whether a part is said not to be."""
    table = DOC.read_text(encoding="utf-8").split("| keyword |")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, held, said = (cell.strip() for cell in line.strip("|").split("|"))
        found.update(dict.fromkeys(re.findall(r"`([^`]+)`", names), (bool(held), bool(said))))
    return found


def keywords() -> set[str]:
    """Return those of the newest draft's vocabularies."""
    root = "https://json-schema.org/draft/2020-12/meta/"
    return {name for part in VOCABULARIES for name in REGISTRY.contents(root + part)["properties"]} - NO_RULES


def test_the_table_has_all_keywords() -> None:
    assert keywords() - rows().keys() == set()
    assert {name: (name in HELD, name in SAID) for name in rows()} == rows()


@pytest.mark.parametrize("keyword", HELD)
def test_what_is_held(keyword: str) -> None:
    for schema in HELD[keyword]:
        assert keyword in str(schema)
        assert schema_grammar({"type": "object", "properties": {"p": schema}}).loosened == (), schema


@pytest.mark.parametrize("keyword", SAID)
def test_what_is_said(keyword: str) -> None:
    for schema in SAID[keyword]:
        named = schema if "type" in schema else {"type": "array" if "items" in schema else "object", **schema}
        loosened = schema_grammar({"type": "object", "properties": {"p": named}}).loosened
        assert loosened, schema
        assert {item.property.split(".")[0].split("[")[0] for item in loosened} == {"p"}
