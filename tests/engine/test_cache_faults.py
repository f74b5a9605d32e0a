"""What fails while a cached prefix is loaded is evaluated, with one line; a request that gets no slot fails alone."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults import Fault, Lost, armed
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import SavedState
from llama_cpp_eagle3.engine import Sampling, Sequence
from llama_cpp_eagle3.engine.prefix_nodes import Prefix
from random_arch import write_random_arch
from recurrent_pairs import write_pair
from tiny import write_perfect_pair

GREEDY = Sampling(temperature=0.0, ignore_eos=True)


def some(n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(30, 120) for _ in range(n)]


PROMPT, OTHER = some(120, 1), some(80, 2)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    target, head = write_perfect_pair(folder / "target.gguf", folder / "head.gguf")
    return str(target.path), str(head.path)


@pytest.fixture
def llm(pair: tuple[str, str]) -> Iterator[Eagle3Llama]:
    with closing(load(pair)) as found:
        yield found


def load(pair: tuple[str, str], **options: Any) -> Eagle3Llama:
    defaults: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_parallel": 2, "draft": "chain", "draft_n_max": 3}
    return Eagle3Llama(*pair, verbose=False, **{**defaults, **options})


def add(llm: Eagle3Llama, tokens: list[int], n: int = 16, **options: Any) -> Sequence:
    return llm.engine.add(tokens, GREEDY, max_tokens=n, **options)


def finish(llm: Eagle3Llama, *sequences: Sequence, n_steps: int = 500) -> None:
    for _ in range(n_steps):
        if all(s.is_done for s in sequences):
            return
        llm.engine.step()
    pytest.fail("a request does not end")


def ask(llm: Eagle3Llama, tokens: list[int], n: int = 16) -> Sequence:
    sequence = add(llm, tokens, n)
    finish(llm, sequence)
    return sequence


def to_host(llm: Eagle3Llama) -> Prefix:
    """Put a text of PROMPT into host memory, and empty the slots."""
    ask(llm, PROMPT)
    slots = llm.engine.slots
    for slot in slots:
        slots.cache.store(slot)
        slots.evict_prefix(slot.seq_id)
    (prefix,) = slots.cache.tree.hosted
    return prefix


@pytest.mark.parametrize("part", ["target", "draft"])
def test_a_state_that_is_refused(llm: Eagle3Llama, caplog: pytest.LogCaptureFixture, part: str) -> None:
    """The target's is evaluated; without the drafters' part they go on after it. What runs beside does not notice."""
    expected = [ask(llm, tokens).generated for tokens in (PROMPT, OTHER)]
    llm.engine.clear()
    prefix = to_host(llm)
    assert prefix.saved is not None
    prefix.saved = replace(prefix.saved, **{part: b"damaged" * 100})
    running = add(llm, OTHER)
    llm.engine.step()
    sequence = ask(llm, PROMPT)
    finish(llm, running)
    assert [sequence.generated, running.generated] == expected
    assert (sequence.n_cached > 100) == (part == "draft")
    assert [("evaluated" if part == "target" else "left out") in line for line in caplog.messages] == [True]
    again = ask(llm, [*PROMPT, *sequence.generated])
    assert again.n_cached >= 120
    assert len(caplog.messages) == 1


def test_a_preempted_state_that_is_refused(llm: Eagle3Llama, caplog: pytest.LogCaptureFixture) -> None:
    expected = ask(llm, PROMPT, 30).generated
    llm.engine.clear()
    sequence = add(llm, PROMPT, 30)
    for _ in range(3):
        llm.engine.step()
    assert 0 < sequence.n_generated < 30
    llm.engine.preempt_all()
    assert sequence.saved is not None
    sequence.saved = replace(sequence.saved, target=b"damaged")
    finish(llm, sequence)
    assert sequence.generated == expected
    assert ["evaluated again" in line for line in caplog.messages] == [True]


@pytest.mark.parametrize("kind", [Lost, MemoryError])
@pytest.mark.parametrize("name", ["state_get", "state_set", "copy", "attach", "save", "n_past_min"])
@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_errors_of_single_calls(
    tmp_path: Path, pair: tuple[str, str], arch: str, name: str, kind: type[Exception]
) -> None:
    """Whichever call fails while slots are assigned: texts are the same, and no step raises. Looking up may fail."""
    if arch == "qwen35":
        pair = write_pair(tmp_path, arch)
    shared = some(60, 3)
    prompts = [shared + some(60, 10 + i) for i in range(5)]
    with closing(load(pair, n_parallel=1)) as fresh:
        expected = [ask(fresh, prompt, 6).generated for prompt in prompts]
    cache = tmp_path / "cache"
    for skip in (0, 1, 3):
        with closing(load(pair, prefix_cache_dir=cache)) as llm:
            fault = Fault(kind, names=(name,), after=False, skip=skip)
            with armed(llm.engine, fault):
                sequences = [add(llm, prompt, 6, boundaries=[60]) for prompt in prompts]
                finish(llm, *sequences)
                llm.engine.preempt_all()
                again = [ask(llm, [*prompt, *text[:2]], 4) for prompt, text in zip(prompts, expected, strict=True)]
            for s, text in zip(sequences, expected, strict=True):
                assert s.generated == text or (s.result.error in fault.raised and name == "n_past_min")
            assert sum(s.result.error is not None for s in [*sequences, *again]) <= 1
            for s, text in zip(again, expected, strict=True):
                assert s.generated[:4] == text[2:6] or s.result.error in fault.raised


def test_no_slot_can_be_had(
    llm: Eagle3Llama, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request fails with the error, those beside it and after it do not."""
    expected = ask(llm, OTHER, 30).generated
    running = add(llm, OTHER, 30)
    llm.engine.step()
    for where in (llm.engine.slots, llm.engine.slots.cache):
        name = "assign" if where is llm.engine.slots else "fetch"
        with monkeypatch.context() as patch:

            def fail(*args: Any, **options: Any) -> bool:
                raise Lost("no slot")

            patch.setattr(where, name, fail)
            sequence = add(llm, PROMPT)
            finish(llm, sequence)
        assert isinstance(sequence.result.error, Lost)
        assert sequence.result.finish_reason == "error"
    finish(llm, running)
    assert running.generated == expected
    assert ask(llm, PROMPT).result.error is None
    assert ["could get no slot" in line for line in caplog.messages] == [True, True]


