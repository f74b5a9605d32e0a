"""What a grammar forces is a draft: it is found and spelled rightly, and texts are those without drafts."""

from __future__ import annotations

import ctypes
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from grammar_texts import GrammarTexts
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import GrammarDrafter, TokenTree, grammar_sampler, sampler_accept, token_to_piece
from llama_cpp_eagle3.chat import json_schema_to_grammar
from llama_cpp_eagle3.engine import SAMPLERS, Sampling
from llama_cpp_eagle3.engine import Sequence as Text
from llama_cpp_eagle3.models import bundled_pair
from loading import cheap_rows, finish, load
from random_schemas import document

pytestmark = pytest.mark.usefixtures("no_clock")

ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "product_name": {"type": "string"},
        "price_in_cents": {"type": "integer"},
        "state": {"enum": ["available", "sold out"]},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "maker": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "is_open": {"type": "boolean"}},
            "required": ["name", "is_open"],
        },
    },
    "required": ["product_name", "price_in_cents", "state", "sizes", "maker"],
}
ORDER = {
    "type": "object",
    "properties": {"customer": {"type": "string"}, "items": {"type": "array", "items": ITEM}},
    "required": ["customer", "items"],
}
ANSWER = {
    "customer": "Jane",
    "items": [
        {
            "product_name": name,
            "price_in_cents": price,
            "state": "sold out",
            "sizes": [1, 2],
            "maker": {"name": "Mill", "is_open": True},
        }
        for name, price in (("shoe", 1999), ("hat", 5), ("belt", 720))
    ],
}
STYLES: dict[str, dict[str, Any]] = {
    "one line": {},
    "dense": {"separators": (",", ":")},
    "two": {"indent": 2},
    "four": {"indent": 4},
}


class Oracle:
    """llama.cpp's own grammar, which is asked about every token of the vocabulary."""

    def __init__(self, llm: Eagle3Llama, grammar: str):
        self.vocab = lib.llama_model_get_vocab(llm.model)
        self.address = ctypes.cast(self.vocab, ctypes.c_void_p).value
        self.pieces = [token_to_piece(self.address, token, True) for token in range(llm.n_vocab())]
        self.sampler = lib.llama_sampler_init_grammar(self.vocab, grammar.encode(), b"root")
        self.logits = np.zeros(len(self.pieces), dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])

    def allowed(self) -> list[int]:
        self.logits["id"], self.logits["logit"] = np.arange(len(self.pieces)), 0.0
        data = self.logits.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        array = lib.llama_token_data_array(data, len(self.pieces), -1, False)
        lib.llama_sampler_apply(self.sampler, ctypes.byref(array))
        return [int(token) for token in np.flatnonzero(self.logits["logit"] > -1e30)]

    def allows(self, tokens: list[int]) -> bool:
        """Whether the tokens may come, one after the other."""
        sampler = lib.llama_sampler_clone(self.sampler)
        try:
            for token in tokens:
                data = (lib.llama_token_data * 1)((token, 0.0, 0.0))
                array = lib.llama_token_data_array(data, 1, -1, False)
                lib.llama_sampler_apply(sampler, ctypes.byref(array))
                if data[0].logit < -1e30:
                    return False
                lib.llama_sampler_accept(sampler, token)
            return True
        finally:
            lib.llama_sampler_free(sampler)

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self.sampler, token)

    def __del__(self) -> None:
        lib.llama_sampler_free(self.sampler)


class Followed:
    """A drafter beside a text that is known."""

    def __init__(self, llm: Eagle3Llama, grammar: str):
        vocab = ctypes.cast(lib.llama_model_get_vocab(llm.model), ctypes.c_void_p).value
        self.sampler = grammar_sampler(TokenTree(vocab), grammar)
        self.drafter = GrammarDrafter(vocab, self.sampler)

    def read(self, tokens: list[int]) -> None:
        for token in tokens:
            sampler_accept(self.sampler, token)
        self.drafter.read(tokens)

    def __del__(self) -> None:
        lib.llama_sampler_free(ctypes.cast(self.sampler, lib.llama_sampler_p_ctypes))


