"""A grammar's states are found once and shared: what they allow is what llama.cpp allows, in bounded memory."""

from __future__ import annotations

import ctypes
import random
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
import pytest

import utf8_texts
from grammar_texts import GrammarTexts
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import GrammarLookahead, TokenTree, grammar_sampler
from llama_cpp_eagle3.chat import json_schema_to_grammar
from llama_cpp_eagle3.models import bundled_pair
from loading import load
from random_schemas import document

pytestmark = pytest.mark.usefixtures("no_clock")


def n_bytes() -> int:
    """The memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture(scope="module")
def llm() -> Iterator[Eagle3Llama]:
    with load(bundled_pair()[0], n_ctx=64) as llm:
        yield llm


class Sampler:
    """A grammar's sampler, which is asked about tokens."""

    def __init__(self, address: Any, n_vocab: int):
        self.address, self._n_vocab = address, n_vocab
        self.pointer = ctypes.cast(address, lib.llama_sampler_p_ctypes)

    def allowed(self) -> npt.NDArray[np.int64]:
        """The tokens of the vocabulary that may come."""
        tokens = np.zeros(self._n_vocab, dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
        tokens["id"] = np.arange(self._n_vocab)
        data = tokens.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        array = lib.llama_token_data_array(data, self._n_vocab, -1, False)
        lib.llama_sampler_apply(self.pointer, ctypes.byref(array))
        return np.flatnonzero(tokens["logit"] == 0.0)

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self.pointer, token)

    def __del__(self) -> None:
        lib.llama_sampler_free(self.pointer)


def samplers(llm: Eagle3Llama, grammar: str) -> tuple[Sampler, Sampler]:
    """Return ours and llama.cpp's."""
    theirs = lib.llama_sampler_init_grammar(lib.llama_model_get_vocab(llm.model), grammar.encode(), b"root")
    ours = grammar_sampler(llm.engine.vocab.token_tree(), grammar)
    return Sampler(ours, llm.n_vocab()), Sampler(theirs, llm.n_vocab())


GRAMMARS = (
    r'root ::= "\"" [^"\\\x7F\x00-\x1F]* "\""',
    r'root ::= "\"" [^"\\\x7F\x00-\x1F]{2,20} "\""',
    r'root ::= ([^"\\] | "\\" ["nu])* "x"',
    r"root ::= [^z]* [^é]* [€-\U0001F600]+",
    r"root ::= [à-ü]{1,4} | [一-龥]+ | .",
    'root ::= "a"* ("ab" | "abc" | "abcd")+ [^\\n]*',
)


@pytest.mark.parametrize("seed", range(16))
def test_what_is_allowed_is_llama_cpps(llm: Eagle3Llama, seed: int) -> None:
    """Of the whole vocabulary, along texts that a grammar allows: half of them its own, half of random tokens."""
    dice = random.Random(seed)
    grammar = GRAMMARS[seed] if seed < len(GRAMMARS) else json_schema_to_grammar(document(dice))
    ours, theirs = samplers(llm, grammar)
    text = llm.tokenize(GrammarTexts(grammar).write(dice, 40).encode(), add_bos=False) if seed % 2 else []
    vocab = lib.llama_model_get_vocab(llm.model)
    before = b""
    for i in range(40):
        allowed = theirs.allowed()
        allowed = allowed[utf8_texts.that_go_on(before, [llm.detokenize([token]) for token in allowed.tolist()])]
        np.testing.assert_array_equal(ours.allowed(), allowed)
        choices = [token for token in allowed.tolist() if not lib.llama_vocab_is_eog(vocab, token)]
        if not choices:
            break
        token = text[i] if i < len(text) and text[i] in choices else dice.choice(choices)
        before += llm.detokenize([token])
        ours.accept(token)
        theirs.accept(token)


def test_a_text_is_utf_8(llm: Eagle3Llama) -> None:
    """llama.cpp takes E0 90 B8 for D0 B8 where another text may begin with E0: the answer lacked this character."""
    tokens = {llm.detokenize([token]): token for token in range(llm.n_vocab())}
    for grammar, first, wrong, right in (
        ('root ::= "नाम" | "имя"', b"\xe0", b"\x90", b"\xa4"),
        ("root ::= [^a]", b"\xed", b"\xa0", b"\x9f"),
        ("root ::= [^a]", b"\xf0", b"\x80", b"\x90"),
        ("root ::= [^a]", b"\xf4", b"\x90", b"\x8f"),
        ("root ::= [^a]", b"", b"\xf5", b"\xf4"),
    ):
        ours, _ = samplers(llm, grammar)
        if first:
            ours.accept(tokens[first])
        allowed = set(ours.allowed().tolist())
        assert tokens[right] in allowed
        assert tokens[wrong] not in allowed


def test_states_are_forgotten(llm: Eagle3Llama) -> None:
    """A text that is nested ever deeper has ever more and larger states; what they allow stays right."""
    ours, theirs = samplers(llm, 'root ::= "[" root? "]" | [a-c]+')
    vocab = lib.llama_model_get_vocab(llm.model)
    (opening,) = llm.tokenize(b"[", add_bos=False)[-1:]
    before = n_bytes()
    for i in range(3000):
        ours.accept(opening)
        theirs.accept(opening)
        if i % 500 == 499:
            np.testing.assert_array_equal(ours.allowed(), theirs.allowed())
    assert n_bytes() - before < 60 << 20
    dice = random.Random(3)
    for _ in range(50):
        allowed = ours.allowed()
        np.testing.assert_array_equal(allowed, theirs.allowed())
        token = dice.choice([token for token in allowed.tolist() if not lib.llama_vocab_is_eog(vocab, token)])
        ours.accept(token)
        theirs.accept(token)


def test_many_schemas_leave_nothing_behind(llm: Eagle3Llama) -> None:
    """1,000 different ones, each asked about the whole vocabulary and about a draft."""
    tree = llm.engine.vocab.token_tree()

    def use(i: int) -> None:
        schema = {"type": "object", "properties": {f"name_{i}": {"enum": [f"x{i}", i]}}, "required": [f"name_{i}"]}
        sampler = Sampler(grammar_sampler(tree, json_schema_to_grammar(schema)), llm.n_vocab())
        text = llm.tokenize(f'{{"name_{i}": '.encode(), add_bos=False)
        assert all(GrammarLookahead(sampler.address, redraws=True).allowed(text[:n], [text[n]])[0] for n in range(3))
        for token in text:
            sampler.accept(token)
        assert len(sampler.allowed())

    for i in range(200):
        use(i)
    before = n_bytes()
    for i in range(200, 1000):
        use(i)
    assert n_bytes() - before < 4 << 20


def test_grammars_of_several_threads_share_the_tokens(llm: Eagle3Llama) -> None:
    """Each request is prepared in a thread of its own, and reads the same tree."""
    tree = TokenTree(ctypes.cast(lib.llama_model_get_vocab(llm.model), ctypes.c_void_p).value or 0)
    grammar = r'root ::= "{" [a-z]+ ":" [0-9]+ "}"'
    expected = samplers(llm, grammar)[1].allowed().tolist()
    found: list[list[int]] = []

    def ask() -> None:
        for _ in range(5):
            found.append(Sampler(grammar_sampler(tree, grammar), llm.n_vocab()).allowed().tolist())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20
