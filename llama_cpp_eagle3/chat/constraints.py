"""The constraint that a request sets for its answer's text, by all names that clients use for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .json_limits import MAX_ITEMS, check_size
from .schema import SchemaGrammar, given_grammar, schema_grammar
from .schema.form import TEXT
from .schema.gbnf import Rules, one_text_of

_CHOICES_MAX = 20_000
_LARK_RULE = re.compile(r"(?:^|\r)[?!]?[A-Za-z_]\w*(?:\.-?[0-9]+)?[ \t]*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a text must be: either `grammar` or `json_schema` is set."""

    name: str
    """The request's field that asks for it."""
    grammar: str = ""
    """GBNF."""
    json_schema: Any = None
    """The schema of the whole text, which is JSON."""

    def compile(self) -> SchemaGrammar:
        """Its grammar.

        Raises:
            ValueError: no grammar can be made of the schema.
        """
        if self.grammar:
            return SchemaGrammar(self.grammar)
        try:
            return schema_grammar(self.json_schema)
        except ValueError as e:
            raise ValueError(f"'{self.name}': {e}") from None


def _json(name: str, value: Any) -> Constraint:
    if isinstance(value, str):
        check_size(f"'{name}'", value.encode(errors="surrogatepass"), MAX_ITEMS)
        try:
            value = json.loads(value.removeprefix("\ufeff"))
        except (ValueError, RecursionError):
            raise ValueError(f"'{name}': expected a JSON schema, found a text that is no JSON") from None
    if not isinstance(value, (dict, bool)):
        raise ValueError(f"'{name}': expected a JSON schema, which is an object, found {_kind(value)}")
    if value is False:
        raise ValueError(f"'{name}': nothing matches the JSON schema false")
    return Constraint(
        name, json_schema={"type": "object"} if value == {} else {"anyOf": [{}]} if value is True else value
    )


def _any_object(name: str, value: Any) -> Constraint | None:
    if not isinstance(value, bool):
        raise ValueError(f"'{name}': expected true or false, found {_kind(value)}")
    return Constraint(name, json_schema={"type": "object"}) if value else None


def _regex(name: str, value: Any) -> Constraint:
    return Constraint(name, grammar=given_grammar(name, "regex", _text(name, value), TEXT))


def _choice(name: str, value: Any) -> Constraint:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise ValueError(f"'{name}': expected a list of texts that are not empty, found {value!r:.80}")
    if len(value) > _CHOICES_MAX:
        raise ValueError(f"'{name}': expected at most {_CHOICES_MAX} texts, found {len(value)}")
    rules = Rules()
    root = rules.name("root")
    rules.set(root, one_text_of(rules, value, "choice"))
    return Constraint(name, grammar=rules.text())


def _grammar(name: str, value: Any) -> Constraint | None:
    if isinstance(value, dict):  # as text-generation-inference has it
        kinds = {"json": _json, "json_schema": _json, "json_object": _json, "regex": _regex}
        kind = value.get("type")
        if kind not in kinds:
            raise ValueError(f"'{name}.type': expected one of {', '.join(kinds)}, found {kind!r}")
        return kinds[kind](f"{name}.value", value.get("value"))
    text = _text(name, value).removeprefix("\ufeff")  # a file's mark
    if text and "::=" not in text:
        return _lark(name, text)
    return Constraint(name, grammar=text) if text else None


def _lark(name: str, text: str) -> Constraint:
    if _LARK_RULE.search(text) is None:
        raise ValueError(
            f'\'{name}\': expected a grammar in GBNF, which has rules as root ::= "yes" | "no", or in Lark, which has '
            'them as start: "yes" | "no"'
        )
    return Constraint(name, grammar=given_grammar(name, "lark", text, TEXT))


def _format(name: str, value: Any) -> Constraint | None:
    """Ollama's `format`: json, or a schema."""
    if isinstance(value, str):
        if value not in ("", "json"):
            raise ValueError(f"'{name}': expected json or a JSON schema, found {value!r}")
        return Constraint(name, json_schema={"type": "object"}) if value else None
    is_form = isinstance(value, dict) and value.get("type") in ("text", "json_object", "json_schema")
    return _response_format(name, value) if is_form else _json(name, value)


def _response_format(name: str, value: Any) -> Constraint | None:
    if not isinstance(value, dict):
        raise ValueError(f"expected '{name}' to be an object, found {_kind(value)}")
    kind = value.get("type")
    found = {key: value[key] for key in _FORM_KEYS if value.get(key) is not None}
    if kind in (None, "", "text"):
        if found:
            raise ValueError(f"'{name}.type': expected json_schema beside the schema, found {kind!r}")
        return None
    keys = next((keys for kinds, keys in _FORMS.items() if kind in kinds), None)
    if keys is None:
        raise ValueError(f'{name} type must be one of "text", "json_object" or "json_schema", but got: {kind}')
    if _is_note(found.get("json_schema")):
        del found["json_schema"]
    if len(found) > 1 or not found.keys() <= set(keys):
        raise ValueError(f"'{name}' of type {kind}: expected one of {', '.join(keys)}, found {', '.join(found)}")
    key, given = next(iter(found.items()), (keys[0], None))
    if not given and "schema" not in keys:
        raise ValueError(f"'{name}' of type {kind}: expected one of {', '.join(keys)}, found none that has a text")
    if "grammar" in keys:
        return _grammar(f"{name}.{key}", given)
    if "regex" in keys:
        return _regex(f"{name}.{key}", given)
    if key != "schema" and isinstance(given, dict) and "schema" in given:  # with its name, as OpenAI has it
        key, given = f"{key}.schema", {} if given["schema"] is None else given["schema"]
    if given is None and kind == "json_schema":
        raise ValueError(f"'{name}.json_schema.schema' is required")
    return _json(f"{name}.{key}", {} if given is None else given)


