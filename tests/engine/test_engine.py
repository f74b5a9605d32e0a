"""The engine: sequences join and leave at any time, and each gets the text that it gets alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from llama_cpp_eagle3 import BusyError, ContextFullError, Eagle3Error, Eagle3Llama
from llama_cpp_eagle3.engine import DraftSettings, Engine, Request, SamplerChain, Sampling, Sequence
from loading import is_tie, load, load_plain, prompts, take
from recurrent_pairs import write_pair
from tiny import write_target

GREEDY = Sampling(temperature=0.0)
N = 20


@pytest.fixture(scope="module", params=["perfect", "random", "qwen35", "qwen3next", "mamba2"])
def pair(request: Any, tmp_path_factory: Any, tiny_target: Any, tiny_head: Any, perfect_pair: Any) -> tuple[Any, Any]:
    if request.param == "random":
        return tiny_target, tiny_head
    if request.param == "perfect":
        return tuple(perfect_pair)
    return write_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(params=[False, True], ids=["streams", "pool"])
def llm(pair: Any, request: Any) -> Iterator[Eagle3Llama]:
    options = {"n_parallel": 3, "n_ctx": 1536, "draft_n_max": 4, "n_batch": 64, "n_ubatch": 32}
    with closing(load(*pair, kv_unified=request.param, **options)) as llm:
        yield llm


def run(engine: Engine, n_steps: int = 1000) -> None:
    for _ in range(n_steps):
        if not engine.has_work:
            return
        engine.step()
    pytest.fail("the engine does not come to an end")


class Reference:
    """Plain decoding, one by one."""

    def __init__(self, target: Any):
        self.plain = load_plain(target)

    def check(self, sequence: Sequence) -> bool:
        """Whether the text parted from plain decoding at a tie; any other difference fails."""
        prompt, found = sequence.tokens[: sequence.n_prompt], sequence.generated
        return is_tie(self.plain, prompt, take(self.plain, prompt, len(found)), found)


@pytest.fixture
def reference(pair: Any) -> Iterator[Reference]:
    reference = Reference(pair[0])
    yield reference
    reference.plain.close()


def test_join_and_leave(llm: Eagle3Llama, reference: Reference) -> None:
    """More sequences than slots are added while others run; some are cancelled: waiting, in prefill or decoding."""
    engine, rng = llm.engine, np.random.default_rng(0)
    texts = prompts(12, min(llm.n_vocab(), 128), (3, 150))
    added: list[Sequence] = []
    cancelled = set()
    for i, text in enumerate(texts):
        added.append(engine.add(text, GREEDY, max_tokens=int(rng.integers(1, 2 * N))))
        if i % 4 == 3:
            victim = added[int(rng.integers(0, len(added)))]
            engine.cancel(victim)
            if not victim.is_done:
                cancelled.add(id(victim))
        for _ in range(int(rng.integers(0, 4))):
            engine.step()
    run(engine)
    assert engine.n_running == engine.n_waiting == 0
    n_ties = 0
    for sequence in added:
        assert sequence.is_done
        if id(sequence) in cancelled:
            assert sequence.result.finish_reason == "cancelled"
            continue
        assert sequence.result.finish_reason in ("stop", "length")
        assert sequence.result.finish_reason == "stop" or len(sequence.generated) >= sequence.max_tokens
        n_ties += reference.check(sequence)
    assert n_ties <= 1
    engine.cancel(added[0])  # no error
    engine.step()


def test_mixed_passes(llm: Eagle3Llama, reference: Reference) -> None:
    """A long prompt is read in pieces beside the rows of decoding sequences, none of which waits for it."""
    engine = llm.engine
    vocab = min(llm.n_vocab(), 128)
    first = [engine.add(text, GREEDY, max_tokens=60) for text in prompts(2, vocab)]
    while not all(s.generated for s in first):
        engine.step()
    late = engine.add(prompts(1, vocab, (200, 201), seed=5)[0], GREEDY, max_tokens=N)
    n_mixed = 0
    while not late.generated:
        n_before = [len(s.tokens) for s in first]
        engine.step()
        for s, n in zip(first, n_before, strict=True):
            assert s.is_done or len(s.tokens) > n
        n_mixed += not first[0].is_done
    assert n_mixed >= 2  # 200 tokens, and n_batch is 64
    run(engine)
    assert sum(reference.check(s) for s in [*first, late]) <= 1


def test_budget(tiny_target: Any) -> None:
    with closing(load(tiny_target, n_parallel=2, prefill_budget=7)) as llm:
        engine = llm.engine
        one = engine.add([1, 2, 3], GREEDY, max_tokens=100)
        while len(one.generated) < 2:
            engine.step()
        two = engine.add([1] * 50, GREEDY, max_tokens=2)
        reached = []
        while not two.generated:
            engine.step()
            reached.append(two.n_past)
        assert reached[:7] == [7, 14, 21, 28, 35, 42, 49]
        assert not one.is_done


def test_who_comes_together_begins_together(tiny_target: Any) -> None:
    """Sequences that arrive together begin together: prefill uses all rows of a batch until each has a first token."""
    with closing(load(tiny_target, n_parallel=3, prefill_budget=7, n_batch=64)) as llm:
        engine = llm.engine
        sequences = [engine.add([i] * 50, GREEDY, max_tokens=100) for i in (1, 2, 3)]
        for reached in ([50, 14, 0], [51, 50, 27], [52, 51, 34]):
            engine.step()
            assert [s.n_past for s in sequences] == reached


@pytest.mark.parametrize("is_first", [False, True], ids=["after", "before"])
def test_a_short_prompt_passes_a_long_one(tiny_target: Any, is_first: bool) -> None:
    """Each short prompt is read in the next step. As many rows pass the long one as it has, then half of all."""
    with closing(load(tiny_target, n_parallel=3, n_ctx=3 * 1024, n_batch=64, n_ubatch=32)) as llm:
        engine = llm.engine
        if is_first:
            short = engine.add([2] * 20, GREEDY, max_tokens=1, exact=True)
        long = engine.add([1] * 900, GREEDY, max_tokens=1, exact=True)
        if not is_first:
            engine.step()
            short = engine.add([2] * 20, GREEDY, max_tokens=1, exact=True)
        n_steps = n_short = n_passed = 0
        while not long.is_done:
            if short.is_done:
                n_short += 20
                if long.n_past < 300:
                    n_passed += 20
                short = engine.add([n_steps % 50 + 3] * 20, GREEDY, max_tokens=1, exact=True)
            n_past = long.n_past
            engine.step()
            n_steps += 1
            if not short.is_done:
                engine.step()
                assert short.is_done, "it waited for more than one step of the long prompt"
                assert long.n_past - n_past <= 64, "the long prompt's steps became longer"
        assert 900 < n_passed < 1.5 * 900
        assert 1.5 * 900 < n_short < 2.1 * 900


@pytest.mark.parametrize("kernels", ["on", "off"])
def test_a_prompt_alone_is_read_in_ubatches(tmp_path: Path, kernels: str) -> None:
    """A lone prompt has llama.cpp's ubatches if its rows depend on others, and so would its text on a stopwatch.

    Else, where others may come meanwhile, its steps are so short as costs little.
    """
    target = write_target(tmp_path / "target.gguf", ftype="f16")
    options = {"n_ctx": 2048, "n_batch": 512, "n_ubatch": 256, "flash_attn": True, "cpu_kernels": kernels}
    with closing(load(target, n_parallel=2, **options)) as llm:
        assert llm.loaded.batch_invariance.startswith("batch invariant:") == (kernels == "on")
        sizes = []
        for _ in range(3):
            one, reached = llm.engine.add([1] * 600, GREEDY, max_tokens=1, exact=True), [0]
            while not one.is_done:
                llm.engine.step()
                reached.append(one.n_past)
            sizes += [after - before for before, after in pairwise(reached)][:-1]
            llm.engine.clear()
        assert sizes[0] == (128 if kernels == "on" else 256)
        if kernels == "off":
            assert set(sizes) <= {256, 512}


def test_an_error_belongs_to_its_sequence(llm: Eagle3Llama, reference: Reference) -> None:
    class Oops(Exception):
        pass

    def fails_at(n: int) -> Any:
        def processor(ids: Any, scores: Any) -> Any:
            if len(ids) >= n:
                raise Oops(n)
            return scores

        return processor

    engine = llm.engine
    good = [engine.add(text, GREEDY, max_tokens=N) for text in ([1, 2, 3], [4, 5])]
    bad = [
        engine.add([7, 8], Sampling(temperature=0.0, logits_processors=[fails_at(n)]), max_tokens=N) for n in (2, 3, 6)
    ]
    run(engine)
    for n, sequence in zip((0, 1, 4), bad, strict=True):
        assert sequence.result.finish_reason == "error"
        assert isinstance(sequence.result.error, Oops)
        assert len(sequence.generated) == n
    assert sum(reference.check(s) for s in good) <= 1
    for tokens, sampling, error, message in (
        ([], GREEDY, ValueError, "at least one token"),
        ([1, 99999], GREEDY, ValueError, "expected tokens in 0"),
        ([1] * 2000, GREEDY, ContextFullError, "2000 tokens do not fit"),
        ([1], Sampling(grammar='root ::= "a" ('), ValueError, "cannot parse the grammar"),
        ([1], Sampling(logit_bias={99999: 1.0}), ValueError, "logit_bias: expected numbers for tokens in"),
    ):
        with pytest.raises(error, match=message):
            engine.add(tokens, sampling)
    assert not engine.has_work
    for options in ({"temperature": float("nan")}, {"mirostat_mode": 3}):
        with pytest.raises(ValueError, match="expected"):
            Sampling(**options)


def test_a_pass_that_fails_is_taken_back(llm: Eagle3Llama, reference: Reference) -> None:
    """Every sequence goes back to its accepted prefix, and continues."""
    engine = llm.engine
    sequences = [engine.add(text, GREEDY, max_tokens=N) for text in prompts(3, min(llm.n_vocab(), 128))]
    target = engine.target

    class Failing:
        def __init__(self, kind: type[BaseException], after: bool):
            self.kind, self.after = kind, after

        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

        def decode_parts(self, parts: Any) -> None:
            if self.after:
                target.decode_parts(parts)
            raise self.kind("no")

    for i in range(60):
        if i % 3 == 1:
            kind = KeyboardInterrupt if i % 2 else Eagle3Error
            engine.memory.target = Failing(kind, i % 4 == 0)  # type: ignore[assignment]
            if engine.has_work:
                with pytest.raises(kind):
                    engine.step()
            engine.memory.target = target
        engine.step()
    run(engine)
    assert sum(reference.check(s) for s in sequences) <= 1


def test_the_context_is_full(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head, n_ctx=256)) as llm:
        engine = llm.engine
        sequence = engine.add([1, 2, 3], Sampling(temperature=0.0, ignore_eos=True), max_tokens=1000)
        run(engine)
        assert sequence.result.finish_reason == "length"
        assert len(sequence.tokens) == 257  # the last token was sampled and has no room


@pytest.mark.parametrize("draft", ["chain", "tree", "auto"])
def test_preempted_and_resumed(perfect_pair: Any, draft: str) -> None:
    """With a cache for a third of the cells that 12 sequences need, all end with the text that they have alone."""
    texts = prompts(12, length=(20, 60))
    options = {"n_ctx": 512, "n_parallel": 12, "kv_unified": True, "draft": draft}
    with closing(load(*perfect_pair, **options)) as llm, closing(load_plain(perfect_pair[0])) as plain:
        engine = llm.engine
        sampling = Sampling(temperature=0.0, ignore_eos=True)
        sequences = [engine.add(text, sampling, max_tokens=100) for text in texts]
        n_needed = sum(len(text) + 100 for text in texts)
        assert n_needed > 2.5 * llm.n_ctx()
        n_aside = 0
        while engine.has_work:
            engine.step()
            n_aside += sum(s.saved is not None for s in sequences)
        assert n_aside > 0
        n_ties = 0
        for text, s in zip(texts, sequences, strict=True):
            n_ties += is_tie(plain, text, plain_text(plain, text, len(s.generated), llm), s.generated)
        assert all(s.result.finish_reason == "length" for s in sequences)
        assert n_ties <= 1


def plain_text(plain: Any, prompt: list[int], n: int, llm: Eagle3Llama) -> list[int]:
    """Return greedy text that does not end."""
    eog = list(llm.engine.vocab.eog)

    def no_end(ids: Any, scores: Any) -> Any:
        scores[eog] = -np.inf
        return scores

    return take(plain, prompt, n, logits_processor=llama_cpp.LogitsProcessorList([no_end]))


def test_prefixes_are_kept_and_shared(llm: Eagle3Llama, reference: Reference) -> None:
    """The next sequence continues the prefix that a finished one leaves; a running one shares its prefix."""
    engine = llm.engine
    vocab = min(llm.n_vocab(), 128)
    (shared,) = prompts(1, vocab, (100, 101), seed=3)
    first = engine.add(shared, GREEDY, max_tokens=10)
    run(engine)
    longer = [*shared, *first.generated, 5, 6, 7]
    second = engine.add(longer, GREEDY, max_tokens=40)
    engine.step()
    kind = llm.target.rollback_kind
    assert second.result.stats.prompt_tokens <= 16
    while not second.generated:
        engine.step()
    third = engine.add([*shared, 9, 9, 9], GREEDY, max_tokens=10)  # beside the second one, which continues
    run(engine)
    if kind == "trim":
        assert third.result.stats.prompt_tokens <= 5
    assert sum(reference.check(s) for s in (first, second, third)) <= 1


@pytest.mark.parametrize("kv_unified", [False, True])
def test_host_memory(pair: Any, kv_unified: bool) -> None:
    """Prefixes that were evicted from the cache come back from host memory, within its limit."""
    options = {"n_parallel": 2, "n_ctx": 1024, "kv_unified": kv_unified, "draft_n_max": 4}
    with closing(load(*pair, **options, prefix_cache_bytes=64 << 20)) as llm, closing(load_plain(pair[0])) as plain:
        engine = llm.engine
        texts = prompts(6, min(llm.n_vocab(), 128), (100, 120), seed=8)
        answers = []
        for text in texts:
            sequence = engine.add(text, GREEDY, max_tokens=8)
            run(engine)
            answers.append(sequence.generated)
        assert len(engine.slots.cache.tree.hosted) == 4  # two more are in their slots
        assert engine.slots.cache.tree.n_bytes > 0
        for text, answer in zip(texts, answers, strict=True):
            sequence = engine.add([*text, *answer, 1, 2], GREEDY, max_tokens=8)
            run(engine)
            assert sequence.result.stats.prompt_tokens <= 12
            expected = take(plain, sequence.tokens[: sequence.n_prompt], len(sequence.generated))
            assert not is_tie(plain, sequence.tokens[: sequence.n_prompt], expected, sequence.generated)
        tree = engine.slots.cache.tree
        assert tree.n_bytes <= 64 << 20
        n_each = sum(prefix.n_bytes for prefix in tree.hosted) // len(tree.hosted)
        n_state = max((state.n_bytes for state in tree.states), default=0)
        llm.reset()
        assert tree.n_bytes == 0
    with closing(load(*pair, **options, prefix_cache_bytes=1000)) as llm:
        for text in texts:
            llm.engine.add(text, GREEDY, max_tokens=2)
            run(llm.engine)
        assert not llm.engine.slots.cache.tree.hosted  # each of them is too large
        assert llm.engine.slots.cache.n_too_large > 0
    n_bytes = int(1.5 * n_each) + 2 * n_state
    with closing(load(*pair, **options | {"n_parallel": 1}, prefix_cache_bytes=n_bytes)) as llm:
        for text in [*texts[:2], texts[0]]:  # there is room for one: a new entry evicts the one that is read
            sequence = llm.engine.add([*text, 1, 2], GREEDY, max_tokens=2)
            run(llm.engine)
        assert sequence.result.stats.prompt_tokens <= 12
        assert len(llm.engine.slots.cache.tree.hosted) == 1


def test_own_settings(perfect_pair: Any) -> None:
    """Every sequence drafts by its settings, beside others."""
    with closing(load(*perfect_pair, n_parallel=4, kv_unified=True, draft="chain")) as llm:
        engine = llm.engine
        modes = [
            DraftSettings(mode="off"),
            DraftSettings(mode="chain", n_max=2),
            DraftSettings(mode="tree", tree_depth=3, tree_tokens=6),
            DraftSettings(mode="chain", n_max=5),
        ]
        sequences = [engine.add([1, 2, 3], GREEDY, max_tokens=30, draft=draft) for draft in modes]
        run(engine)
        assert len({tuple(s.generated) for s in sequences}) == 1
        lengths = [len(s.result.stats.accepted_per_position) for s in sequences]
        assert lengths == [0, 2, 3, 5]
        assert sequences[0].result.stats.drafted == 0


def test_trees_of_several_sequences(perfect_pair: Any) -> None:
    target, head = perfect_pair
    with (
        closing(load(target, head, n_parallel=3, draft_tree_tokens=6, draft_tree_depth=3, n_ctx=768)) as llm,
        closing(load_plain(target)) as plain,
    ):
        assert llm.target.n_leaves_max > 1
        texts = prompts(6)
        for text, result in zip(texts, llm.generate_batch(texts, temperature=0.0, max_tokens=N), strict=True):
            assert not is_tie(plain, text, take(plain, text, len(result.tokens)), result.tokens)
            assert result.stats.drafted > 2 * result.stats.drafts


def test_auto_respects_n_max_that_was_changed(perfect_pair: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """The limit holds also where trees are possible."""
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path))
    with closing(load(*perfect_pair, draft="auto", draft_n_max=8)) as llm:
        take(llm, [1, 2, 3], 60)
        depth = len(llm.last_stats.accepted_per_position)
        llm.draft_n_max = 2
        take(llm, [1, 2, 3], 60)
        assert len(llm.last_stats.accepted_per_position) <= 2
        llm.draft_n_max = 8
        take(llm, [1, 2, 3], 60)
        assert len(llm.last_stats.accepted_per_position) == depth or depth > 0


def test_seeds_do_not_stay(tiny_target: Any) -> None:
    """A prompt without a seed has the model's, whatever seeds others had before."""
    with closing(load(tiny_target, n_parallel=1)) as llm:
        alone = llm.generate_batch(["x"], max_tokens=N)[0].text
        texts = [r.text for r in llm.generate_batch(["x", "x", "x"], [{"seed": 77}, {}, {"seed": 78}], max_tokens=N)]
        assert texts[1] == alone
        assert texts[0] != alone


