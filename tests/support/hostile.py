"""Schemas and patterns whose work would have no end, or that a parser's stack would not survive."""

from __future__ import annotations

import json
import random
from typing import Any


def schemas() -> dict[str, Any]:
    """Return JSON schemas by what is wrong with them. They are within the limits of a request."""
    dice = random.Random(0)
    a34 = "a" * 34 + "!"
    return {
        "a pattern that backtracks, for an enum": {"enum": [a34], "pattern": "^(a+)+$"},
        "a pattern that backtracks, for names": {"properties": {a34: {}}, "patternProperties": {"^(a+)+$": {}}},
        "a pattern of names that backtracks": {"required": [a34], "propertyNames": {"pattern": "^(a+)+$"}},
        "an enum of 99,000 values": {"enum": [f"value {i}" for i in range(99_000)], "pattern": "^[a-z]+ [0-9]*$"},
        "texts that begin with each other": {"enum": ["a" * i for i in range(2800)]},
        "names x patterns": {
            "properties": {f"p{i}": {} for i in range(20_000)},
            "patternProperties": {f"^p{i}.*x": {} for i in range(20_000)},
        },
        "a common multiple of a million digits": {
            "type": "integer",
            "allOf": [{"multipleOf": dice.randrange(10**290, 10**300)} for _ in range(900)],
        },
        "combinations": {"allOf": [{"anyOf": [{"required": [f"a{i}.{k}"]} for k in range(14)]} for i in range(2000)]},
        "alternatives that are compared": {
            "oneOf": [
                {"anyOf": [{"required": [f"{i}.{k}"], "properties": {f"{i}.{k}": {"const": i}}} for k in range(200)]}
                for i in range(50)
            ]
        },
        "a constant x an enum": {"enum": [str(i) for i in range(50_000)], "const": "x" * 1_000_000},
        "50,000 things to say": {"properties": {f"a{i}": {"$ref": "#/nowhere"} for i in range(49_000)}},
        "references, twice each": {
            "$ref": "#/$defs/a0",
            "$defs": {
                f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 2}"}]} for i in range(5000)
            },
        },
        "references in circles": {
            "$ref": "#/$defs/a0",
            "$defs": {
                f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{(7 * i + k) % 60}"} for k in range(8)]} for i in range(60)
            },
        },
        "a circle through allOf": {"type": "object", "properties": {"x": {"allOf": [{"$ref": "#"}]}}},
        "properties, twice each": {
            "type": "object",
            "properties": {"r": {"allOf": [{"$ref": "#/$defs/a0"}]}},
            "$defs": {
                f"a{i}": {
                    "type": "object",
                    "properties": {name: {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}]} for name in "xy"},
                }
                for i in range(60)
            },
        },
        "patterns with lengths": {
            "properties": {
                f"a{i}": {"type": "string", "pattern": f"^(\\w{{0,9}}\\w{{0,9}}){{0,9}}{i}$", "maxLength": 20}
                for i in range(10_000)
            }
        },
        "categories that there are not": {
            "properties": {
                f"a{i}": {"type": "string", "pattern": f"^\\p{{{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}}}$"}
                for i in range(5000)
            }
        },
        "parts that can be empty": {"type": "string", "pattern": f"^((({'a?' * 140})*{'b?' * 140})*)*$"},
        "a class of 20,000 classes": {"type": "string", "pattern": f"^[{chr(92)}w{(chr(92) + 'w') * 20_000}]$"},
        "19,000 classes": {"type": "string", "pattern": f"^{'[^' + chr(92) + 'W]'}{(chr(92) + 'w') * 18_999}$"},
        "items": {"prefixItems": [{"const": i} for i in range(49_000)]},
        "names that are excluded": {
            "properties": {f"{i}{'a' * 90}": {} for i in range(20_000)},
            "additionalProperties": True,
        },
        "a constant that is nested": {"const": json.loads("[" * 480 + "]" * 480)},
        "a schema that is nested": json.loads('{"items":' * 480 + "{}" + "}" * 480),
        "a number of 400 digits": {"type": "integer", "minimum": 10**400, "maximum": 10**401},
    }