_FORMS = {
    ("json_object", "json", "json_schema"): ("schema", "json_schema", "value"),
    ("grammar", "gbnf"): ("grammar", "value"),
    ("regex", "regexp", "pattern"): ("regex", "pattern", "value"),
}
"""Types of `response_format` -> the fields that may hold what they ask for, by the names of all clients."""
_FORM_KEYS = tuple(dict.fromkeys(key for keys in _FORMS.values() for key in keys))


def _is_note(value: Any) -> bool:
    """Whether it only names a schema that is missing here."""
    return isinstance(value, dict) and set(value) <= {"name", "strict", "description"}


def _structured(name: str, value: Any) -> Constraint | None:
    """vLLM's `structured_outputs`: one constraint, and options that only make it stricter or faster."""
    if not isinstance(value, dict):
        raise ValueError(f"expected '{name}' to be an object, found {_kind(value)}")
    kinds = {
        "json": _json,
        "json_object": _any_object,
        "regex": _regex,
        "choice": _choice,
        "grammar": _grammar,
        "structural_tag": _unsupported,
        "whitespace_pattern": _unsupported,
    }
    found = [kinds[key](f"{name}.{key}", given) for key, given in value.items() if given is not None and key in kinds]
    unknown = [key for key in value if key not in kinds and not key.startswith(("disable_", "backend", "_backend"))]
    if unknown:
        raise ValueError(f"'{name}': expected one of {', '.join(kinds)}, found {', '.join(unknown)}")
    return _only(constraint for constraint in found if constraint is not None)


def _unsupported(name: str, value: Any) -> Constraint | None:
    raise ValueError(f"'{name}' is not supported; json, regex, choice and grammar are")


def _output_config(name: str, value: Any) -> Constraint | None:
    """Anthropic's field, and the `text` of the Responses API: an object with a format."""
    if not isinstance(value, dict):
        raise ValueError(f"expected '{name}' to be an object, found {_kind(value)}")
    form = value.get("format")
    return None if form is None else _response_format(f"{name}.format", form)


def _wrapped(name: str, value: Any) -> Constraint | None:
    inner = sorted(_KINDS.keys() & value.keys()) if isinstance(value, dict) else []
    if inner:
        raise ValueError(f"'{name}': its fields belong into the body itself: {', '.join(inner)}")
    return None


_KINDS: dict[str, Callable[[str, Any], Constraint | None]] = {
    "grammar": _grammar,
    "json_schema": _json,
    "response_format": _response_format,
    "guided_json": _json,
    "guided_json_object": _any_object,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "guided_whitespace_pattern": _unsupported,
    "guided_decoding": _structured,
    "structured_outputs": _structured,
    "structural_tag": _unsupported,
    "regex": _regex,
    "ebnf": _grammar,
    "choice": _choice,
    "format": _format,
    "output_format": _response_format,
    "output_config": _output_config,
    "text": _output_config,
    "extra_body": _wrapped,
}
CONSTRAINTS = frozenset(_KINDS)
"""Fields of requests that ask for a constraint."""


def constraint_of(body: Mapping[str, Any]) -> Constraint | None:
    """The constraint that a request sets for its answer's text; None: none.

    Raises:
        ValueError: a field, which the message names, is invalid or contradicts another one.
    """
    found: dict[str, Constraint] = {}
    for name in CONSTRAINTS & body.keys():
        constraint = None if body[name] is None else _KINDS[name](name, body[name])
        if constraint is not None:
            found[name] = constraint
    if not found:
        return None
    form = body.get("response_format")
    if len(found) > 1 and isinstance(form, dict) and form.get("type") == "json_object" and "schema" not in form:
        del found["response_format"]  # the other field says which schema
    return _only(found[name] for name in sorted(found))


def without_constraints(body: Mapping[str, Any]) -> dict[str, Any]:
    """The other fields."""
    return {name: value for name, value in body.items() if name not in CONSTRAINTS}


def _only(constraints: Iterator[Constraint]) -> Constraint | None:
    found = list(constraints)
    kinds = {(constraint.grammar, json.dumps(constraint.json_schema, sort_keys=True)) for constraint in found}
    if len(kinds) > 1:
        raise ValueError(f"Cannot use both {' and '.join(constraint.name for constraint in found)}")
    return found[0] if found else None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"'{name}': expected a text, found {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names = {
        bool: "true or false",
        dict: "an object",
        list: "a list",
        str: "a text",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")
