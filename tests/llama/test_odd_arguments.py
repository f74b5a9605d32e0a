"""Arguments of other types: NumPy's numbers are taken, what has another type is refused by its name."""

from __future__ import annotations

import decimal
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from llama_cpp import LogitsProcessorList

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import DraftSettings, Request, Sampling, Shift
from llama_cpp_eagle3.engine.arguments import as_type
from loading import load, take

NAN, HUGE = math.nan, 10**400
WRONG: dict[Any, list[Any]] = {
    int: [None, True, 1.5, NAN, math.inf, "1", decimal.Decimal(1), [1], np.array(1), b"1"],
    float: [None, True, NAN, np.float32("nan"), HUGE, "0.5", decimal.Decimal(1), 1j],
    bool: [None, 1, "yes", np.array([1, 2])],
    str: [None, b"a", 5, "a\ud800"],
    Sequence[int]: [None, b"abc", "12", {1, 2}, {1: 2}, [1.5], [True], [NAN], ["1"], [[1]], np.array(1)],
    Sequence[str]: ["abc", [b"a"], [None], 5],
    Mapping[int, float]: [[1], {1.5: 1}, {"a": 1}, {1: NAN}, {1: None}],
    Literal["auto", "on"]: ["Auto", None, 1],
    str | os.PathLike[str]: [b"a", "a\0", "a\ud800", 5, None],
    Callable[..., Any] | None: [5, "abs"],
    tuple[str, float]: [("a",), ("a", "b"), "ab"],
}
TAKEN: list[tuple[Any, Any, Any]] = [
    (int, np.int64(3), 3),
    (int, 4.0, 4),
    (float, np.float32(0.5), 0.5),
    (float, 2, 2.0),
    (bool, np.bool_(True), True),
    (Sequence[int], np.array([1, 2]), [1, 2]),
    (Sequence[int], {1: 2, 3: 4}.values(), [2, 4]),
    (Sequence[int], range(3), range(3)),
    (Collection[int], {1}, {1}),
    (list[str], ("a",), ["a"]),
    (tuple[str, ...], ["a"], ("a",)),
    (Mapping[int, float], {"7": 1, np.int32(5): -math.inf}, {7: 1.0, 5: -math.inf}),
    (int | str | None, np.int32(8), 8),
]


@pytest.mark.parametrize("hint", WRONG, ids=str)
def test_other_types_are_refused(hint: Any) -> None:
    for value in WRONG[hint]:
        with pytest.raises(ValueError, match="expected x to be "):
            as_type("x", value, hint)


@pytest.mark.parametrize(("hint", "value", "expected"), TAKEN, ids=str)
def test_equal_values_are_taken(hint: Any, value: Any, expected: Any) -> None:
    found = as_type("x", value, hint)
    assert found == expected
    assert type(found) is type(expected)


@pytest.fixture
def llm(tiny_target: Any, tiny_head: Any) -> Any:
    with closing(load(tiny_target, tiny_head, n_ctx=128)) as llm:
        yield llm


CALLS: dict[str, tuple[Callable[[Eagle3Llama, Any], Any], list[Any]]] = {
    "top_p": (lambda llm, x: Sampling(top_p=x), [None, "0.5", NAN]),
    "n_keep": (lambda llm, x: Shift(x), [-1, None]),
    "draft_n_max": (lambda llm, x: DraftSettings(n_max=x), [-1, 2**31]),
    "max_tokens": (lambda llm, x: llm.create_completion("a", max_tokens=x), [1.5, NAN, "5"]),
    "stop": (lambda llm, x: llm.create_completion("a", max_tokens=2, stop=x), [5, b"a", [None]]),
    "logit_bias": (
        lambda llm, x: llm.create_completion("a", max_tokens=2, logit_bias=x),
        [{-1: 1}, {1.5: 1}, {"a": 1}],
    ),
    "echo": (lambda llm, x: llm.create_completion([1, 2], max_tokens=2, echo=x), [True]),
    "prompt": (lambda llm, x: llm.generate_batch([x]), [5, None, b"a", "\ud800"]),
    "messages": (lambda llm, x: llm.create_chat_completion(x), [None, "hello", [5]]),
    "tokens": (lambda llm, x: llm.eval(x), [[1.5], [2**70], [-1], b"abc", None]),
    "n_tokens": (lambda llm, x: setattr(llm, "n_tokens", x), [-1, 1 << 20, 1.5]),
    "draft": (lambda llm, x: setattr(llm, "draft", x), ["Chain", None, 5]),
    "draft_sources": (lambda llm, x: setattr(llm, "draft_sources", x), ["ngram", ("n-gram",)]),
    "draft_p_min": (lambda llm, x: setattr(llm, "draft_p_min", x), [NAN, 1.5]),
    "sequence": (lambda llm, x: llm.engine.submit(x), [None, "a"]),
    "seq_id": (lambda llm, x: llm.engine.evict_prefix(x), [-1, 5, None]),
    "logprobs": (lambda llm, x: llm.engine.add([1], logprobs=x), [-1, 1.5]),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_refuse_by_name(name: str, llm: Eagle3Llama) -> None:
    """Before: a bare error from deep inside, another text, an engine that failed in each step, or no end."""
    call, values = CALLS[name]
    before = take(llm, [1, 2, 3], 4)
    for value in values:
        with pytest.raises(ValueError, match=name):
            call(llm, value)
    assert take(llm, [1, 2, 3], 4) == before


def test_a_wrong_request_fails_alone() -> None:
    """Settings that no step could read stayed with the engine, and failed all others."""
    for wrong in (5, np.array([1, 2]), "auto"):
        with pytest.raises(ValueError, match="expected draft to be DraftSettings or None"):
            Request([1], draft=wrong)  # type: ignore[arg-type]


def _only(token: int) -> Callable[[npt.NDArray[np.intc], npt.NDArray[np.single]], npt.NDArray[np.single]]:
    def add(_: npt.NDArray[np.intc], logits: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        logits[token] += 1000.0
        return logits

    return add


def test_processors_beside_a_bias(llm: Eagle3Llama) -> None:
    """llama_cpp drops both: it takes what list.extend returns."""
    given: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0, "logits_processor": LogitsProcessorList([_only(65)])}
    texts = [
        llm.create_completion("a", **given, logit_bias=bias)["choices"][0]["text"] for bias in ({66: 9.0}, {66: 2e3})
    ]
    assert texts == ["AAA", "BBB"]


def test_stops_in_other_lists(llm: Eagle3Llama) -> None:
    """llama_cpp ignores a tuple, and ends all texts at an empty string."""
    whole = llm.create_completion("the", max_tokens=20, temperature=0)["choices"][0]["text"]
    stop = whole[3]
    for stops in (stop, (stop,), [stop, ""], ["", stop]):
        found = llm.create_completion("the", max_tokens=20, temperature=0, stop=stops)["choices"][0]["text"]
        assert found == whole[: whole.index(stop)]
    assert llm.create_completion("the", max_tokens=20, temperature=0, stop="")["choices"][0]["text"] == whole


def test_a_type_costs_little() -> None:
    tokens, start = list(range(100_000)), time.thread_time()
    as_type("tokens", tokens, Sequence[int])
    assert time.thread_time() - start < 1.0
