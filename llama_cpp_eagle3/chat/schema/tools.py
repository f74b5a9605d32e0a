"""The rules of schemas that llama.cpp's chat code leaves open in the grammars of a conversation's answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from ..tool_fields import Tool, name_of, parameters_of, properties_of
from .converter import Converter, Loosened, SchemaGrammar, at_most
from .core import ANY, Core, key_of
from .form import GEMMA4, JSON
from .gbnf import JSON_RULES, Rules
from .keywords import LARK
from .reader import Reader
from .work import Work

_TOOL = "tool-"
_GEMMA4 = "gemma4-"
OpenSchema = tuple[str, str, str, str]
"""(rule, name that the chat code gave it, document, JSON pointer)."""


def complete(
    grammar: str,
    open_schemas: Sequence[OpenSchema],
    tools: Sequence[Mapping[str, Any]],
    changed: Sequence[Mapping[str, Any]] = (),
) -> SchemaGrammar:
    """Write the rules that a grammar lacks.

    open_schemas: as `_chat.Templates.apply` returns them. tools: the request's; a schema that cannot be enforced is
    loosened only for its tool. changed: tools that the chat code got with plainer schemas than those of `as_shown`.
    """
    names = tuple(map(name_of, changed))
    return _complete(grammar, tuple((a, b, c, d) for a, b, c, d in open_schemas), json.dumps(tools), names)


def as_shown(tool: Tool) -> Tool:
    """A tool as the chat code gets it: without grammars in Lark that its description has already."""
    properties = properties_of(tool)
    if not properties:
        return tool
    function, parameters = tool["function"], parameters_of(tool)
    text = str(function.get("description"))
    plain = {
        name: {key: value for key, value in schema.items() if key != LARK or str(value).strip() not in text}
        if isinstance(schema, Mapping)
        else schema
        for name, schema in properties.items()
    }
    if plain == properties:
        return tool
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": plain}}}


@lru_cache(maxsize=8)  # an agent sends the same tools with each request
def _complete(
    grammar: str, open_schemas: tuple[OpenSchema, ...], tools_text: str, changed: tuple[str, ...]
) -> SchemaGrammar:
    tools = json.loads(tools_text)
    form = GEMMA4 if any(name.startswith(_GEMMA4) for _, name, *_ in open_schemas) else JSON
    rules = Rules({*Rules.names_in(grammar), *(rule for rule, *_ in open_schemas)}, values=form.rules or JSON_RULES)
    converters: dict[tuple[str, str], Converter] = {}
    documents: dict[str, tuple[Any, str]] = {}
    other = [tool for tool in tools if as_shown(tool) is not tool or name_of(tool) in changed]
    own = {name_of(tool): parameters_of(tool) for tool in reversed(other)}
    keys = {name_of(tool): key_of(parameters_of(as_shown(tool)) or {}) for tool in tools}
    held: dict[str, list[str]] = {name: [] for name in keys}
    for rule, given_name, text, pointer in open_schemas:
        name = given_name.removeprefix(_GEMMA4)
        if text not in documents:
            documents[text] = json.loads(text), key_of(json.loads(text))
        document, key = documents[text]
        tool = _tool(name, key, keys)
        if (text, tool) not in converters:
            converters[text, tool] = Converter(own.get(tool, document), rules, tool, form)
        converter = converters[text, tool]
        held.setdefault(tool, []).append(pointer)
        rules.set(rule, converter.rule(name, pointer))
    loosened = [item for converter in converters.values() for item in converter.loosened]
    loosened += [
        Loosened(name, "", "the chat template cannot show its schema, and shows a plain one") for name in changed
    ]
    for given in tools:
        loosened += _not_held(given, held[name_of(given)], rules.work)
    return SchemaGrammar(grammar + rules.text(), at_most(loosened))


def arguments_grammar(tool: Mapping[str, Any]) -> SchemaGrammar:
    """The grammar of one tool's arguments: an object."""
    rules = Rules()
    converter = Converter(parameters_of(tool) or {"type": "object"}, rules, name_of(tool))
    root = rules.name("root")
    rules.set(root, converter.rule("arguments", ""))
    return SchemaGrammar(rules.text(), at_most(converter.loosened))


def _tool(name: str, key: str, keys: Mapping[str, str]) -> str:
    """Which tool a schema belongs to: llama.cpp names them tool-NAME-...; empty: none.

    key: the schema's. keys: those of the tools' schemas, by their names.
    """
    dashes = (found.start() for found in re.finditer("-", name))
    named = [tool for end in dashes if (tool := name[len(_TOOL) : end]) in keys and name.startswith(_TOOL)]
    exact = [tool for tool in named if keys[tool] == key]
    return max(exact or named, key=len, default="")


def _not_held(tool: Mapping[str, Any], pointers: Sequence[str], work: Work) -> list[Loosened]:
    """Properties that the model's format for calls takes as text, so that no grammar enforces their schemas."""
    properties = properties_of(tool)
    if properties is None or "" in pointers:
        return []
    reader = Reader(parameters_of(tool), work)
    places = {place for pointer in pointers for place in _places(pointer)}
    found = []
    for name, schema in properties.items():
        if name.replace("~", "~0").replace("/", "~1") in places:
            continue
        cores = reader.cores((schema,), lambda _: None)
        if cores not in ([ANY], [Core(types=frozenset({"string"}))]):
            found.append(Loosened(name_of(tool), name, "the format of the model's tool calls holds it to no schema"))
    return found


def _places(pointer: str) -> list[str]:
    """The names in a pointer that are those of properties."""
    parts = pointer.split("/")
    return [name for key, name in pairwise(parts) if key == "properties"]
