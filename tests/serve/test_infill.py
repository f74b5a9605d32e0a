"""Filling in: prompts are llama-server's, for a vocabulary that has the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fim_tokens import MID, NAMES, PRE, REP, SEP, SUF, with_fim_tokens
from serving import Running
from tiny import BOS


@pytest.fixture(scope="module")
def running(tiny_target: Any) -> Iterator[Running]:
    with Running(with_fim_tokens(tiny_target, NAMES), n_batch=128) as running:
        yield running


def body(**more: Any) -> dict[str, Any]:
    return {"input_prefix": "the ", "prompt": "self", "input_suffix": " end", "n_predict": 3, **more}


def test_suffix(running: Running) -> None:
    answer = running.ask("/completion", {"prompt": "the ", "suffix": " end", "n_predict": 1})
    assert answer["prompt"] == f"{BOS}{PRE}the {SUF} end{MID}"


def test_infill(running: Running) -> None:
    project = f"{REP}myproject\n"
    answer = running.ask("/infill", body())
    assert answer["prompt"] == f"{project}{SEP}filename\n{BOS}{PRE}the self{SUF} end{MID}"
    assert answer["tokens_predicted"] == 3
    extra = [{"filename": "a.h", "text": "int"}, {"text": "x"}]
    answer = running.ask("/infill", body(input_extra=extra))
    files = f"{project}{SEP}a.h\nint{SEP}tmp\nx{SEP}filename\n"
    assert answer["prompt"] == f"{files}{BOS}{PRE}the self{SUF} end{MID}"
    assert len(running.stream("/infill", body())) == 4


def test_long_texts_are_cut(running: Running) -> None:
    """The prefix's end gets three quarters of a batch, the suffix's beginning and the prompt a quarter."""
    answer = running.ask("/infill", body(input_prefix="x" * 500 + "y", input_suffix="z" + "w" * 500, prompt="a"))
    assert answer["prompt"].endswith(f"{BOS}{PRE}{'x' * 95}ya{SUF}z{'w' * 28}{MID}")


LONG = "a " * 500_000


@pytest.mark.parametrize(
    ("path", "long"),
    [
        ("/infill", body(prompt=LONG)),
        ("/infill", body(input_prefix=LONG)),
        ("/infill", body(input_suffix=LONG)),
        ("/infill", body(input_extra=[{"text": LONG}])),
        ("/infill", body(input_extra=[{"text": "x", "filename": LONG}])),
        ("/completion", {"prompt": "x", "suffix": LONG}),
    ],
)
def test_texts_that_cannot_fit_are_not_tokenized(
    path: str, long: dict[str, Any], running: Running, tokenized: list[int]
) -> None:
    response = running.post(path, long)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "exceed_context_size_error"
    assert max(tokenized, default=0) < 1000


def test_files_that_are_not_needed_are_not_tokenized(running: Running) -> None:
    """As in llama-server, the ends of the last files stay."""
    files = [{"filename": "far.h", "text": LONG}, *({"filename": f"{i}.h", "text": f"{i} " * 5} for i in range(40))]
    answer = running.ask("/infill", body(input_extra=files))
    assert "39.h" in answer["prompt"]
    assert "far.h" not in answer["prompt"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_prefix": None},
        {"input_suffix": None},
        {"prompt": 5},
        {"input_extra": {}},
        {"input_extra": [{}]},
        {"input_extra": [{"filename": 123, "text": "abc"}]},
        {"input_extra": ["x"]},
        {"input_prefix": {}},
    ],
)
def test_bad_bodies(running: Running, wrong: dict[str, Any]) -> None:
    response = running.post("/infill", body(**wrong))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_other_vocabularies(tiny_target: Any) -> None:
    path = with_fim_tokens(tiny_target, ("pre", "suf", "mid"))
    with Running(path, n_batch=64, options={"spm_infill": True}) as running:
        answer = running.ask("/infill", body(input_extra=[{"text": "x"}]))
        assert answer["prompt"] == f"\n\n--- snippet ---\n\nx{BOS}{SUF} end{PRE}the self{MID}"
    with Running(tiny_target) as running:
        response = running.post("/infill", body())
        assert response.status_code == 501
        assert "prefix, suffix, middle" in response.json()["error"]["message"]
