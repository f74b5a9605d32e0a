"""JSON schemas as grammars: the one converter, for tools, `response_format`, `json_schema` and their like.

A grammar allows values that match the schema, written as models write them: properties in the schema's order, and no
others unless the schema requires them. A keyword that a grammar cannot enforce is left out there, and reported.
"""

from __future__ import annotations

import logging
import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..json_limits import to_json
from .core import TYPES, Core, Schemas, fits, types_of
from .gbnf import Rules, one_text_of
from .numbers import NumberError, integers, numbers
from .parts import array_body, inside, json_text, object_body, string_body
from .reader import Reader

_RULES_MAX = 100_000
"""Rules of a grammar, near what llama.cpp can take."""
_LOGGED_MAX = 10_000
_OBJECT = {"type": "object"}
_NAME = re.compile(r"[A-Za-z0-9-]+")
_log = logging.getLogger(__name__)
_logged: set[Loosened] = set()


class SchemaError(ValueError):
    """No grammar can be made of a schema."""


@dataclass(frozen=True, slots=True)
class Loosened:
    """A part of a schema that its grammar does not enforce."""

    tool: str
    """The tool whose parameters it describes; empty: it is the answer's own schema."""
    property: str
    """Path of the part: a.b[].c; empty: the whole schema."""
    reason: str

    def __str__(self) -> str:
        places = (f"tool {self.tool}" if self.tool else "", f"property {self.property}" if self.property else "")
        return f"{', '.join(place for place in places if place) or 'the schema'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """The grammar of a schema."""

    text: str
    """GBNF."""
    loosened: tuple[Loosened, ...] = ()


def json_schema_to_grammar(schema: Any) -> str:
    """Return GBNF of what a JSON schema allows; {} allows any object. Parts that it does not enforce are logged.

    Raises:
        ValueError: nothing matches the schema, or it is no JSON, or nested too deep.
    """
    grammar = schema_grammar(schema)
    log_loosened(grammar.loosened)
    return grammar.text


def schema_grammar(schema: Any) -> SchemaGrammar:
    """The grammar of a schema, and the parts that it does not enforce.

    Raises:
        ValueError: as `json_schema_to_grammar`.
    """
    to_json(schema)
    if not isinstance(schema, (dict, bool)):
        raise ValueError(f"expected a JSON schema, which is an object, found {type(schema).__name__}")
    if schema is False:
        raise ValueError("nothing matches the JSON schema false")
    rules = Rules()
    converter = Converter({"type": "object"} if schema == {} else schema, rules)
    root = rules.name("root")
    rules.set(root, converter.rule("answer", ""))
    return SchemaGrammar(rules.text(), tuple(converter.loosened))


def log_loosened(loosened: Sequence[Loosened]) -> None:
    """Log once which parts of schemas grammars do not enforce."""
    for item in loosened:
        if item not in _logged and len(_logged) < _LOGGED_MAX:
            _logged.add(item)
            _log.warning("a JSON schema is kept in part: %s", item)


class Converter:
    """Writes the rules of one document's schemas."""

    def __init__(self, document: Any, rules: Rules, tool: str = ""):
        """document: resolves references. tool: the tool whose parameters it describes."""
        self._document, self.tool = document, tool
        self.rules = rules
        self._reader = Reader(document)
        self._names: dict[tuple[Any, ...], str] = {}
        self._todo: deque[tuple[str, str, Core, str]] = deque()
        self.loosened: list[Loosened] = []

    def rule(self, hint: str, pointer: str) -> str:
        """Write the rule of a schema of the document, and all that it needs; returns its name.

        pointer: a JSON pointer to the schema. A tool's whole schema is that of an object, whatever it says.

        Raises:
            ValueError: it is the answer's own schema, and nothing of it can be enforced.
        """
        schema, where = self._at(pointer)
        is_arguments = bool(self.tool) and not pointer
        name = self.value((schema, _OBJECT) if is_arguments else (schema,), hint, where, must=True)
        assert name is not None
        if is_arguments and self.rules.is_any(name):
            name = self.rules.json("object")
        if self.loosened and not self.tool and not pointer and self.rules.is_any(name):
            raise SchemaError(f"nothing is left of the JSON schema: {'; '.join(x.reason for x in self.loosened)}")
        while self._todo:
            rule, kind, core, path = self._todo.popleft()
            self.rules.set(rule, (object_body if kind == "object" else array_body)(self, core, rule, path))
        return name

    def _at(self, pointer: str) -> tuple[Any, str]:
        schema, path, is_name = self._document, "", False
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            schema = schema[int(key)] if isinstance(schema, list) else schema[key]
            if is_name:
                path = inside(path, key)
            elif key == "items":
                path += "[]"
            is_name = key == "properties" and not is_name
        return schema, path

    def say(self, path: str, reason: str) -> None:
        """Report a part that is not enforced."""
        item = Loosened(self.tool, path, reason)
        if item not in self.loosened:
            self.loosened.append(item)

    def value(self, schemas: Schemas, hint: str, path: str, must: bool = False) -> str | None:
        """The name of the rule for a value that matches all of these schemas.

        None: there is no such value. With `must` any value is allowed then.
        """
        key = tuple(
            sorted(str(id(s)) if isinstance(s, (dict, list)) else repr(s) for s in map(self._reader.target, schemas))
        )
        if key in self._names:
            return self._names[key]
        if len(self.rules) > _RULES_MAX:
            self.say(path, "the schemas are too large together")
            return self.rules.json("value")
        cores = self._reader.cores(schemas, lambda reason: self.say(path, reason))
        bodies = []
        for core in cores:
            bodies += self._alternatives(core, hint, path)
        if not bodies:
            if not must:
                return None
            self.say(path, "no value matches it: any is allowed")
            return self.rules.json("value")
        if len(bodies) == 1 and _NAME.fullmatch(bodies[0]):
            name = bodies[0]
        else:
            name = self.rules.name(hint)
            self.rules.set(name, " | ".join(dict.fromkeys(bodies)))
        self._names[key] = name
        return name

    def _alternatives(self, core: Core, hint: str, path: str) -> list[str]:
        """GBNF of the ways to match a core. Objects and arrays are written later."""
        if core.values is not None:
            return [one_text_of(self.rules, map(json_text, self._values(core, path)), hint)]
        types = types_of(core)
        if types == frozenset(TYPES):
            return [self.rules.json("value")]
        bodies = []
        for kind in TYPES:
            if kind not in types or (kind == "integer" and "number" in types):
                continue
            if kind in ("object", "array"):
                is_plain = not core.hints & {kind}
                bodies.append(self.rules.json(kind) if is_plain else self._later(kind, core, hint, path))
            elif kind == "string":
                bodies.append(string_body(self, core, hint, path))
            elif kind in ("number", "integer"):
                bodies.append(self._number(core, kind == "integer", hint, path))
            else:
                bodies.append(self.rules.json(kind))
        return bodies

    def _later(self, kind: str, core: Core, hint: str, path: str) -> str:
        name = self.rules.name(hint)
        self._todo.append((name, kind, core, path))
        return name

    def _values(self, core: Core, path: str) -> list[Any]:
        values = list(core.values or ())
        fitting = [value for value in values if fits(value, core)]
        if not fitting:
            self.say(path, "no value of its enum matches the rest of it, which is not kept")
        elif core.formats and any(isinstance(value, str) for value in fitting):
            self.say(path, f"format {core.formats[0]} is not kept beside an enum")
        return fitting or values

    def _number(self, core: Core, is_integer: bool, hint: str, path: str) -> str:
        low, above = core.low or (None, False)
        high, below = core.high or (None, False)
        decimals = None if is_integer else _decimals(core.multiples)
        step = 1
        if is_integer or all(x.denominator == 1 for x in core.multiples):
            step = math.lcm(*(x.numerator for x in core.multiples))
        elif decimals is None:
            self.say(path, f"multipleOf {', '.join(str(float(x)) for x in core.multiples)} is not kept")
        least = None if low is None else math.floor(low) + 1 if above else math.ceil(low)
        most = None if high is None else math.ceil(high) - 1 if below else math.floor(high)
        try:
            if is_integer or step > 1:
                return integers(self.rules, least, most, step, hint)
            return numbers(self.rules, low, high, above, below, decimals, hint)
        except NumberError as e:
            self.say(path, f"its bounds are not kept: {e}")
            return self.rules.json("integer" if is_integer else "number")


def _decimals(multiples: Sequence[Fraction]) -> int | None:
    """Digits after the point, if the multiples are a power of ten."""
    if len(multiples) != 1 or multiples[0].numerator != 1:
        return None
    return next((n for n in range(1, 16) if multiples[0].denominator == 10**n), None)