def test_room_is_not_reserved(tiny_target: Any) -> None:
    """Sequences that may need more room than there is run together as long as they do not need it."""
    with closing(load(tiny_target, n_parallel=4, n_ctx=512, kv_unified=True)) as llm:
        engine = llm.engine
        for _ in range(4):
            engine.add([1, 2, 3], GREEDY, max_tokens=400)
        engine.step()
        assert engine.n_running == 4


def test_from_another_thread(llm: Eagle3Llama, reference: Reference) -> None:
    """`add` and `cancel` work at any time; a second thread that steps gets an error."""
    engine = llm.engine
    added: list[Sequence] = []
    errors: list[BaseException] = []

    def client() -> None:
        for text in prompts(15, min(llm.n_vocab(), 128), seed=2):
            added.append(engine.add(text, GREEDY, max_tokens=N))
            if len(added) % 5 == 0:
                engine.cancel(added[-2])
            try:
                engine.step()
            except BusyError as e:
                errors.append(e)

    thread = threading.Thread(target=client)
    thread.start()
    while thread.is_alive() or engine.has_work:
        try:
            engine.step()
        except BusyError as e:
            errors.append(e)
    thread.join()
    assert all(s.is_done for s in added)
    assert sum(reference.check(s) for s in added if s.result.finish_reason != "cancelled") <= 1

    def processor(ids: Any, scores: Any) -> Any:
        with pytest.raises(BusyError, match="this Engine is in use"):
            engine.step()
        return scores

    sequence = engine.add([1, 2], Sampling(temperature=0.0, logits_processors=[processor]), max_tokens=2)
    run(engine)
    assert sequence.result.error is None


