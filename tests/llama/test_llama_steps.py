"""Generators that are left, closed, interrupted or disturbed: the context always holds an accepted prefix."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import llama_cpp
import numpy as np
import pytest

from drafting import draft_chain
from faults import watched
from llama_cpp_eagle3 import ContextFullError, Eagle3Error, Eagle3Llama, _core
from loading import load, load_plain, path_of, prompts, take
from tolerance import of_target

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")


@pytest.fixture(params=["random", "row"])
def pair(request: pytest.FixtureRequest, tiny_target: Any, tiny_head: Any, tiny_dir: Any) -> Any:
    """Return a head that is nearly always wrong, and one that is always right."""
    if request.param == "random":
        return tiny_target, tiny_head
    from tiny import write_perfect_pair

    return write_perfect_pair(tiny_dir / "steps.gguf", tiny_dir / "steps-head.gguf")


@pytest.fixture
def llm(pair: Any) -> Iterator[Eagle3Llama]:
    with closing(load(*pair, draft_n_max=4)) as llm:
        yield llm


@pytest.fixture
def plain(pair: Any) -> Iterator[llama_cpp.Llama]:
    with closing(load_plain(pair[0])) as plain:
        yield plain


def check(llm: Eagle3Llama) -> None:
    """Check that target, drafter and token list hold the same prefix, and that the draft is a new drafter's."""
    assert llm.engine.stepper.opened is None
    memory = llama_cpp.llama_get_memory(llm.ctx)
    assert llama_cpp.llama_memory_seq_pos_max(memory, 0) == llm.n_tokens - 1
    assert llm.drafters[0].n_past() == llm.n_tokens
    if llm.n_tokens == 0 or llm.n_tokens > 500:
        return
    fresh = load(llm.model_path, llm.draft_model_path)
    fresh.eval(llm._input_ids.tolist())
    drafters: list[Any] = [fresh.drafters[0], llm.drafters[0]]
    for drafter in drafters:
        draft_chain(drafter, 7, 3)
    np.testing.assert_allclose(drafters[1].draft_logits, drafters[0].draft_logits, atol=of_target(2e-4))
    fresh.close()


@pytest.mark.parametrize("n", range(1, 12))
def test_closed_after_any_token(llm: Eagle3Llama, plain: llama_cpp.Llama, n: int) -> None:
    prompt = [3, 1, 4, 1, 5]
    expected = take(plain, prompt, 30)
    stream = llm.generate(prompt, temp=0.0)
    assert list(islice(stream, n)) == expected[:n]
    stream.close()
    assert llm.n_tokens == len(prompt) + n - 1
    check(llm)
    # exactly the evaluated tokens again: their logits are still there
    context = [*prompt, *expected[: n - 1]]
    assert take(llm, context, 5) == expected[n - 1 :][:5]
    # and with the last token
    assert take(llm, [*prompt, *expected[:n]], 5) == expected[n:][:5]


def test_left_without_closing(llm: Eagle3Llama, plain: llama_cpp.Llama) -> None:
    expected = take(plain, [8, 9], 20)
    stream = llm.generate([8, 9], temp=0.0)
    next(stream)
    next(stream)
    assert take(llm, [7, 9], 20) == take(plain, [7, 9], 20)  # the first stream is still there, half-way
    with pytest.raises(Eagle3Error, match="used for something else"):
        next(stream)
    assert take(llm, [8, 9], 20) == expected
    check(llm)


def test_two_streams_in_turn(llm: Eagle3Llama, plain: llama_cpp.Llama) -> None:
    """The second stream continues the first one's text, so both have the same prefix."""
    expected = take(plain, [8, 9], 40)
    one = llm.generate([8, 9], temp=0.0)
    assert list(islice(one, 7)) == expected[:7]
    two = llm.generate([8, 9, *expected[:7]], temp=0.0)
    assert list(islice(two, 7)) == expected[7:14]
    assert list(islice(one, 7)) == expected[7:14]
    one.close()
    two.close()
    check(llm)


@pytest.mark.parametrize("n", range(1, 8))
def test_state_saved_between_two_tokens(llm: Eagle3Llama, plain: llama_cpp.Llama, n: int) -> None:
    expected = take(plain, [2, 7, 1], 40)
    stream = llm.generate([2, 7, 1], temp=0.0)
    assert list(islice(stream, n)) == expected[:n]
    state = llm.save_state()
    check(llm)
    assert list(islice(stream, 10)) == expected[n : n + 10]
    llm.load_state(state)
    stream.close()
    assert llm.n_tokens == 3 + n - 1
    check(llm)
    assert take(llm, [2, 7, 1, *expected[:n]], 10) == expected[n : n + 10]


