"""Grammars from requests: JSON schemas, and limits, so that none can keep the server busy for long."""

from __future__ import annotations

import re
from typing import Any

from ..chat import json_schema_to_grammar
from .errors import invalid

_N_BYTES_MAX = 256 << 10
_N_REPEATED_MAX = 20_000
_N_DEPTH_MAX = 64

_REPEAT = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def schema_to_grammar(schema: Any) -> str:
    """A GBNF grammar of what a JSON schema allows.

    Raises:
        ApiError: it is no schema, or beyond a limit.
    """
    try:
        grammar = json_schema_to_grammar(schema)
    except (ValueError, RecursionError) as e:
        raise invalid(f'"json_schema": {e}') from None
    check_grammar(grammar)
    return grammar


def check_grammar(grammar: str) -> None:
    """Raise ApiError for a grammar that llama.cpp would take too long over: it unrolls repetitions."""
    if len(grammar) > _N_BYTES_MAX:
        raise invalid(f"the grammar has {len(grammar)} characters, {_N_BYTES_MAX} are allowed")
    n = 0
    for low, high in _REPEAT.findall(grammar):
        n += int((high or low or "0")[:9])
        if n > _N_REPEATED_MAX:
            raise invalid(f"the grammar's repetitions are more than {_N_REPEATED_MAX} altogether")
    if _nesting(grammar) > _N_DEPTH_MAX:
        raise invalid(f"the grammar's groups are more than {_N_DEPTH_MAX} levels deep")


def _nesting(grammar: str) -> int:
    """How deep groups stand in each other; those in strings count too, which harms nobody."""
    depth = deepest = 0
    for char in grammar:
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth = max(0, depth - 1)
    return deepest
