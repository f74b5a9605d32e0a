"""Check whether a grammar lets a text through, by giving each of its tokens to llama.cpp's own sampler."""

from __future__ import annotations

import ctypes

import llama_cpp.llama_cpp as lib

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import GrammarLookahead, TokenTree, grammar_sampler


def accepts(llm: Eagle3Llama, grammar: str, text: str, root: str = "root") -> bool:
    """Whether the grammar accepts the text, and its end after it."""
    vocab = ctypes.cast(lib.llama_model_get_vocab(llm.model), ctypes.c_void_p).value
    assert vocab is not None
    sampler = grammar_sampler(TokenTree(vocab), grammar, root)
    try:
        lookahead = GrammarLookahead(sampler, redraws=False)
        tokens = [*llm.tokenize(text.encode(), add_bos=False, special=False), llm.token_eos()]
        return all(lookahead.allowed(tokens[:i], [token])[0] for i, token in enumerate(tokens))
    finally:
        lib.llama_sampler_free(ctypes.cast(sampler, lib.llama_sampler_p_ctypes))