def test_state_restored_between_two_tokens(llm: Eagle3Llama, plain: llama_cpp.Llama) -> None:
    """After other work and the restored state, the generator continues as before."""
    expected = take(plain, [2, 7, 1], 40)
    stream = llm.generate([2, 7, 1], temp=0.0)
    assert list(islice(stream, 6)) == expected[:6]
    state = llm.save_state()
    take(llm, [9, 9, 9, 9], 12)
    llm.load_state(state)
    assert list(islice(stream, 20)) == expected[6:26]
    stream.close()
    check(llm)


def test_eval_between_two_tokens(llm: Eagle3Llama, plain: llama_cpp.Llama) -> None:
    """Text that a consumer evaluates itself is taken back when the generator continues."""
    expected = take(plain, [2, 7, 1], 40)
    stream = llm.generate([2, 7, 1], temp=0.0)
    assert list(islice(stream, 6)) == expected[:6]
    llm.eval([1, 2, 3])
    assert list(islice(stream, 20)) == expected[6:26]
    llm.eval([1, 2, 3])
    llm.draft_n_max = 0  # no draft that would have to match
    assert list(islice(stream, 2)) == expected[26:28]
    llm.draft_n_max = 4
    assert list(islice(stream, 8)) == expected[28:36]
    stream.close()
    check(llm)


def test_reset_between_two_tokens(llm: Eagle3Llama) -> None:
    stream = llm.generate([2, 7, 1], temp=0.0)
    list(islice(stream, 6))
    llm.reset()
    with pytest.raises(Eagle3Error, match="used for something else"):
        next(stream)
    assert take(llm, [1, 2], 3)
    check(llm)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_sent_tokens_stand_behind_the_last_one(llm: Eagle3Llama, plain: llama_cpp.Llama, n: int) -> None:
    expected = take(plain, [2, 7, 1], n)
    forced = [11, 12, 13]
    after = take(plain, [2, 7, 1, *expected, *forced], 20)
    stream = llm.generate([2, 7, 1], temp=0.0)
    assert list(islice(stream, n)) == expected
    assert stream.send(forced) == after[0]
    assert list(islice(stream, 19)) == after[1:]
    stream.close()
    check(llm)


def test_n_tokens_set_back(llm: Eagle3Llama, plain: llama_cpp.Llama) -> None:
    """Users of Llama rewind in this way."""
    for model in (plain, llm):
        model.reset()
        model.eval([5, 4, 3, 2, 1])
        model.n_tokens = 3
        model.eval([6, 7])
        model._sampler = None
    assert plain.sample(temp=0.0) == llm.sample(temp=0.0)
    check(llm)


