"""Tokens of a text that is sent in parts, of which some of the tokens are left out."""

from __future__ import annotations

import random

import pytest

from llama_cpp_eagle3.chat.sent_tokens import SentToken, SentTokens
from llama_cpp_eagle3.engine import TokenLogprob


def tokens_of(*pieces: str) -> list[SentToken]:
    return [SentToken(piece.encode(), TokenLogprob(i, -1.0 - i, {i: -1.0 - i})) for i, piece in enumerate(pieces)]


def test_what_is_left_out_is_not_sent() -> None:
    sent = SentTokens()
    sent.add(tokens_of("```", "json\n", "{", '"a"', "}\n", "```"))
    first, last = sent.take('{"a"'), sent.take("}")
    assert [token.piece for token in first + last] == [b"{", b'"a"', b"}"]
    assert [token.logprob.token for token in first + last] == [2, 3, 4]
    assert sent.take("\n")[0].piece == b"\n"


def test_a_token_in_two_parts_counts_once() -> None:
    sent = SentTokens()
    sent.add(tokens_of("ab", "cd"))
    parts = [*sent.take("a"), *sent.take("bcd")]
    assert [(token.piece, token.logprob.logprob) for token in parts] == [(b"a", -1.0), (b"b", 0.0), (b"cd", -2.0)]


def test_a_text_that_goes_on_begins_with_what_waits() -> None:
    sent = SentTokens()
    sent.add(tokens_of("a", "a"))
    assert [token.logprob.token for token in (*sent.take("a"), *sent.take("a"))] == [0, 1]


def test_a_text_that_was_changed_has_all_tokens() -> None:
    sent = SentTokens()
    sent.add(tokens_of("a", "b"))
    assert [token.piece for token in sent.take("x")] == [b"a", b"b"]
    assert not sent.take("a")


@pytest.mark.parametrize("seed", range(50))
def test_parts_of_any_length(seed: int) -> None:
    """Joined, the tokens are the text, also where characters have several tokens."""
    rng = random.Random(seed)
    text = "".join(rng.choices("ab é\U0001f600\n", k=30))
    data, tokens = text.encode(), []
    while data:
        n = rng.randint(1, 3)
        tokens.append(SentToken(data[:n], TokenLogprob(len(tokens), -1.0, {})))
        data = data[n:]
    sent, found, at = SentTokens(), [], 0
    sent.add(tokens)
    while at < len(text):
        n = rng.randint(1, 5)
        found += sent.take(text[at : at + n])
        at += n
    assert b"".join(token.piece for token in found) == text.encode()
    assert sum(token.logprob.logprob for token in found) == -len(tokens)