def steps(llm: Eagle3Llama, grammar: str, text: str) -> tuple[int, int, int]:
    """Return the tokens of a text, its steps if only what is forced is drafted, and the tokens drafted in vain."""
    tokens = llm.tokenize(text.encode(), add_bos=False)
    followed = Followed(llm, grammar)
    at = n_steps = n_wrong = 0
    while at < len(tokens):
        drafted = [token for token, _ in followed.drafter.propose(64)]
        n = 0
        while n < len(drafted) and tokens[at + n : at + n + 1] == [drafted[n]]:
            n += 1
        n_wrong += len(drafted) - n
        n_steps += 1
        followed.read(tokens[at : at + n + 1])
        at += n + 1
    return len(tokens), n_steps, n_wrong


@pytest.fixture(scope="module")
def llm() -> Iterator[Eagle3Llama]:
    with load(bundled_pair()[0], n_ctx=64) as llm:
        yield llm


@pytest.mark.parametrize("seed", range(12))
def test_what_is_forced(llm: Eagle3Llama, seed: int) -> None:
    """By brute force: the grammar allows no token that does not agree with forced text, and where nothing is, several.

    What is guessed is allowed too, and the draft is that text as the tokenizer spells it.
    """
    dice = random.Random(seed)
    grammar = json_schema_to_grammar(document(dice) if seed else ORDER)
    tokens = llm.tokenize(GrammarTexts(grammar).write(dice, 40).encode(), add_bos=False)[:50]
    oracle, followed = Oracle(llm, grammar), Followed(llm, grammar)
    for i in range(len(tokens) + 1):
        text, p = followed.drafter.forced()
        n_sure = next((k for k, x in enumerate(p) if x < 1.0), len(p))
        sure, allowed = text[:n_sure], oracle.allowed()
        ends = any(lib.llama_vocab_is_eog(oracle.vocab, token) for token in allowed)
        pieces = [piece for token in allowed if (piece := oracle.pieces[token])]
        if sure:
            assert not ends
            assert all(piece.startswith(sure) or sure.startswith(piece) for piece in pieces)
        elif text:
            assert {piece[:1].isspace() for piece in pieces} == {True, False}
        elif not ends and not any(b"\x80" <= piece[:1] < b"\xc0" for piece in pieces):  # after a whole character
            assert len({piece[:1] for piece in pieces}) > 1
        drafted = [token for token, _ in followed.drafter.propose(64)]
        assert oracle.allows(drafted)
        if drafted and lib.llama_vocab_is_eog(oracle.vocab, drafted[-1]):  # the text's end, after all of it
            assert b"".join(oracle.pieces[token] for token in drafted[:-1]) == text
        else:
            assert text.startswith(b"".join(oracle.pieces[token] for token in drafted))
        if i < len(tokens):
            oracle.accept(tokens[i])
            followed.read(tokens[i : i + 1])


@pytest.mark.parametrize("style", STYLES)
def test_white_space_is_the_answers_own(llm: Eagle3Llama, style: str) -> None:
    """Most of an answer is drafted, whatever its style is, and hardly anything in vain."""
    n_tokens, n_steps, n_wrong = steps(llm, json_schema_to_grammar(ORDER), json.dumps(ANSWER, **STYLES[style]))
    assert n_tokens / n_steps > 2.5
    assert n_wrong < 0.1 * n_tokens


SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "samplers": SAMPLERS},
    {"temperature": 0.8, "rng": "llama", "samplers": SAMPLERS},
)
WAYS: dict[str, dict[str, Any]] = {
    "alone": {"draft": "auto", "draft_sources": ("grammar",)},
    "unmeasured": {"draft": "auto", "draft_sources": ("grammar",)},
    "text": {"draft": "auto", "draft_sources": ("ngram", "grammar"), "n_parallel": 3},
    "head": {"draft": "auto", "n_parallel": 3, "kv_unified": True},
    "chain": {"draft_n_max": 4},
    "tree": {"draft": "tree", "draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6, "n_parallel": 2},
}


def texts(llm: Eagle3Llama, grammar: str, options: dict[str, Any]) -> list[Text]:
    """Return three texts of a grammar."""
    found = [
        llm.engine.add([1, 2, 3 + seed], Sampling(grammar=grammar, seed=seed, **options), max_tokens=48)
        for seed in range(3)
    ]
    finish(llm)
    assert [text.result.error for text in found] == [None] * 3
    return found


@pytest.fixture(scope="module")
def plain(tiny_target: Any) -> Iterator[Eagle3Llama]:
    with load(tiny_target, cpu_kernels="on") as llm:
        yield llm


@pytest.mark.parametrize("way", WAYS)
def test_texts_are_those_without_drafts(way: str, tiny_target: Any, tiny_head: Any, plain: Eagle3Llama) -> None:
    """Of random schemas, by a random model: of each sequence, sampled or greedy, in chains and trees."""
    grammars = [json_schema_to_grammar(ORDER)] + [json_schema_to_grammar(document(random.Random(i))) for i in range(4)]
    with load(
        tiny_target, tiny_head if way in ("head", "chain", "tree") else None, cpu_kernels="on", **WAYS[way]
    ) as llm:
        if WAYS[way].get("draft") == "auto" and way != "unmeasured":
            cheap_rows(llm)
        n_drafted = n_accepted = 0
        for grammar in grammars:
            for options in SAMPLINGS:
                expected = [text.generated for text in texts(plain, grammar, options)]
                drafted = texts(llm, grammar, options)
                assert [text.generated for text in drafted] == expected
                of_grammar = [text.result.stats.of("grammar") for text in drafted]
                n_drafted += sum(x.drafted for x in of_grammar)
                n_accepted += sum(x.accepted for x in of_grammar)
        assert n_drafted >= n_accepted > 0


def test_switched_off(tiny_target: Any) -> None:
    """Without its name among the sources nothing is forced, nor with drafting switched off."""
    grammar = 'root ::= "a long text that is forced" [a-z]+'
    for options in ({"draft_sources": ("ngram",)}, {"draft_n_max": 0}, {"draft_sources": ()}):
        with load(tiny_target, **{"draft_sources": None, **options}) as llm:
            assert all("grammar" not in text.result.stats.by_source for text in texts(llm, grammar, {}))


@pytest.mark.parametrize("samplers", [None, SAMPLERS])
@pytest.mark.parametrize("is_lazy", [False, True])
def test_forced_text_takes_few_steps(samplers: Any, is_lazy: bool, tiny_target: Any) -> None:
    """All of it is one draft, as far as a pass has rows; a lazy grammar forces nothing before it is triggered."""
    grammar = 'root ::= "<call>" "the name of a tool" [0-9] "and its end"'
    lazy = {"grammar_lazy": True, "grammar_triggers": [r"[^<]*(<)[\s\S]*"]} if is_lazy else {}
    with load(tiny_target, draft="auto", draft_sources=("grammar",)) as llm:
        cheap_rows(llm)
        (opening,) = llm.tokenize(b"<", add_bos=False)[-1:]
        options = {"temperature": 0.0, "samplers": samplers, "logit_bias": {opening: 50.0}, **lazy}
        text = llm.engine.add([1, 2, 3], Sampling(grammar=grammar, **options), max_tokens=60)
        finish(llm)
        assert re.fullmatch(rb"<call>the name of a tool\dand its end", llm.detokenize(text.generated))
        stats = text.result.stats
        assert stats.of("grammar").accepted > 0.7 * stats.tokens  # a random model spells some of it in another way
