"""Make random JSON schemas of all keywords, and invalid ones."""

from __future__ import annotations

import random
from typing import Any

PATTERNS = (
    *("^[a-c]{2,4}$", "^x", "b$", '^[^"\\\\]+$', "^(ab|c)?d*$", r"^\d{3}-\d{2}$", r"^\w+$", "^.{1,5}$"),
    *("^[ -~]{2,6}$", r"^\S+$", r"^\D{2}$", r'^"\\"?$', r"^[^\d\s]{1,3}$", "a|^b", r"(?:^|,)a"),
    *(r"^(?:a*b*)*c$", r"^[\x00-\x1f]$", r"^\t"),
)
BAD_PATTERNS = ("(", "[b-a]", "(?=x)y", r"(a)\1", "a**", 5)
NAMES = ("a", "b", 'a"b', "ab", "ü", "type")
ODD: tuple[Any, ...] = (
    *(None, 5, "string", [], {"type": "strin"}, {"enum": []}, {"$ref": "#/nowhere"}, {"$ref": "other.json"}),
    *({"type": []}, {"properties": []}, {"allOf": 3}, {"pattern": "("}, {"minLength": "x"}, {"not": {}}),
    *({"type": "string", "minLength": 5, "maxLength": 2}, {"minimum": 5, "maximum": 2, "type": "integer"}),
)


def random_schema(dice: random.Random, depth: int = 3, odd: float = 0.0) -> Any:
    """Return a schema; odd: the share of invalid subschemas."""
    if dice.random() < odd:
        return dice.choice(ODD)
    if dice.random() < 0.04:
        return dice.choice([True, {}])
    makers = [_string, _number, _simple, _enum]
    if depth > 0:
        makers += [_object, _object, _array, _choice, _all]
    return dice.choice(makers)(dice, depth - 1, odd)


def document(dice: random.Random, odd: float = 0.0) -> Any:
    """Return a whole schema: an object, with definitions that it refers to."""
    schema = _object(dice, 2, odd)
    if dice.random() < 0.3:
        node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
        schema["$defs"] = {"node": node, "a/b~": random_schema(dice, 1, odd)}
        schema["properties"]["r"] = {"$ref": dice.choice(["#/$defs/node", "#/$defs/a~1b~0", "#/$defs/a%2Fb~0"][:2])}
        if dice.random() < 0.5:
            schema["properties"]["self"] = {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}
    return schema


def _string(dice: random.Random, depth: int, odd: float) -> Any:
    schema: dict[str, Any] = {"type": "string"}
    if dice.random() < 0.6:
        schema["pattern"] = dice.choice(PATTERNS if dice.random() >= odd else BAD_PATTERNS)
    elif dice.random() < 0.4:
        schema["format"] = dice.choice(["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "uri"])
    if dice.random() < 0.4:
        schema["minLength"] = dice.randrange(4)
    if dice.random() < 0.4:
        schema["maxLength"] = dice.randrange(3, 9)
    return schema


def _number(dice: random.Random, depth: int, odd: float) -> Any:
    schema: dict[str, Any] = {"type": dice.choice(["integer", "number"])}
    low = dice.choice([dice.randrange(-2000, 2000), round(dice.uniform(-20, 20), dice.randrange(4)), 0, 10**18])
    high = low + dice.choice([dice.randrange(0, 3000), round(dice.uniform(1.0, 3), 2), 10**6])
    if dice.random() < 0.5:
        schema[dice.choice(["minimum", "exclusiveMinimum"])] = low
    if dice.random() < 0.5:
        schema[dice.choice(["maximum", "exclusiveMaximum"])] = high
    if schema["type"] == "integer" and dice.random() < 0.2:
        schema["multipleOf"] = dice.choice([1, 2, 5, 7, 100])
    return schema


def _simple(dice: random.Random, depth: int, odd: float) -> Any:
    kinds = dice.sample(["string", "number", "integer", "boolean", "null", "object", "array"], dice.randrange(1, 4))
    return {"type": kinds if len(kinds) > 1 else kinds[0]}


def _enum(dice: random.Random, depth: int, odd: float) -> Any:
    known = ["x", 'say "hi"\n', "ü\\", 1, 2.5, True, None, [1, {"a": "b"}], "xy", ""]
    values = dice.sample(known, dice.randrange(1, 6))
    return {"enum": values} if dice.random() < 0.7 else {"const": values[0]}


def _object(dice: random.Random, depth: int, odd: float) -> Any:
    names = dice.sample(NAMES, dice.randrange(0, 4))
    schema: dict[str, Any] = {"type": "object", "properties": {n: random_schema(dice, depth, odd) for n in names}}
    if names and dice.random() < 0.7:
        schema["required"] = dice.sample(names, dice.randrange(1, len(names) + 1))
    if dice.random() < 0.4:
        schema["additionalProperties"] = dice.choice([True, False, {"type": "integer"}])
    if dice.random() < 0.15:
        schema["maxProperties"] = dice.randrange(len(schema.get("required", [])), 4)
    if dice.random() < 0.1 and len(names) > 1:
        schema["minProperties"] = 1
    if dice.random() < 0.1:
        schema["patternProperties"] = {"^p_[a-z]$": {"type": "boolean"}}
    return schema


def _array(dice: random.Random, depth: int, odd: float) -> Any:
    schema: dict[str, Any] = {"type": "array"}
    if dice.random() < 0.7:
        schema["items"] = random_schema(dice, depth, odd)
    if dice.random() < 0.3:
        schema["prefixItems"] = [random_schema(dice, depth, odd) for _ in range(dice.randrange(1, 4))]
        if dice.random() < 0.5:
            schema["items"] = False
    if dice.random() < 0.4:
        schema["minItems"] = dice.randrange(3)
    if dice.random() < 0.6:
        schema["maxItems"] = dice.randrange(3, 5)
    return schema


def _choice(dice: random.Random, depth: int, odd: float) -> Any:
    return {dice.choice(["anyOf", "oneOf"]): [random_schema(dice, depth, odd) for _ in range(dice.randrange(1, 4))]}


def _all(dice: random.Random, depth: int, odd: float) -> Any:
    parts = [_object(dice, depth, odd) for _ in range(2)]
    for part in parts:
        part.pop("maxProperties", None)
    return {"allOf": parts} if dice.random() < 0.6 else {**parts[0], "anyOf": [parts[1], {"required": ["z"]}]}