def test_stream_and_logprobs(perfect_pair: Any) -> None:
    target, head = perfect_pair
    texts = ["abc", "the", "x"]
    with (
        closing(load(target, head, n_parallel=2, draft_n_max=4)) as llm,
        closing(load_plain(target, logits_all=True)) as plain,
    ):
        whole = llm.generate_batch(texts, temperature=0.0, max_tokens=N, logprobs=3)
        pieces: dict[int, str] = {}
        tokens: dict[int, list[int]] = {}
        stream = llm.generate_batch(texts, temperature=0.0, max_tokens=N, stream=True)
        for i, token, text in stream:  # type: ignore[misc]
            pieces[i] = pieces.get(i, "") + text
            tokens.setdefault(i, []).append(token)
        for i, (text, result) in enumerate(zip(texts, whole, strict=True)):
            assert pieces[i] == result.text
            n = len(result.tokens)
            assert tokens[i][:n] == result.tokens
            assert result.logprobs is not None
            assert [entry.token for entry in result.logprobs] == result.tokens
            answer = plain.create_completion(text, temperature=0.0, max_tokens=n, logprobs=3)
            expected = answer["choices"][0]["logprobs"]
            found = [entry.logprob for entry in result.logprobs]
            np.testing.assert_allclose(found, expected["token_logprobs"][: len(found)], atol=1e-3)
            assert all(len(entry.top) == 3 and max(entry.top.values()) >= entry.logprob for entry in result.logprobs)
        # leaving a stream ends all sequences
        stream = llm.generate_batch(texts, temperature=0.0, max_tokens=N, stream=True)
        next(stream)  # type: ignore[call-overload]
        stream.close()  # type: ignore[union-attr]
        assert not llm.engine.has_work