@pytest.mark.parametrize("n_batch", [8, 32, 64])
def test_long_prompts(pair: Any, n_batch: int) -> None:
    """Prompts are longer than n_batch and n_ubatch, at and around the borders."""
    options = {"n_batch": n_batch, "n_ubatch": n_batch // 4}
    with closing(load(*pair, **options)) as llm, closing(load_plain(pair[0], **options)) as plain:
        for n in (n_batch - 1, n_batch, n_batch + 1, 3 * n_batch, 300):
            prompt = prompts(1, length=(n, n + 1), seed=n)[0]
            assert take(llm, prompt, 20) == take(plain, prompt, 20)
            llm.reset()
        take(llm, prompt, 9)
        check(llm)


def collect(model: llama_cpp.Llama, prompt: list[int], error: type[Exception]) -> list[int]:
    """Return all tokens until the error comes."""
    tokens = []
    stream = model.generate(prompt, temp=0.0)
    while len(tokens) < 1000:
        try:
            tokens.append(next(stream))
        except error:
            return tokens
    pytest.fail("no error")


@pytest.mark.parametrize("n_left", range(7))
def test_context_nearly_full(llm: Eagle3Llama, plain: llama_cpp.Llama, n_left: int) -> None:
    n_ctx = llm.n_ctx()
    prompt = prompts(1, length=(n_ctx - n_left, n_ctx - n_left + 1), seed=n_left)[0]
    expected, found = collect(plain, prompt, RuntimeError), collect(llm, prompt, ContextFullError)
    assert found == expected
    assert len(found) == n_left + 1
    assert llm.n_tokens == n_ctx
    check(llm)
    assert take(llm, [1, 2, 3], 5) == take(plain, [1, 2, 3], 5)


def test_context_too_small(llm: Eagle3Llama) -> None:
    take(llm, [1, 2, 3], 5)
    n_tokens = llm.n_tokens
    with pytest.raises(ContextFullError, match="600 tokens do not fit after 0: the context holds 512"):
        take(llm, [1] * 600, 1)
    assert llm.n_tokens == n_tokens  # nothing was lost
    with pytest.raises(ContextFullError, match="510 tokens do not fit after"):
        llm.eval([1] * 510)
    check(llm)
    assert issubclass(ContextFullError, RuntimeError)  # llama_cpp's error


def test_n_ctx_is_rounded_up(tiny_target: Any, tiny_head: Any) -> None:
    """llama.cpp pads the context to 256; Llama's token list is not padded, and fails after n_ctx."""
    with closing(load(tiny_target, tiny_head, n_ctx=100, logits_all=True)) as llm:
        assert llm.n_ctx() == 256
        assert len(take(llm, [1, 2, 3], 200)) == 200
        assert llm.create_completion([1, 2, 3], max_tokens=None)["usage"]["total_tokens"] == 256


def test_prefix_reuse(llm: Eagle3Llama, plain: llama_cpp.Llama) -> None:
    """A conversation that grows, goes back and parts has the same text, and a draft that always matches."""
    rng = np.random.default_rng(1)
    context = prompts(1, seed=1)[0]
    for _ in range(12):
        assert take(llm, context, 6) == take(plain, context, 6)
        check(llm)
        keep = int(rng.integers(1, len(context) + 1))
        context = context[:keep] + rng.integers(0, 256, rng.integers(0, 9)).tolist()
        if len(context) < 3:
            context += [1, 2, 3]
    assert llm.stats.prompt_tokens < 12 * 30


def test_the_same_prompt_again_evaluates_next_to_nothing(llm: Eagle3Llama) -> None:
    prompt = prompts(1, length=(200, 201))[0]
    take(llm, prompt, 8)
    take(llm, prompt, 8)
    assert llm.last_stats.prompt_tokens <= 2


class Interrupting:
    """Wraps a compiled object; the n-th call of a method is interrupted, before it or right after it."""

    def __init__(self, inner: Any, method: str, n: int, after: bool):
        self._inner, self._method, self._left, self._after = inner, method, n, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise KeyboardInterrupt
            # the drafter needs the compiled tap
            result = found(*args, **options)
            if self._left == 0:
                raise KeyboardInterrupt
            return result

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize(
    "method",
    [
        "target.decode_parts",
        "target.truncate",
        "target.argmax",
        "target.accept_batch",
        "drafters.process_batch",
        "policy.propose",
    ],
)
def test_interrupted_anywhere(pair: Any, plain: llama_cpp.Llama, method: str, n: int, after: bool) -> None:
    """Ctrl-C at the worst moment leaves the prefix whole, and the next generation is right."""
    owner, name = method.split(".")
    prompt = prompts(1, length=(40, 41), seed=9)[0]
    expected = take(plain, prompt, 30)
    with closing(load(*pair, n_batch=16, n_ubatch=16)) as llm:
        engine = llm.engine
        target, drafters, policy = engine.target, engine.drafters, engine.drafting.policy
        if owner == "target":
            engine.memory.target = Interrupting(target, name, n, after)
        elif owner == "drafters":
            engine.memory.drafters = watched(drafters, llm.tap, lambda d: Interrupting(d, name, n, after))
        else:
            engine.drafting.policy = Interrupting(policy, name, n, after)
        tokens: list[int] = []
        interrupted = False
        try:
            with closing(llm.generate(prompt, temp=0.0)) as stream:
                for token in islice(stream, 30):
                    tokens.append(token)
        except KeyboardInterrupt:
            interrupted = True
        engine.memory.target, engine.memory.drafters, engine.drafting.policy = target, drafters, policy
        assert interrupted or name == "truncate"  # truncate is only called to go back, or to start over
        assert tokens == expected[: len(tokens)]
        context = llm._input_ids.tolist()
        assert context == [*prompt, *expected][: len(context)]
        # repaired with the next evaluation
        assert take(llm, prompt, 30) == expected
        check(llm)


def test_decoded_behind_our_back(pair: Any) -> None:
    """As the multimodal chat handlers do, other code decodes embeddings between two pieces of text."""

    def feed(model: llama_cpp.Llama) -> list[int]:
        model.reset()
        model._ctx.kv_cache_clear()
        model.eval([1, 2, 3])
        n, n_embd = 4, model.n_embd()
        batch = llama_cpp.llama_batch_init(n, n_embd, 1)
        rows = np.random.default_rng(0).normal(size=(n, n_embd)).astype(np.float32)
        for i in range(n):
            for j in range(n_embd):
                batch.embd[i * n_embd + j] = rows[i, j]
            batch.pos[i], batch.n_seq_id[i], batch.logits[i] = model.n_tokens + i, 1, i == n - 1
            batch.seq_id[i][0] = 0
        batch.n_tokens = n
        assert llama_cpp.llama_decode(model.ctx, batch) == 0
        llama_cpp.llama_batch_free(batch)
        model.n_tokens += n
        return model.input_ids[: model.n_tokens].tolist()

    with closing(load(*pair)) as llm, closing(load_plain(pair[0])) as plain:
        for behind in ([], [4, 5, 6]):
            texts = []
            for model in (plain, llm):
                prompt = feed(model)
                if behind:
                    model.eval(behind)
                    prompt += behind
                texts.append(take(model, prompt, 20))
            assert texts[0] == texts[1]
            assert llm.last_stats.drafted > 0  # the drafter has not read the embeddings: it continues after them
        assert take(llm, [7, 8, 9], 20) == take(plain, [7, 8, 9], 20)
        assert llm.last_stats.drafted > 0
        check(llm)


def test_random_walk(pair: Any, plain: llama_cpp.Llama) -> None:
    """Calls in any order leave an accepted prefix."""
    rng = np.random.default_rng(17)
    with closing(load(*pair, n_batch=32, n_ubatch=16)) as llm:
        state, context = None, prompts(1, seed=3)[0]
        for step in range(60):
            kind = rng.integers(0, 6)
            if kind == 0:
                llm.reset()
            elif kind == 1:
                state = llm.save_state()
            elif kind == 2 and state is not None:
                llm.load_state(state)
            elif kind == 3 and llm.n_tokens < 300:
                llm.eval(rng.integers(0, 256, rng.integers(1, 50)).tolist())
            else:
                if rng.random() < 0.7:
                    context = [*context[: rng.integers(1, len(context) + 1)], *rng.integers(0, 256, 3).tolist()]
                n = int(rng.integers(1, 20))
                assert take(llm, context, n) == take(plain, context, n)
                context += plain._input_ids.tolist()[len(context) :]
                context = context[:400]
            if step % 3 == 0:
                check(llm)


def test_features(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head, draft_n_max=3)) as llm:
        llm.eval([1, 2, 3, 4, 5])
        rows: Any = llm.features
        assert rows.shape == (5, 3, tiny_target.n_embd)
        assert rows.dtype == np.float32
        assert rows.tokens.tolist() == [1, 2, 3, 4, 5]
        assert rows.positions.tolist() == [0, 1, 2, 3, 4]
        assert rows.boundaries == tiny_head.variant.boundaries
        assert rows[1:].tokens is None
        kept = np.array(rows)
        llm.eval([6])
        assert llm.features.tokens.tolist() == [6]
        assert llm.features.positions.tolist() == [5]
        np.testing.assert_array_equal(kept, rows)

        # the same rows from a tap without a head, and other boundaries
        with closing(load(tiny_target, draft_target_layers=[3, 1])) as other:
            other.eval([1, 2, 3, 4, 5])
            assert other.features.boundaries == (3, 1)
            np.testing.assert_array_equal(other.features[:, 0], kept[:, 2])
            np.testing.assert_array_equal(other.features[:, 1], kept[:, 0])
            assert take(other, [1, 2], 3) == take(llm, [1, 2], 3)
    with closing(load(tiny_target)) as bare, pytest.raises(Eagle3Error, match="draft_model_path"):
        _ = bare.features


