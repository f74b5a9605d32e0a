"""`create_completion(suffix=)` makes the prompt for the text between two others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from fim_tokens import MID, PRE, SUF, with_fim_tokens
from llama_cpp_eagle3 import Eagle3Llama
from loading import load
from tiny import BOS

OPTIONS = {"max_tokens": 8, "temperature": 0.0}


@pytest.fixture(params=[False, True], ids=["psm", "spm"])
def llm(request: pytest.FixtureRequest, tiny_target: Any) -> Iterator[Eagle3Llama]:
    with closing(load(with_fim_tokens(tiny_target), spm_infill=request.param)) as llm:
        yield llm


def expected_prompt(llm: Eagle3Llama) -> list[int]:
    """Return the prompt by the names of its tokens."""
    parts = [f"{PRE}the ", f"{SUF} end"]
    text = BOS + "".join(reversed(parts) if llm.spm_infill else parts) + MID
    return llm.tokenize(text.encode(), add_bos=False, special=True)


def test_prompt(llm: Eagle3Llama) -> None:
    tokens = expected_prompt(llm)
    answer = llm.create_completion("the ", suffix=" end", **OPTIONS)
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    assert llm.input_ids[: len(tokens)].tolist() == tokens
    text = answer["choices"][0]["text"]
    assert text == llm.create_completion(tokens, **OPTIONS)["choices"][0]["text"]
    assert llm.create_completion("the ", " end", **OPTIONS)["choices"][0]["text"] == text
    assert llm("the ", suffix=" end", **OPTIONS)["choices"][0]["text"] == text
    before = llm.tokenize(b"the ", add_bos=True)
    assert llm.create_completion(before, suffix=" end", **OPTIONS)["choices"][0]["text"] == text
    stream = llm.create_completion("the ", suffix=" end", stream=True, **OPTIONS)
    assert "".join(chunk["choices"][0]["text"] for chunk in stream) == text


def test_an_empty_suffix_asks_for_the_end(llm: Eagle3Llama) -> None:
    tokens = llm.tokenize(f"{PRE}the ".encode(), add_bos=False, special=True)
    (suffix,) = llm.tokenize(SUF.encode(), add_bos=False, special=True)
    expected = [suffix, *tokens] if llm.spm_infill else [*tokens, suffix]
    llm.create_completion("the ", suffix="", **OPTIONS)
    assert llm.input_ids[1 : 1 + len(expected)].tolist() == expected


def test_names_of_tokens_in_a_text_are_text(llm: Eagle3Llama) -> None:
    answer = llm.create_completion(f"a{MID}b", suffix=SUF, **OPTIONS)
    (middle,) = llm.tokenize(MID.encode(), add_bos=False, special=True)
    n_prompt = answer["usage"]["prompt_tokens"]
    assert llm.input_ids[:n_prompt].tolist().count(middle) == 1


def test_echo_is_refused(llm: Eagle3Llama) -> None:
    with pytest.raises(ValueError, match="echo=True and a suffix exclude each other"):
        llm.create_completion("the ", suffix=" end", echo=True, **OPTIONS)


def test_a_model_without_such_tokens(tiny_target: Any) -> None:
    path = with_fim_tokens(tiny_target, ("pre", "suf"))
    with (
        closing(load(path)) as llm,
        pytest.raises(ValueError, match=r"suffix: '.*' cannot fill in, it has no token for middle"),
    ):
        llm.create_completion("the ", suffix=" end", **OPTIONS)