def test_stop_strings_are_held_back(tiny_target: Any) -> None:
    with closing(load(tiny_target, n_parallel=2)) as llm:
        result = llm.generate_batch(["q"], temperature=0.0, max_tokens=40)[0]
        text, raw = result.text, llm.detokenize(result.tokens)
        # invalid UTF-8 is not in the text
        stop = next(text[i : i + 4] for i in range(8, 36) if text[i : i + 4].encode() in raw)
        streamed = ""
        for _, _, piece in llm.generate_batch(["q"], temperature=0.0, max_tokens=40, stop=stop, stream=True):  # type: ignore[misc]
            streamed += piece
            assert stop not in streamed
        assert streamed == text[: text.index(stop)]


def test_generate_beside_the_engine(llm: Eagle3Llama, reference: Reference) -> None:
    """Llama's own context takes slot 0; a sequence that ran there is resumed by itself."""
    engine = llm.engine
    vocab = min(llm.n_vocab(), 128)
    sequences = [engine.add(text, GREEDY, max_tokens=30) for text in prompts(3, vocab)]
    for _ in range(3):
        engine.step()
    prompt = prompts(1, vocab, seed=9)[0]
    expected = take(reference.plain, prompt, 12)
    assert not is_tie(reference.plain, prompt, expected, take(llm, prompt, 12))
    stream = llm.generate(prompt, temp=0.0)
    got = [next(stream) for _ in range(3)]
    engine.step()  # takes the slot again
    run(engine)
    assert sum(reference.check(s) for s in sequences) <= 1
    stream.close()
    assert got == expected[:3]
    assert not is_tie(reference.plain, prompt, expected, take(llm, prompt, 12))
    state = llm.save_state()
    sequences = [engine.add(text, GREEDY, max_tokens=20) for text in prompts(2, vocab, seed=4)]
    engine.step()
    llm.load_state(state)
    run(engine)
    assert sum(reference.check(s) for s in sequences) <= 1


