"""How values are written: as JSON, as plain text, or as Gemma 4 writes the arguments of its calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .code_points import complement, union
from .gbnf import JSON_RULES, Ranges

CONTROLS: Ranges = ((0, 0x1F), (0x7F, 0x7F))
_TEXT_CONTROLS: Ranges = ((0, 8), (11, 12), (14, 0x1F), (0x7F, 0x7F))
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """One way to write values."""

    raw: Ranges
    """Characters that stand for themselves in a text."""
    quote: str = ""
    """What is before and after a text."""
    has_escapes: bool = False
    """Whether other characters have JSON's escapes; else they are left out."""
    rules: Mapping[str, str] | None = None
    """GBNF of values of each type, and of their parts."""
    colon: str = ""
    """GBNF between a name and its value."""
    names: Form | None = None
    """That of properties' names, if it is another one."""
    key: Callable[[str], str | None] = str
    """Returns a property's name as it is written; None: it cannot be."""
    text: Callable[[Any], str] = str
    """Returns a value as it is written."""


def json_text(value: Any) -> str:
    """A value as JSON in the form that answers have."""
    return _ENCODER.encode(value)


_NOT_IN_KEYS = ':}{,<"'


def _gemma4_key(name: str) -> str | None:
    return name if name and name == name.strip() and name.isprintable() else None


def _gemma4_text(value: Any) -> str:
    if isinstance(value, str):
        return f"{_GEMMA4_QUOTE}{value}{_GEMMA4_QUOTE}"
    if isinstance(value, list):
        return f"[{','.join(map(_gemma4_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_gemma4_text(item)}" for name, item in value.items()) + "}"
    return json_text(value)


_GEMMA4_QUOTE = '<|"|>'
_GEMMA4_RULES = JSON_RULES | {
    "char": r"[^\x00-\x08\x0B\x0C\x0E-\x1F<\x7F]",
    # a text ends with the first mark: one rule for each character of the mark that has been read
    "string": r'"<|\"|>" text',
    "text": r'"<" textone | [^<] text',
    "textone": r'"|" texttwo | "<" textone | [^<|] text',
    "texttwo": r'"\"" textthree | "<" textone | [^<"] text',
    "textthree": r'"|" textfour | "<" textone | [^<|] text',
    "textfour": r'">" | "<" textone | [^<>] text',
    "name": r'[^\x00-\x20:}{,<"\x7F]{1,64}',
    "object": r'"{" space (name ":" space value ("," space name ":" space value)* space)? "}"',
}
JSON = Form(
    complement(union(CONTROLS, ((0x22, 0x22), (0x5C, 0x5C)))),
    '"',
    has_escapes=True,
    rules=JSON_RULES,
    colon='space ":" space',
    key=json_text,
    text=json_text,
)
TEXT = Form(complement(_TEXT_CONTROLS))
GEMMA4 = Form(
    complement(union(_TEXT_CONTROLS, ((0x3C, 0x3C),))),
    _GEMMA4_QUOTE,
    rules=_GEMMA4_RULES,
    colon='":" space',
    names=Form(complement(union(((0, 0x20), (0x7F, 0x7F)), tuple((ord(c), ord(c)) for c in _NOT_IN_KEYS)))),
    key=_gemma4_key,
    text=_gemma4_text,
)
