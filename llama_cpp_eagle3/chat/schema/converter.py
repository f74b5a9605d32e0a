"""JSON schemas as grammars: the one converter, for tools, `response_format`, `json_schema` and their like.

A grammar allows values that match the schema, written as models write them: properties in the schema's order, and no
others unless the schema requires them. A keyword that a grammar cannot enforce is left out there, and reported.
"""

from __future__ import annotations

import logging
import math
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any

from ..json_limits import to_json
from .core import TYPES, Core, Schemas, identity
from .form import JSON, Form
from .gbnf import Rules, one_text_of
from .keywords import LARK
from .numbers import NumberError, integers, numbers
from .parts import array_body, inside, object_body, string_body
from .reader import Reader
from .work import SchemaError

_RULES_MAX = 100_000
"""Rules of a grammar, near what llama.cpp can take."""
_LOOSENED_MAX = 200
_LOGGED_MAX = 10_000
_OBJECT = {"type": "object"}
_NAME = re.compile(r"[A-Za-z0-9-]+")
_log = logging.getLogger(__name__)
_logged: set[Loosened] = set()


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
    return SchemaGrammar(rules.text(), at_most(converter.loosened))


def at_most(loosened: Iterable[Loosened]) -> tuple[Loosened, ...]:
    """The first parts that a grammar does not enforce, and whether there are more."""
    found = tuple(islice(loosened, _LOOSENED_MAX + 1))
    if len(found) > _LOOSENED_MAX:
        return (*found[:-1], Loosened("", "", f"more than {_LOOSENED_MAX} parts of schemas are not kept"))
    return found


def log_loosened(loosened: Sequence[Loosened]) -> None:
    """Log once which parts of schemas grammars do not enforce."""
    for item in loosened:
        if item not in _logged and len(_logged) < _LOGGED_MAX:
            _logged.add(item)
            _log.warning("a JSON schema is kept in part: %s", item)


class Converter:
    """Writes the rules of one document's schemas."""

    def __init__(self, document: Any, rules: Rules, tool: str = "", form: Form = JSON):
        """document: resolves references. tool: the tool whose parameters it describes. form: of the values."""
        self._document, self.tool, self.form = document, tool, form
        self.rules = rules
        self.reader = Reader(document, rules.work)
        self._names: dict[tuple[Any, ...], str] = {}
        self._todo: deque[tuple[str, str, Core, str]] = deque()
        self.loosened: dict[Loosened, None] = {}
        """Parts that are not enforced, each once."""

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
        if len(self.loosened) <= _LOOSENED_MAX:
            self.loosened[Loosened(self.tool, path, reason)] = None

    def value(self, schemas: Schemas, hint: str, path: str, must: bool = False) -> str | None:
        """The name of the rule for a value that matches all of these schemas.

        None: there is no such value. With `must` any value is allowed then.
        """
        self.rules.work.take(10 + 2 * len(schemas))
        key = tuple(sorted(str(identity(schema)) for schema in map(self.reader.target, schemas)))
        if key in self._names:
            return self._names[key]
        if len(self.rules) > _RULES_MAX:
            self.say(path, "the schemas are too large together")
            return self.rules.json("value")
        cores = self.reader.cores(schemas, lambda reason: self.say(path, reason))
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
            return [one_text_of(self.rules, map(self.form.text, self._values(core, path)), hint)]
        types = core.written_types
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
        values = list((core.values or {}).values())
        found = [self.reader.fits(value, core) for value in values]
        fitting = [value for value, fits in zip(values, found, strict=True) if fits is not False]
        if not fitting:
            self.say(path, "no value of its enum matches the rest of it, which is not kept")
        elif None in found:
            others = [f"pattern {pattern.source!r}" for pattern in core.patterns]
            others += [f"format {name}" for name in core.formats]
            others += [LARK] * bool(core.larks)
            self.say(path, f"{', '.join(others) or 'a rule'} is not kept beside an enum")
        return fitting or values

    def _number(self, core: Core, is_integer: bool, hint: str, path: str) -> str:
        low, above = core.low or (None, False)
        high, below = core.high or (None, False)
        multiple = core.multiple or Fraction(1)
        is_whole = is_integer or (core.multiple is not None and multiple.denominator == 1)
        decimals = None if is_whole or core.multiple is None else _decimals(multiple)
        if not is_whole and core.multiple is not None and decimals is None:
            self.say(path, f"multipleOf {float(multiple)} is not kept")
        least = None if low is None else math.floor(low) + 1 if above else math.ceil(low)
        most = None if high is None else math.ceil(high) - 1 if below else math.floor(high)
        try:
            if is_whole:
                return integers(self.rules, least, most, multiple.numerator, hint)
            return numbers(self.rules, low, high, above, below, decimals, hint)
        except NumberError as e:
            self.say(path, f"its bounds are not kept: {e}")
            return self.rules.json("integer" if is_integer else "number")


def _decimals(multiple: Fraction) -> int | None:
    """Digits after the point of its multiples, if it is a power of ten."""
    found = (n for n in range(1, 16) if multiple.denominator == 10**n)
    return next(found, None) if multiple.numerator == 1 else None
