"""Grammars as text: of JSON schemas, and those of llama_cpp."""

from __future__ import annotations

from typing import Any

from llama_cpp import LlamaGrammar

from .. import _chat
from .limits import check_schema, to_json


def json_schema_to_grammar(schema: Any) -> str:
    """Return GBNF of what a JSON schema allows, as llama-server writes it; {} allows any object.

    Raises:
        ValueError: the schema uses what llama.cpp cannot express, or is beyond a limit (`limits`).
    """
    text = to_json({"type": "object"} if schema == {} else schema)
    check_schema(schema)
    return _chat.json_schema_to_grammar(text)


def grammar_text(grammar: LlamaGrammar) -> tuple[str, str]:
    """GBNF of a grammar, and the rule that it begins with; llama_cpp has no public names for them."""
    return grammar._grammar, grammar._root
