"""One object, two threads: the second one gets an error, not a crash."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import llama_cpp
import numpy as np
import pytest

from llama_cpp_eagle3 import BusyError, Eagle3Llama
from loading import load, take


class Blocked:
    """A generation that waits in a logits processor in another thread."""

    def __init__(self, llm: Eagle3Llama):
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.tokens: list[int] = []
        self.thread = threading.Thread(target=self.run, args=(llm,))
        self.thread.start()
        assert self.inside.wait(120)

    def process(self, ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        self.inside.set()
        assert self.go_on.wait(120)
        return scores

    def run(self, llm: Eagle3Llama) -> None:
        self.tokens = take(llm, [1, 2, 3], 20, logits_processor=llama_cpp.LogitsProcessorList([self.process]))

    def finish(self) -> list[int]:
        self.go_on.set()
        self.thread.join(120)
        assert not self.thread.is_alive()
        return self.tokens


CALLS: dict[str, Callable[[Eagle3Llama], Any]] = {
    "generate": lambda llm: take(llm, [5, 6], 3),
    "call": lambda llm: llm("the self", max_tokens=3),
    "eval": lambda llm: llm.eval([5]),
    "sample": lambda llm: llm.sample(temp=0.0),
    "reset": lambda llm: llm.reset(),
    "save_state": lambda llm: llm.save_state(),
    "features": lambda llm: llm.features,
    "close": lambda llm: llm.close(),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_the_second_thread_gets_an_error(tiny_target: Any, tiny_head: Any, call: str) -> None:
    with closing(load(tiny_target, tiny_head)) as llm:
        expected = take(llm, [1, 2, 3], 20)
        llm.reset()
        blocked = Blocked(llm)
        try:
            with pytest.raises(BusyError, match="in use"):
                CALLS[call](llm)
        finally:
            tokens = blocked.finish()
        assert tokens == expected
        assert take(llm, [1, 2, 3], 20) == expected


def test_taking_turns_is_fine(tiny_target: Any, tiny_head: Any) -> None:
    """The lock is held only during a step: a generator may move from thread to thread."""
    with closing(load(tiny_target, tiny_head)) as llm:
        expected = take(llm, [1, 2, 3], 20)
        stream, tokens = llm.generate([1, 2, 3], temp=0.0), []
        for _ in range(20):
            thread = threading.Thread(target=lambda: tokens.append(next(stream)))
            thread.start()
            thread.join(120)
        stream.close()
        assert tokens == expected


def test_a_callback_that_calls_back(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head)) as llm:

        def process(ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
            llm.tokenize(b"the")  # harmless
            llm.reset()
            return scores

        with pytest.raises(BusyError, match="callback"):
            take(llm, [1, 2, 3], 5, logits_processor=llama_cpp.LogitsProcessorList([process]))
        assert len(take(llm, [1, 2, 3], 5)) == 5


def test_each_thread_its_own(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head)) as llm:
        expected = take(llm, [1, 2, 3], 60)
    results: list[list[int]] = []

    def run() -> None:
        with closing(load(tiny_target, tiny_head)) as mine:
            results.append(take(mine, [1, 2, 3], 60))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [expected] * 4


def test_hammered(tiny_target: Any, tiny_head: Any) -> None:
    """Four threads call one object: every call is right or refused."""
    with closing(load(tiny_target, tiny_head)) as llm:
        expected = take(llm, [1, 2, 3], 30)
        outcomes: list[str] = []

        def run() -> None:
            for _ in range(15):
                try:
                    outcomes.append("right" if take(llm, [1, 2, 3], 30) == expected else "wrong")
                except BusyError:
                    outcomes.append("busy")
                except RuntimeError as e:  # another thread took over its text between two tokens
                    outcomes.append("lost" if "used for something else" in str(e) else repr(e))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(outcomes) == 60
        assert set(outcomes) <= {"right", "busy", "lost"}
        assert take(llm, [1, 2, 3], 30) == expected
