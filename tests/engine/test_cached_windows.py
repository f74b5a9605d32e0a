"""Cached prefixes of models with a sliding window, and the sequences beside which they are kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import llama_cpp
import pytest

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import Sampling, Sequence
from random_arch import write_random_arch

N_COMMON = 68


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_arch(tmp_path_factory.mktemp("windows"), "gemma3")  # a window of 16 in every other layer


def load(path: Path, **options: object) -> Eagle3Llama:
    return Eagle3Llama(str(path), n_ctx=2048, n_batch=512, n_threads=1, type_k=0, type_v=0, verbose=False, **options)


def run(llm: Eagle3Llama, tokens: list[int], n: int = 20) -> Sequence:
    sequence = llm.engine.add(tokens, Sampling(temperature=0.0), max_tokens=n)
    while not sequence.is_done:
        llm.engine.step()
    assert sequence.result.error is None
    return sequence


def texts(seed: int) -> Iterator[list[int]]:
    rng = random.Random(seed)
    while True:
        yield [rng.randrange(30, 120) for _ in range(rng.randrange(60, 300))]


@pytest.mark.parametrize("drafts", [{}, {"draft": "tree", "draft_sources": ["ngram"]}], ids=["plain", "tree"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_pool_keeps_what_has_left_the_window(path: Path, seed: int, drafts: dict[str, object]) -> None:
    """llama.cpp gives such cells to other texts although others are empty."""
    with closing(load(path, n_parallel=4, kv_unified=True, **drafts)) as llm, closing(load(path)) as fresh:
        rest = texts(seed)
        common = next(rest)[:60] + [33] * 8
        kept, others = [], []
        for _ in range(12):
            tokens = common + next(rest)[:60]
            sequence = run(llm, tokens)
            kept.append(sequence.n_cached)
            others.append(run(llm, next(rest)).n_cached)
            others.append(run(llm, next(rest)).n_cached)
        assert kept == [0] + [N_COMMON] * 11
        assert max(others) < 4
        fresh.reset()
        assert sequence.generated == run(fresh, tokens).generated
        # nothing stays: a text gets all cells once the other texts are gone
        llm.engine.slots.clear()
        memory = llama_cpp.llama_get_memory(llm.ctx)
        n_ids = llama_cpp.llama_n_seq_max(llm.ctx)
        assert [llama_cpp.llama_memory_seq_pos_max(memory, i) for i in range(n_ids)] == [-1] * n_ids
        assert run(llm, [40 + i % 50 for i in range(2000)], 30).result.finish_reason == "length"


def test_streams_keep_what_others_left_there(path: Path) -> None:
    """A sequence that runs alone stays in its slot: a prefix that others left there may begin the next text."""
    with closing(load(path, n_parallel=4, kv_unified=False)) as llm:
        rest = texts(3)
        first = [next(rest) for _ in range(4)]
        assert [run(llm, tokens, 30).n_cached for tokens in first] == [0] * 4
        again = [run(llm, [*tokens, 50], 30).n_cached for tokens in first]
        assert again == [len(tokens) for tokens in first]


def test_windows_that_are_not_guarded_are_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Guards take as many sequence ids again, and llama.cpp has only as many as rows in an ubatch."""
    for n_ubatch, is_logged in ((8, False), (7, True)):
        caplog.clear()
        with caplog.at_level("DEBUG", "llama_cpp_eagle3"):
            load(path, n_parallel=4, kv_unified=True, n_ubatch=n_ubatch).close()
        lines = [text for text in caplog.messages if "n_ubatch of at least 8 prevents that" in text]
        assert len(lines) == is_logged