def test_a_batch_leaves_the_outputs_of_others(llm: Eagle3Llama) -> None:
    sequence = llm.engine.add(prompts(1, min(llm.n_vocab(), 128))[0], GREEDY, max_tokens=30)
    llm.generate_batch(["ab", "cd"], temperature=0.0, max_tokens=12)
    assert sequence.generated
    outputs = llm.engine.step()
    while not sequence.is_done:
        outputs += llm.engine.step()
    assert [output.token for output in outputs if output.token is not None] == sequence.generated
    assert {output.sequence for output in outputs} == {sequence}


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_a_generator_goes_on_though_its_slot_was_taken(perfect_pair: Any, n_parallel: int) -> None:
    """Others run in a generator's steps and lose no outputs; the generator's own tokens are evaluated again."""
    target, head = perfect_pair
    texts = prompts(3, length=(20, 40), seed=6)
    with closing(load_plain(target)) as plain, closing(load(target, head, n_parallel=n_parallel, n_ctx=1024)) as llm:
        expected = [take(plain, text, N) for text in texts]
        engine = llm.engine
        stream = llm.generate(texts[0], temp=0.0)
        found = [next(stream) for _ in range(3)]
        sequences = [engine.add(text, Sampling(temperature=0.0, ignore_eos=True), max_tokens=N) for text in texts[1:]]
        tokens: dict[Sequence, list[int]] = {s: [] for s in sequences}
        while engine.has_work:
            for output in engine.step():
                if output.token is not None:
                    tokens[output.sequence].append(output.token)
            found += [next(stream), next(stream)] if len(found) < N - 1 else []
        found += [next(stream) for _ in range(N - len(found))]
        stream.close()
        assert found == expected[0]
        assert llm.n_tokens == len(texts[0]) + N - 1
        assert [tokens[s][:N] for s in sequences] == expected[1:]


