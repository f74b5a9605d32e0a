"""JSON schemas as grammars."""

from __future__ import annotations

import json
from typing import Any

from .. import _chat
from .limits import check_schema


def json_schema_to_grammar(schema: Any) -> str:
    """Return GBNF of what a JSON schema allows, as llama-server writes it; {} allows any object.

    Raises:
        ValueError: the schema uses what llama.cpp cannot express, or is beyond a limit (`limits`).
    """
    check_schema(schema)
    if schema == {}:
        schema = {"type": "object"}
    return _chat.json_schema_to_grammar(json.dumps(schema, ensure_ascii=False, allow_nan=False))