def test_draft_target_layers_override_the_head_s(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head, draft_target_layers=[0, 2, 4])) as llm:
        assert llm.drafters[0].boundaries == [0, 2, 4]
        take(llm, [1, 2, 3], 9)
        check_rows = llm.features
        assert check_rows.boundaries == (0, 2, 4)
    assert _core.read_head(path_of(tiny_head)).boundaries == [1, 2, 3]


def test_without_reset(llm: Eagle3Llama, plain: llama_cpp.Llama) -> None:
    """`reset=False` puts the tokens after the context's; without tokens, it continues there."""
    for model in (plain, llm):
        model.eval([1, 2, 3])
    assert take(llm, [4, 5], 10, reset=False) == take(plain, [4, 5], 10, reset=False)
    check(llm)
    n_tokens = llm.n_tokens
    last = take(plain, [], 1, reset=False)
    assert take(llm, [], 1, reset=False) == last
    assert llm.n_tokens == n_tokens


def test_freed_at_once(tiny_target: Any, tiny_head: Any) -> None:
    """No reference cycle keeps the models until the garbage collector runs."""
    llm = load(tiny_target, tiny_head)
    take(llm, [1, 2, 3], 10)
    llm("the self", max_tokens=3)
    gone = weakref.ref(llm)
    del llm
    assert gone() is None
