"""Recorded texts: read from files, and said by a target that computes all the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_cpp_eagle3.bench.replay import Recorded, Replay, read, tokens_of
from llama_cpp_eagle3.bench.runs import run_own
from loading import load

SETS = Path(__file__).parents[2] / "benchmarks" / "replay"


def test_files(tmp_path: Path) -> None:
    for name in ("edits", "quotes", "free"):
        assert len(read(SETS / f"{name}.jsonl")) == 6
        assert len(read(SETS / f"{name}.jsonl", 2)) == 2
    path = tmp_path / "own.jsonl"
    for line in ("{", '{"prompt": "a"}', '{"prompt": "a", "answer": ""}', '{"prompt": 1, "answer": "b"}', "[1]"):
        path.write_text(f'{{"prompt": "a", "answer": "b"}}\n{line}\n', encoding="utf-8")
        with pytest.raises(ValueError, match=r"own.jsonl', line 2: expected"):
            read(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no conversations"):
        read(path)


def test_tokens() -> None:
    found = tokens_of(("ab", "cde"), lambda text, begins: [1] * begins + list(text), 2)
    assert found == Recorded([1, 97, 98], [99, 100])


@pytest.mark.parametrize("sources", [("eagle3",), ("ngram",), ("eagle3", "ngram")])
def test_the_target_says_it(tiny_target: Any, tiny_head: Any, sources: tuple[Any, ...]) -> None:
    prompt = np.random.default_rng(0).integers(3, 100, 30).tolist()
    answer = [*prompt[5:25], 7, 8, *prompt[:20]]  # quotes, so that the text has something to suggest
    with closing(load(tiny_target, tiny_head, draft="auto", draft_sources=sources)) as llm:
        replay = Replay()
        replay.answer = answer
        llm.engine.stepper.on_sample = replay
        for _ in range(2):
            run, tokens = run_own(llm, prompt, len(answer), stop=False)
            assert tokens == answer
            assert run.tokens == len(answer) - 1
