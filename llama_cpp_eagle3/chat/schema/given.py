"""Grammars that a request writes itself, as regular expressions or in Lark: errors name the field that has them."""

from __future__ import annotations

from functools import lru_cache

from .form import Form
from .gbnf import Rules
from .lark_grammar import lark_grammar
from .pattern import PatternError, parse
from .pattern_grammar import pattern_grammar
from .work import SchemaError


@lru_cache(maxsize=32)  # an agent sends the same tools with each request
def given_grammar(field: str, syntax: str, text: str, form: Form) -> str:
    """The GBNF of a grammar's texts.

    Args:
        field: The request's field that has it.
        syntax: regex, which must match a whole text, or lark.
        text: The grammar.
        form: In which its texts are written, without the quotes.

    Raises:
        ValueError: no grammar can be made of it; the message names the field, and the line of a grammar in Lark.
    """
    rules = Rules()
    root = rules.name("root")
    try:
        if syntax == "regex":
            body = pattern_grammar(rules, parse(text, rules.work, whole=True), form)
        else:
            body = lark_grammar(rules, text, form)
        rules.set(root, body)
    except (PatternError, SchemaError) as e:
        why = "the regular expression cannot be a grammar: " if syntax == "regex" else ""
        raise ValueError(f"'{field}': {why}{e}") from None
    return rules.text()
