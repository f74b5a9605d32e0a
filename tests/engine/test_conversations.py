"""A conversation's next prompt evaluates only its tokens after the last boundary that both prompts have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llama_cpp_eagle3.engine.engine
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import Sampling, Sequence, Shift
from random_arch import write_random_arch

ARCHS = ["llama", "qwen35", "lfm2", "qwen3next", "mamba2", "gemma3", "llama4"]
"""Attention, recurrent layers, sliding and chunked windows."""
N_CHUNK = 8192
"""Tokens of llama4's chunk, in every file."""
N_MARGIN = 20
"""Tokens that may be evaluated again beside the new ones."""


@pytest.fixture(scope="module", params=ARCHS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_arch(tmp_path_factory.mktemp(request.param), request.param)


def load(path: Path, **options: Any) -> Eagle3Llama:
    options = {"n_ctx": 2048, "n_batch": 256, "swa_full": False, "n_threads": 1, "type_k": 0, "type_v": 0, **options}
    return Eagle3Llama(str(path), verbose=False, **options)


def some(n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(30, 120) for _ in range(n)]


def add(llm: Eagle3Llama, parts: list[list[int]], n: int = 8, **options: Any) -> Sequence:
    """Add a prompt of messages, the last of which is the beginning of the answer."""
    ends = np.cumsum([len(part) for part in parts]).tolist()
    tokens = [token for part in parts for token in part]
    return llm.engine.add(
        tokens, Sampling(temperature=0.0, ignore_eos=True), max_tokens=n, boundaries=ends[:-1], **options
    )


def run(llm: Eagle3Llama, parts: list[list[int]], n: int = 8, **options: Any) -> Sequence:
    sequence = add(llm, parts, n, **options)
    while not sequence.is_done:
        llm.engine.step()
    assert sequence.result.error is None
    return sequence


class Fresh:
    """Texts and logits of prompts without a cached prefix."""

    def __init__(self, path: Path):
        self._llm = load(path, prefix_cache_bytes=0)

    def check(self, sequence: Sequence) -> None:
        """Check that the text is that of a fresh context; random models have no ties."""
        self._llm.reset()
        n = sequence.n_prompt
        n_generated = len(sequence.generated)
        expected = run(self._llm, [sequence.tokens[:n], []], n_generated)
        assert expected.n_cached == 0
        assert sequence.generated == expected.generated[:n_generated]  # which may continue until a character is whole

    def close(self) -> None:
        self._llm.close()


@pytest.fixture(scope="module")
def fresh(path: Path) -> Iterator[Fresh]:
    with closing(Fresh(path)) as opened:
        yield opened


SLOTS = [{"n_parallel": 1}, {"n_parallel": 4, "kv_unified": True}, {"n_parallel": 2, "kv_unified": False}]


@pytest.fixture(params=SLOTS, ids=["one", "pool", "streams"])
def llm(request: pytest.FixtureRequest, path: Path) -> Iterator[Eagle3Llama]:
    options = dict(request.param)
    if not options.get("kv_unified", True) or path.name.startswith("lfm2"):  # its sequences share no cells
        options["n_ctx"] = 2048 * options["n_parallel"]
    with closing(load(path, **options)) as opened:
        yield opened


def test_thoughts_that_the_template_drops(llm: Eagle3Llama, fresh: Fresh) -> None:
    """The next turn has the answer without its thoughts."""
    system, opening = some(200, 1), [100, 101, 102, 103]
    history = [system]
    for turn in range(3):
        history.append(some(40, 10 + turn))
        n_before = sum(map(len, history[:-1])) if turn else 0
        sequence = run(llm, [*history, [*opening, 99]], n=30)
        fresh.check(sequence)
        n_answer = 20 if turn else 0
        assert sequence.n_cached >= n_before - n_answer - len(opening) - N_MARGIN
        history.append([*opening, *some(20, 20 + turn)])


def test_one_system_prompt(llm: Eagle3Llama, fresh: Fresh) -> None:
    system = some(300, 2)
    for i in range(4):
        sequence = run(llm, [system, some(40, 30 + i), [99]])
        fresh.check(sequence)
        assert sequence.n_cached >= (300 - 1 if i else 0)


def test_an_edited_message(llm: Eagle3Llama, fresh: Fresh) -> None:
    history = [some(100, 3)]
    for turn in range(4):
        history.append(some(50, 40 + turn))
        run(llm, [*history, [99]], n=4)
        history.append([99, *some(50, 50 + turn)])
    edited = [*history[:5], some(50, 60)]
    sequence = run(llm, [*edited, [99]])
    fresh.check(sequence)
    n_same = sum(map(len, history[:5]))
    assert sequence.n_cached >= n_same - 50 - N_MARGIN  # since the answer before it began


@pytest.mark.parametrize("pinned", [{}, {"seq_id": 0}])
def test_conversations_in_turn(llm: Eagle3Llama, fresh: Fresh, pinned: dict[str, int]) -> None:
    """With more conversations than slots, none costs another one its prefix, even in a slot that requests name."""
    system = some(150, 4)
    talks = [[system, some(80, 70 + i)] for i in range(3)]
    for turn in range(3):
        for i, talk in enumerate(talks):
            sequence = run(llm, [*talk, [99]], **pinned)
            fresh.check(sequence)
            if turn:
                assert sequence.n_cached >= sum(map(len, talk[:-2])) - N_MARGIN
            elif i:
                assert sequence.n_cached >= 150 - 1
            talk += [[99, *some(10, 80 + i)], some(30, 90 + turn)]


def test_agents_at_once(path: Path, fresh: Fresh) -> None:
    """Six prompts that begin alike and arrive together evaluate the beginning once."""
    n_system = 1900
    n_ctx = 6 * 2048 if path.name.startswith("lfm2") else 4096  # lfm2: windows and recurrent layers share no cells
    with closing(load(path, n_parallel=6, kv_unified=True, n_ctx=n_ctx)) as llm:
        system = some(n_system, 5)
        for turn in range(2):
            agents = [add(llm, [system, some(60, 100 + 10 * turn + i), [99]]) for i in range(6)]
            while not all(s.is_done for s in agents):
                llm.engine.step()
            for sequence in agents:
                fresh.check(sequence)
            n_new = sum(s.n_prompt - s.n_cached for s in agents)
            assert n_new <= (0 if turn else n_system) + 6 * (61 + N_MARGIN)


def test_after_a_chunk(tmp_path: Path) -> None:
    """A chunked window begins anew in the middle of a conversation: states before and after that are used."""
    path = write_random_arch(tmp_path, "llama4")
    with closing(load(path, n_ctx=N_CHUNK + 1024)) as llm, closing(load(path, n_ctx=N_CHUNK + 1024)) as fresh:
        history = [some(N_CHUNK - 150, 1)]
        for turn in range(3):
            history.append(some(90, 10 + turn))
            sequence = run(llm, [*history, [99]])
            n_before = sum(map(len, history[:-2])) if turn else 0  # the client sends the answer in another form
            assert sequence.n_cached >= n_before - N_MARGIN
            history.append([99, *some(30, 20 + turn)])
        assert sequence.n_prompt > N_CHUNK
        again = run(llm, [*history[:2], some(90, 30), [99]])  # back to before the new chunk
        assert again.n_cached >= N_CHUNK - 150 - 1
        for other in (sequence, again):
            fresh.engine.clear()
            expected = run(fresh, [other.tokens[: other.n_prompt], []])
            assert (expected.n_cached, expected.generated) == (0, other.generated)


def states_of(llm: Eagle3Llama) -> list[int]:
    """Return the positions of the states of all texts."""
    return sorted(state.n_tokens for state in llm.engine.slots.cache.tree.states)


def test_where_states_are(path: Path) -> None:
    """States are after system prompt and tools, where the last messages and the answer begin, and at regular steps."""
    parts = [some(n, n) for n in (70, 300, 40, 50, 4)]  # system, user, answer, user, the beginning of the answer
    with closing(load(path, checkpoint_min_step=200)) as llm:
        if not llm.engine.memory.needs_states:
            pytest.skip("it can be cut anywhere")
        run(llm, parts)
        ends = np.cumsum([len(part) for part in parts]).tolist()
        expected = [ends[0], ends[1], ends[2], ends[3]]
        assert states_of(llm) == [n - 1 for n in expected]


def test_states_within_a_long_message(path: Path) -> None:
    """A message longer than the step between two states has states within it."""
    step = llama_cpp_eagle3.engine.save_plan.N_WITHIN
    with closing(load(path, n_ctx=step + 1024, n_batch=2048)) as llm:
        if not llm.engine.memory.needs_states:
            pytest.skip("it can be cut anywhere")
        run(llm, [some(step + 600, 1), [99]])
        assert states_of(llm) == [step, step + 600 - 1]


@pytest.mark.parametrize("draft", ["none", "right", "wrong"])
def test_the_end_of_a_thought(path: Path, fresh: Fresh, draft: str) -> None:
    """Text after a thought is sent back in another form; the thought is not evaluated again, with drafts or without."""
    texts: list[list[int]] = []

    def propose(tokens: np.ndarray[Any, Any], **_: Any) -> np.ndarray[Any, Any]:
        n = len(tokens)
        right = texts[0][n : n + 4] if texts and texts[0][:n] == tokens.tolist() else []
        return np.array([t + (draft == "wrong" and i > 0) for i, t in enumerate(right)], dtype=np.intc)

    parts = [some(60, 1), some(50, 2), [99, 98]]
    with closing(load(path, draft_model=None if draft == "none" else propose, n_parallel=2)) as llm:
        plain = run(llm, parts, n=40)
        texts.append(list(plain.tokens))
        thought = plain.generated[:20]
        end = plain.generated[18:20]
        n_end = next(n for n in range(2, 41) if plain.generated[n - 2 : n] == end)
        llm.engine.clear()
        sequence = run(llm, parts, n=40, thought_ends=[[7, 7, 7], end])
        assert sequence.generated == plain.generated
        assert (sequence.result.stats.drafted > 0) == (draft != "none")
        prompt = [[*plain.tokens[:112], *thought[:n_end], *some(30, 3)], [99]]
        other = run(llm, prompt)
        fresh.check(other)
        # drafted tokens after the end may have been accepted in one pass with it
        assert other.n_cached >= 112 + (n_end if draft != "right" or not llm.engine.memory.needs_states else 0) - 1


def test_a_full_context(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full context's cached part is not evaluated again, however often it is cut; the log tells once what is cut."""
    with closing(load(path, n_ctx=256)) as llm:
        sequence = run(llm, [some(90, 1), some(60, 2), [99]], n=300, shift=Shift(n_keep=80, n_discard=60))
        n_shifts = sequence.n_cut // 60 + 1  # the first shift cuts a part of the prompt
        n_again = 256 - 80 - 60
        assert n_shifts >= 3
        assert sequence.result.stats.prompt_tokens <= 151 + (n_shifts + 1) * (n_again + 3)
    said = [text for text in caplog.messages if "a context is full" in text]
    assert len(said) == 1
    assert "60 after the first 80 are dropped" in said[0]


def test_a_conversation_that_is_compacted(llm: Eagle3Llama, fresh: Fresh) -> None:
    """A client sends a summary and the last messages in place of all: system prompt and tools stay cached."""
    history = [some(200, 1)]
    for turn in range(6):
        history.append(some(40, 10 + turn))
        run(llm, [*history, [99]], n=4)
        history.append([99, *some(40, 20 + turn)])
    run(llm, [some(150, 2), some(30, 3), [99]])  # another conversation meanwhile
    compacted = [history[0], some(50, 4), *history[-2:], some(20, 5)]
    sequence = run(llm, [*compacted, [99]])
    fresh.check(sequence)
    assert sequence.n_cached >= 200 - 1


def test_nothing_is_kept_without_memory(path: Path, fresh: Fresh, caplog: pytest.LogCaptureFixture) -> None:
    with closing(load(path, prefix_cache_bytes=2000)) as llm:
        for seed in (6, 7, 6, 7):
            fresh.check(run(llm, [some(300, seed), [99]]))
            assert llm.engine.slots.cache.tree.n_bytes <= 2000
        assert llm.engine.slots.cache.n_too_large > 1
        assert sum("is not kept" in text for text in caplog.messages) == 1
    with closing(load(path, ctx_checkpoints=0)) as llm:
        run(llm, [some(300, 6), [99]])
        assert not llm.engine.slots.cache.tree.states


def test_states_have_a_limit(path: Path) -> None:
    with closing(load(path, ctx_checkpoints=3, checkpoint_min_step=1)) as llm:
        history: list[list[int]] = []
        for turn in range(8):
            history.append(some(40, turn))
            run(llm, [*history, [99]], n=2)
        assert len(llm.engine.slots.cache.tree.states) <= 3


def test_what_was_reused_is_counted(path: Path) -> None:
    """Reused tokens are counted by the kind of memory, and agree with `n_cached` of the requests."""
    talks = [[some(200, seed)] for seed in (8, 9)]
    with closing(load(path, n_parallel=1)) as llm:
        n_cached = sum(run(llm, [*talk, [99]]).n_cached for talk in talks * 2)
        stats = llm.prefix_stats
        assert sum(stats.reused_tokens.values()) == n_cached
        assert stats.reused_tokens["host"] > 0
        assert stats.n_prefixes > 0
        assert 0 < stats.n_bytes <= stats.n_bytes_max
