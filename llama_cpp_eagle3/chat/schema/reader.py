"""Reads a JSON schema document into lists of cores, with references and combinations resolved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from .core import ANY, Core, Say, Schemas, type_of
from .formats import FORMATS, NOT_KEPT
from .keywords import asks, core_of, keyed, list_of, short
from .matching import Pattern
from .meet import are_apart, met
from .numbers import exact
from .work import Work

_NESTING_MAX, _STEPS_MAX = 150, 1_000
_VALUE_NESTING_MAX = 30


class Reader:
    """Reads the schemas of one document."""

    def __init__(self, document: Any, work: Work):
        """work: is charged."""
        self._document, self._work = document, work
        self._known: dict[int, tuple[list[Core], dict[str, None]]] = {}
        self._open: list[int] = []
        self._n_circles = self._n_steps = 0
        self._roots: dict[int, Any] | None = None

    def cores(self, schemas: Schemas, say: Say) -> list[Core]:
        """The ways to match all of the schemas; empty: no value does."""
        ways = [ANY]
        for schema in schemas:
            ways = met(ways, self._cores(schema, say), say, self._work)
        return ways

    def target(self, schema: Any) -> Any:
        """The target of a schema that is only a reference; else the schema itself."""
        seen = set()
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and not asks(schema, but="$ref"):
            found = self._resolve(schema)
            if found is None or id(schema) in seen:
                return schema
            self._work.take()
            seen.add(id(schema))
            schema = found[0]
        return schema

    def _cores(self, schema: Any, say: Say) -> list[Core]:
        self._work.take(4)
        schema = self.target(schema)
        if schema is True:
            return [ANY]
        if schema is False:
            return []
        if not isinstance(schema, dict):
            say(f"expected a schema, found {short(schema)}")
            return [ANY]
        key = id(schema)
        if key in self._known:
            cores, reasons = self._known[key]
            self._work.take(len(reasons))
            for reason in reasons:
                say(reason)
            return cores
        if key in self._open:  # a schema that contains itself adds nothing to itself
            self._n_circles += 1
            return []
        self._n_steps = self._n_steps + 1 if self._open else 0
        if len(self._open) > _NESTING_MAX or self._n_steps > _STEPS_MAX:
            say("its references and combinations are nested too deep")
            return [ANY]
        n_circles = self._n_circles
        said: dict[str, None] = {}
        self._open.append(key)
        try:
            found = self._combined(schema, said.setdefault)
        finally:
            self._open.pop()
        if n_circles == self._n_circles or not self._open:
            self._known[key] = found, said
        for reason in said:
            say(reason)
        return found

    def _combined(self, schema: dict[str, Any], say: Say) -> list[Core]:
        core = core_of(schema, say, self._work)
        ways = [] if core.values == {} else [ANY if core == ANY else core]
        if "$ref" in schema:
            found = self._resolve(schema)
            if found is None:
                say(f"cannot resolve $ref {short(schema['$ref'])}")
            elif id(found[0]) not in self._open:
                ways = met(ways, self._cores(found[0], say), say, self._work)
            elif not asks(schema, but="$ref"):
                self._n_circles += 1
                return []
        for part in list_of(schema, "allOf", say):
            ways = met(ways, self._cores(part, say), say, self._work)
        for key in ("anyOf", "oneOf"):
            parts = list_of(schema, key, say)
            if parts:
                alternatives = [self._cores(part, say) for part in parts]
                if key == "oneOf" and not are_apart(alternatives, self._work):
                    say("oneOf is kept as anyOf: a value may match several of them")
                ways = met(ways, [core for cores in alternatives for core in cores], say, self._work)
        return ways

    def _resolve(self, schema: dict[str, Any]) -> tuple[Any] | None:
        """The target of a schema's `$ref`, None if there is none."""
        ref = schema["$ref"]
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            return None
        if self._roots is None:
            self._roots = self._roots_by_id()
        found = self._roots.get(id(schema), self._document)
        self._work.take(1 + len(ref) // 8)
        for part in unquote(ref[2:]).split("/") if len(ref) > 2 else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(found):
                found = found[int(part)]
            else:
                return None
        return (found,)

    def _roots_by_id(self) -> dict[int, Any]:
        """Schemas with references within a part that has an `$id`, and that part: references begin there."""
        found: dict[int, Any] = {}
        todo = [(self._document, self._document)]
        while todo:
            self._work.take()
            part, root = todo.pop()
            if isinstance(part, dict):
                # before 2019 one that begins with # was what $anchor is today
                if isinstance(part.get("$id"), str) and not part["$id"].startswith("#"):
                    root = part
                if "$ref" in part and root is not self._document:
                    found[id(part)] = root
            if isinstance(part, (dict, list)):
                todo += ((item, root) for item in (part.values() if isinstance(part, dict) else part))
        return found

    def fits(self, value: Any, core: Core, depth: int = 0) -> bool | None:
        """Whether a value matches a core; None: a rule beside it is not kept, or cannot be checked."""
        self._work.take(4)
        if type_of(value) not in core.types or (
            core.values is not None and not keyed([value], self._work).keys() <= core.values.keys()
        ):
            return False
        if isinstance(value, str):
            return _all(self._text_fits(value, core))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _number_fits(exact(value), core)
        if depth > _VALUE_NESTING_MAX:
            return None
        if isinstance(value, dict):
            return _all(self._object_fits(value, core, depth + 1))
        return _all(self._array_fits(value, core, depth + 1)) if isinstance(value, list) else True

    def matches(self, value: Any, schemas: Schemas, depth: int = 0) -> bool | None:
        """Whether a value matches all of the schemas; None: as in `fits`."""
        unsaid: list[str] = []
        cores = self.cores(schemas, unsaid.append)
        found = [self.fits(value, core, depth) for core in cores]
        best = True if True in found else None if None in found else False
        return None if best and unsaid else best

    def _text_fits(self, text: str, core: Core) -> Iterator[bool | None]:
        least, most = core.length
        yield least <= len(text) and (most is None or len(text) <= most)
        for pattern in core.patterns:
            yield pattern.matches(text)
        if core.larks:
            yield None
        for name in core.formats:
            if name in FORMATS:  # which allow less than their standards
                yield Pattern(f"^(?:{FORMATS[name]})$", self._work).matches(text) or None
            elif name in NOT_KEPT:
                yield None

    def _object_fits(self, value: dict[str, Any], core: Core, depth: int) -> Iterator[bool | None]:
        least, most = core.n_properties
        yield least <= len(value) and (most is None or len(value) <= most)
        yield all(name in value for name in core.required)
        for name, item in value.items():
            yield self.matches(item, core.of_property(name), depth)
            if core.names:
                yield self.matches(name, core.names)

    def _array_fits(self, value: list[Any], core: Core, depth: int) -> Iterator[bool | None]:
        least, most = core.n_items
        yield least <= len(value) and (most is None or len(value) <= most)
        for i, item in enumerate(value):
            yield self.matches(item, core.of_item(i), depth)


def _number_fits(number: Fraction, core: Core) -> bool:
    return (
        (core.low is None or number > core.low[0] or (number == core.low[0] and not core.low[1]))
        and (core.high is None or number < core.high[0] or (number == core.high[0] and not core.high[1]))
        and (core.multiple is None or (number / core.multiple).denominator == 1)
    )


def _all(found: Iterable[bool | None]) -> bool | None:
    is_known = True
    for one in found:
        if one is False:
            return False
        is_known = is_known and one is not None
    return True if is_known else None
