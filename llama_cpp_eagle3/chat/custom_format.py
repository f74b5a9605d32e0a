"""The format of a custom tool's input, which is one text, as the schema of a function's argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .schema import given_grammar
from .schema.form import JSON
from .schema.keywords import LARK

_FIELDS = ("syntax", "definition")


def input_schema(form: Any) -> tuple[dict[str, Any], str]:
    """The schema of a text in a custom tool's `format`, and what the tool's description has to say about it.

    form: OpenAI's, as Responses have it, or with its grammar in an object of that name, as Chat Completions have it.

    Raises:
        ValueError: it is no format, or a grammar of it cannot be held; the message names the field, and the line.
    """
    if not form:
        return {"type": "string"}, ""
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind not in ("text", "grammar"):
        raise ValueError("expected 'format' of a custom tool to be of type text or grammar")
    if kind == "text":
        return {"type": "string"}, ""
    grammar = form.get("grammar", form)
    syntax, definition = (grammar.get(name) if isinstance(grammar, Mapping) else None for name in _FIELDS)
    if syntax not in ("regex", "lark") or not isinstance(definition, str):
        raise ValueError("expected a grammar of a custom tool to have 'syntax', lark or regex, and 'definition'")
    given_grammar("format.definition", syntax, definition, JSON)
    keyword = {LARK: definition} if syntax == "lark" else {"pattern": f"^(?:{definition})$"}
    return {"type": "string", **keyword}, f"The input must match this grammar ({syntax}):\n{definition}"