def test_rewind(perfect_pair: Any) -> None:
    """A paced sequence continues after fewer tokens like one that never had more."""
    target, head = perfect_pair
    (text,) = prompts(1, length=(30, 31), seed=8)
    with closing(load(target, head, draft_n_max=4)) as llm, closing(load_plain(target)) as plain:
        expected = take(plain, text, N)
        engine = llm.engine
        sequence = Sequence(
            Request(text, seq_id=0),
            max_tokens=N,
            draft=llm.draft_settings,
            chain=SamplerChain(GREEDY, engine.vocab, engine.n_ctx),
            is_paced=True,
        )

        def some(n: int) -> list[int]:
            found: list[int] = []
            while len(found) < n:
                output = engine.next(sequence)
                if output is not None:
                    assert output.token is not None
                    found.append(output.token)
            return found

        assert some(7) == expected[:7]
        assert not engine.has_work  # the sequence is paused
        for n in (5, 2, 0):
            engine.rewind(sequence, len(text) + n)
            assert engine.target.n_past(0) == sequence.n_past <= len(text) + n == len(sequence.tokens)
            assert some(7) == expected[n : n + 7]
        engine.rewind(sequence, 3)
        assert sequence.n_prompt == 3


def test_closing_frees_what_is_cached(tiny_target: Any, tiny_head: Any) -> None:
    """Prefixes may be gigabytes: they go with the model, not when Python collects cycles."""
    llm = load(tiny_target, tiny_head, n_parallel=2)
    llm.generate_batch([[7 * k + i for i in range(40)] for k in range(5)], max_tokens=2, progress=False)
    cache = llm.engine.slots.cache
    assert cache.stats.n_bytes > 0
    llm.close()
    assert (cache.stats.n_bytes, cache.stats.n_prefixes) == (0, 0)


def test_closed(tiny_target: Any, tiny_head: Any) -> None:
    llm = load(tiny_target, tiny_head)
    engine = llm.engine
    engine.add([1, 2], GREEDY)
    llm.close()
    with pytest.raises(Eagle3Error, match="closed"):
        engine.step()
    with pytest.raises(Eagle3Error, match="closed"):
        _ = llm.engine
