"""Reads a JSON schema document into lists of cores, with references and combinations resolved."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from .core import ANY, Core, Say, Schemas
from .keywords import asks, core_of, list_of, short
from .meet import are_apart, met

_NESTING_MAX, _STEPS_MAX = 150, 1_000


class Reader:
    """Reads the schemas of one document."""

    def __init__(self, document: Any):
        self._document = document
        self._known: dict[int, list[Core]] = {}
        self._open: list[int] = []
        self._n_circles = self._n_steps = 0

    def cores(self, schemas: Schemas, say: Say) -> list[Core]:
        """The ways to match all of the schemas; empty: no value does."""
        ways = [ANY]
        for schema in schemas:
            ways = met(ways, self._cores(schema, say), say)
        return ways

    def target(self, schema: Any) -> Any:
        """The target of a schema that is only a reference; else the schema itself."""
        seen = set()
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and not asks(schema, but="$ref"):
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
            say(f"expected a schema, found {short(schema)}")
            return [ANY]
        key = id(schema)
        if key in self._known:
            return self._known[key]
        if key in self._open:  # a schema that contains itself adds nothing to itself
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
        core = core_of(schema, say)
        ways = [] if core.values == () else [ANY if core == ANY else core]
        if "$ref" in schema:
            found = self._resolve(schema["$ref"])
            if found is None:
                say(f"cannot resolve $ref {short(schema['$ref'])}")
            elif id(found[0]) not in self._open:
                ways = met(ways, self._cores(found[0], say), say)
            elif not asks(schema, but="$ref"):
                self._n_circles += 1
                return []
        for part in list_of(schema, "allOf", say):
            ways = met(ways, self._cores(part, say), say)
        for key in ("anyOf", "oneOf"):
            parts = list_of(schema, key, say)
            if parts:
                alternatives = [self._cores(part, say) for part in parts]
                if key == "oneOf" and not are_apart(alternatives):
                    say("oneOf is kept as anyOf: a value may match several of them")
                ways = met(ways, [core for cores in alternatives for core in cores], say)
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
