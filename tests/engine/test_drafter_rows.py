"""A drafter's rows of a prompt follow the target's prefixes: into slots, copies, host memory, states.

The first tokens after a reused prefix have the drafts that they have after a prompt that was evaluated whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import assistants
import dflash
import mtp
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import Sampling, Sequence
from llama_cpp_eagle3.models import bundled_pair, heldout_prompts
from loading import load, prompts
from small import write_small_pair

N = 24
"""Tokens of an answer."""


def _dflash(folder: Path) -> tuple[Any, Any]:
    pair = dflash.write_able(folder, "llama")
    return pair.target, pair.drafter


KINDS: dict[str, Callable[[Path], Any]] = {
    "eagle3": lambda folder: bundled_pair(),
    "mtp": lambda folder: (mtp.write_able(folder, "glm4moe-mtp"), None),
    "mtp-hybrid": lambda folder: (mtp.write_able(folder, "qwen35-mtp"), None),
    "dflash": _dflash,
    "simple": lambda folder: write_small_pair(folder, "llama", "llama"),
    "simple-with-state": lambda folder: write_small_pair(folder, "llama", "qwen3next"),
    "simple-of-hybrid": lambda folder: write_small_pair(folder, "qwen35", "gemma3"),
    "assistant": lambda folder: assistants.write_able(folder, "gemma4"),
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return KINDS[request.param](tmp_path_factory.mktemp("rows"))


@pytest.fixture(params=[1, 3], ids=["one", "three"])
def llm(request: pytest.FixtureRequest, pair: tuple[Any, Any]) -> Iterator[Eagle3Llama]:
    options = {"n_ctx": 1024, "n_parallel": request.param, "kv_unified": True, "draft": "chain", "draft_n_max": 3}
    with closing(load(*pair, prefix_cache_bytes=2**28, **options)) as opened:
        yield opened


def run(llm: Eagle3Llama, tokens: list[int], **options: Any) -> Sequence:
    boundaries = [len(tokens) - 2]
    sequence = llm.engine.add(
        tokens, Sampling(temperature=0.0, ignore_eos=True), max_tokens=N, boundaries=boundaries, **options
    )
    while not sequence.is_done:
        llm.engine.step()
    assert sequence.result.error is None
    return sequence


def check(llm: Eagle3Llama, tokens: list[int], n_least: int) -> None:
    """Check that drafts after a reused prefix are the same as after an evaluated one."""
    sequence = run(llm, tokens)
    assert sequence.n_cached >= n_least
    llm.engine.clear()
    fresh = run(llm, tokens)
    assert fresh.n_cached == 0
    assert sequence.generated == fresh.generated
    found, expected = sequence.result.stats, fresh.result.stats
    assert expected.accepted > 0
    assert (found.drafted, found.accepted) == (expected.drafted, expected.accepted)


@pytest.fixture
def texts(llm: Eagle3Llama) -> list[list[int]]:
    """Return three texts of 90 tokens each; for the head some that it knows."""
    if llm.draft_sources[0] == "eagle3":
        said = "".join(heldout_prompts()).encode()
        tokens = llm.tokenize(said, add_bos=False)
        return [tokens[i : i + 90] for i in (0, 300, 600)]
    return prompts(3, length=(90, 91), seed=11)


def test_a_conversation_goes_on(llm: Eagle3Llama, texts: list[list[int]]) -> None:
    """A conversation continues in its slot, or as a copy."""
    first, more, _ = texts
    answer = run(llm, first).generated
    check(llm, [*first, *answer, *more[:10]], 90 + N - 1)


def test_an_answer_is_sent_otherwise(llm: Eagle3Llama, texts: list[list[int]]) -> None:
    """The drafter goes back to where the answer began, and by one more token for a head that needs its row."""
    first, more, _ = texts
    run(llm, first)
    check(llm, [*first[:88], *more[:20]], 88 - 2)


def test_another_conversation_between(llm: Eagle3Llama, texts: list[list[int]]) -> None:
    """With one slot the first conversation goes to host memory and comes back."""
    first, second, more = texts
    answer = run(llm, first).generated
    for tokens in (second, more):
        run(llm, tokens)
    check(llm, [*first, *answer, *more[:10]], 90 + N - 1)


def test_two_that_begin_alike(llm: Eagle3Llama, texts: list[list[int]]) -> None:
    """The second one has a copy, or, with one slot, the common rest of the first one."""
    first, more, other = texts
    run(llm, [*first, *more])
    check(llm, [*first, *other], 0 if llm.engine.memory.needs_states else 90 - 1)


def test_rows_that_are_not_there(pair: tuple[Any, Any], texts: list[list[int]]) -> None:
    """A drafter that needs only tokens reads them again, after the first token; others draft from later rows."""
    options = {"n_ctx": 1024, "n_parallel": 1, "draft": "chain", "draft_n_max": 3}
    with closing(load(*pair, prefix_cache_bytes=2**28, **options)) as llm:
        first, second, more = texts
        answer = run(llm, first).generated
        run(llm, second)
        llm.engine.slots.memory.set_drafters(tuple(llm.drafters))  # as other drafters, without rows in host memory
        prompt = [*first, *answer, *more[:10]]
        sequence = llm.engine.add(prompt, Sampling(temperature=0.0, ignore_eos=True), max_tokens=N)
        while not sequence.generated:
            llm.engine.step()
        assert sequence.n_cached >= 90
        [drafter] = llm.drafters
        reads_tokens = drafter.n_embd_feat == 0
        if reads_tokens and "simple" in llm.draft_sources:
            assert drafter.n_waiting(sequence.seq_id) >= len(prompt) - 1
        while not sequence.is_done:
            llm.engine.step()
        llm.engine.clear()
        fresh = run(llm, prompt)
        assert sequence.generated == fresh.generated
        if reads_tokens:
            assert sequence.result.stats.accepted == fresh.result.stats.accepted > 0


def test_what_a_small_model_has_lost(llm: Eagle3Llama, texts: list[list[int]], request: pytest.FixtureRequest) -> None:
    """A small model that cannot go back reads the text again after the first token, not before."""
    first, more, other = texts
    tokens = [*first, *more, *other]
    run(llm, tokens)
    sequence = llm.engine.add([*tokens[:200], *first[:40]], Sampling(temperature=0.0, ignore_eos=True), max_tokens=N)
    while not sequence.generated:
        llm.engine.step()
    [drafter] = llm.drafters
    n_lost = drafter.n_waiting(sequence.seq_id)
    assert n_lost < 130 or drafter.n_embd_feat == 0
    assert n_lost >= 200 or "simple-with-state" not in request.node.name
    while not sequence.is_done:
        llm.engine.step()
    assert sequence.result.stats.accepted > 0


def test_one_that_was_preempted(llm: Eagle3Llama, texts: list[list[int]]) -> None:
    """A preempted sequence continues with drafts as good as before."""
    first, _, _ = texts
    whole = run(llm, first)
    llm.engine.clear()
    sequence = llm.engine.add(first, Sampling(temperature=0.0, ignore_eos=True), max_tokens=N, boundaries=[88])
    while len(sequence.generated) < N // 2:
        llm.engine.step()
    llm.engine.scheduler.preempt(sequence)
    while not sequence.is_done:
        llm.engine.step()
    assert sequence.generated == whole.generated
    assert sequence.result.stats.accepted >= whole.result.stats.accepted - 3  # the drafts of the step after it