def test_a_paced_sequence_gets_no_slot(llm: Eagle3Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """`eval` raises the error, and the object stays usable."""
    expected = llm.create_completion(PROMPT, max_tokens=8, temperature=0.0)["choices"][0]["text"]
    with monkeypatch.context() as patch:

        def fail(*args: Any, **options: Any) -> bool:
            raise Lost("no slot")

        patch.setattr(llm.engine.slots, "assign", fail)
        llm.reset()
        llm.engine.preempt_all()
        llm.engine.slots.release(llm._context.sequence)
        with pytest.raises(Lost):
            llm.create_completion(OTHER, max_tokens=8, temperature=0.0)
    assert llm.create_completion(PROMPT, max_tokens=8, temperature=0.0)["choices"][0]["text"] == expected


# host memory that is small


def test_a_prefix_and_its_state_that_have_no_room_together(tmp_path: Path) -> None:
    """They are not read, as each would evict the other: the request begins at once, beside others that run on."""
    pair = write_pair(tmp_path, "qwen35")
    cache = tmp_path / "cache"
    parts = [some(120, 1), some(200, 2), some(40, 3)]
    options: dict[str, Any] = {"prefix_cache_dir": cache, "n_ctx": 4096, "draft_sources": ()}
    with closing(load(pair, **options)) as llm:
        finish(llm, add(llm, parts[0] + parts[1], 4, boundaries=[120, 320]))
    sizes = {e: max(p.stat().st_size for p in cache.glob(f"*.{e}")) for e in ("prefix", "state")}
    largest = max(sizes.values())
    for n_bytes, n_cached in ((largest + min(sizes.values()) // 3, 0), (sum(sizes.values()) + 1000, 119)):
        with closing(load(pair, **options, prefix_cache_bytes=n_bytes)) as llm:
            reads: list[str] = []
            folder = llm.engine.slots.cache._disk._folder  # type: ignore[union-attr]
            real = folder.read
            folder.read = lambda file, real=real, reads=reads: reads.append(file.name) or real(file)  # type: ignore[method-assign]
            running = add(llm, some(30, 4), 1000)
            for _ in range(3):
                llm.engine.step()
            late = add(llm, parts[0] + parts[2], 4, boundaries=[120])
            finish(llm, late)
            assert not running.is_done
            assert late.n_cached == n_cached
            assert len(reads) == len(set(reads)) == (2 if n_cached else 0)


def test_a_refused_state_leaves_no_bad_numbers(llm: Eagle3Llama, caplog: pytest.LogCaptureFixture) -> None:
    """What llama.cpp has read of it before it refused the rest may be NaN: all cells are cleared, texts are right."""
    expected = [ask(llm, tokens).generated for tokens in (PROMPT, OTHER)]
    llm.engine.clear()
    prefix = to_host(llm)
    assert prefix.saved is not None
    data = np.frombuffer(prefix.saved.target, np.float32).copy()
    data[len(data) // 4 : len(data) // 2] = np.nan
    prefix.saved = replace(prefix.saved, target=data.tobytes()[: -len(data)] + bytes(len(data)))
    running = add(llm, OTHER)
    llm.engine.step()
    sequence = ask(llm, PROMPT)
    finish(llm, running)
    assert [sequence.generated, running.generated] == expected
    assert sequence.result.error is None
    assert ["the target refuses its state" in line for line in caplog.messages] == [True]
    assert np.isnan(data).any()


def test_a_position_that_cannot_be_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """llama.cpp removes no cell at the last position that there is: it would stay in the slot for ever."""
    path = write_random_arch(tmp_path, "gemma3")
    with closing(Eagle3Llama(str(path), verbose=False, n_ctx=512, n_threads=1, swa_full=False)) as llm:
        expected = ask(llm, [*PROMPT[:100], 40]).generated
        llm.engine.clear()
        finish(llm, add(llm, PROMPT, 16, boundaries=[80]))
        stored = llm.engine.store_prefix(0)
        n, state = next((n, state) for n, state in stored.states if n == 79)
        last, end = struct.pack("<i", n - 1), struct.pack("<i", 2**31 - 1)
        assert state.data.count(last) == 1
        states = [(n, SavedState(n, state.data.replace(last, end)))]
        llm.engine.clear()
        llm.engine.restore_prefix(0, replace(stored, states=states))
        for _ in range(2):
            assert ask(llm, [*PROMPT[:100], 40]).generated == expected
    assert ["it has positions" in line for line in caplog.messages] == [True]
