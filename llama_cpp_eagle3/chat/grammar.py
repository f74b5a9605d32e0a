"""Grammars of llama_cpp as text."""

from __future__ import annotations

from llama_cpp import LlamaGrammar


def grammar_text(grammar: LlamaGrammar) -> tuple[str, str]:
    """GBNF of a grammar, and the rule that it begins with; llama_cpp has no public names for them."""
    return grammar._grammar, grammar._root
