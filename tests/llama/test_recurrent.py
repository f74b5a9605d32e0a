"""`Eagle3Llama` with recurrent targets: rejected tokens are taken back by snapshots or checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import llama_cpp
import numpy as np
import pytest

from drafting import draft_chain
from llama_cpp_eagle3 import Eagle3Error, Eagle3Llama, _core
from llama_cpp_eagle3.engine.draft import Draft
from llama_cpp_eagle3.model.plan import N_SNAPSHOTS
from loading import Drafts, is_tie, load, load_plain, prompts, take
from random_arch import N_VOCAB
from recurrent_pairs import KINDS, write_pair

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

OPTIONS = {"n_ctx": 256}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    return request.param, *write_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def models(pair: Any) -> Iterator[tuple[llama_cpp.Llama, Eagle3Llama]]:
    _, target, head = pair
    with closing(load_plain(target, **OPTIONS)) as plain, closing(load(target, head, draft_n_max=5, **OPTIONS)) as llm:
        yield plain, llm


def some_right(llm: Eagle3Llama, context: list[int], rng: np.random.Generator) -> Any:
    """Return a drafter that knows the answer and errs now and then."""

    def draft(id_last: int, n_room: int) -> Draft:
        n_max = min(llm.draft_n_max, n_room)
        draft_chain(llm.drafters[0], id_last, n_max)
        right = context[llm.n_tokens + 1 :][:n_max]
        return Draft.chain([t if rng.random() < 0.7 else (t + 1) % N_VOCAB for t in right])

    return draft


def test_told_at_load(pair: Any, caplog: pytest.LogCaptureFixture) -> None:
    arch, target, head = pair
    caplog.set_level("INFO", "llama_cpp_eagle3")
    with closing(load(target, head, draft_n_max=5, verbose=True, **OPTIONS)) as llm:
        assert llm.target.rollback_kind == KINDS[arch]
        assert llm.loaded.n_state_bytes > 1000
        line = f"rejected tokens go by {KINDS[arch]}, {llm.loaded.n_state_bytes} bytes of state per sequence"
        assert line in caplog.text
        n_rs_seq = llama_cpp.llama_cpp._lib.llama_n_rs_seq
        n_rs_seq.argtypes, n_rs_seq.restype = (llama_cpp.llama_context_p_ctypes,), llama_cpp.ctypes.c_uint32
        assert n_rs_seq(llm.ctx) == llm.target.n_snapshots == (N_SNAPSHOTS if KINDS[arch] == "snapshots" else 0)


@pytest.mark.parametrize(("draft", "n_parallel", "n_kept"), [("auto", 4, 1), ("auto", 5, 0), ("chain", 5, 1)])
def test_snapshots_of_several_sequences(request: Any, pair: Any, draft: str, n_parallel: int, n_kept: int) -> None:
    """On a CPU `auto` keeps no snapshots of many sequences, since it rarely drafts for them."""
    arch, target, head = pair
    with closing(load(target, head, draft=draft, n_parallel=n_parallel, **OPTIONS)) as llm:
        n_kept = max(n_kept, any(place in request.node.name for place in ("both-on-rpc", "on-gpu")))
        assert llm.target.n_snapshots == (n_kept if KINDS[arch] == "snapshots" else 0)


def test_lossless(models: Any) -> None:
    plain, llm = models
    rng = np.random.default_rng(0)
    n_ties = 0
    for prompt in prompts(6, N_VOCAB):
        expected = take(plain, prompt, 70)
        n_ties += is_tie(plain, prompt, expected[:60], take(llm, prompt, 60))
        assert llm.last_stats.drafted > 100 or llm.target.rollback_kind == "checkpoint"
        llm.engine.drafting.override = Drafts(some_right(llm, [*prompt, *expected], rng))
        n_ties += is_tie(plain, prompt, expected[:60], take(llm, prompt, 60))
        assert 0.2 < llm.last_stats.draft_acceptance_rate < 0.8
        llm.engine.drafting.override = None
    assert n_ties <= 2


def test_trees_become_chains(pair: Any) -> None:
    _, target, head = pair
    prompt = prompts(1, N_VOCAB)[0]
    with closing(load_plain(target, **OPTIONS)) as plain:
        expected = take(plain, prompt, 30)
        for options in ({"draft": "tree"}, {"draft_tree_depth": 6}):
            with closing(load(target, head, **OPTIONS | options)) as llm:
                assert not is_tie(plain, prompt, expected, take(llm, prompt, 30))
                assert len(llm.last_stats.accepted_per_position) == llm.draft_tree_depth
        # auto before any measurement
        with closing(load(target, head, draft="auto", draft_n_max=1, **OPTIONS)) as llm:
            llm.eval(prompt[:-1])
            with closing(llm.generate(prompt[-1:], temp=0.0, reset=False)) as stream:
                assert [next(stream) for _ in range(30)] == expected


def test_longer_than_at_load(models: Any) -> None:
    """The length of a draft is not limited by the one at load."""
    plain, llm = models
    expected = take(plain, [1, 2, 3], 40)
    llm.engine.drafting.override = Drafts(some_right(llm, [1, 2, 3, *expected], np.random.default_rng(2)))
    llm.draft_n_max = 12
    assert take(llm, [1, 2, 3], 30) == expected[:30]
    assert len(llm.last_stats.accepted_per_position) == 12


def test_same_and_longer_prompts_are_reused(models: Any) -> None:
    plain, llm = models
    prompt = prompts(1, N_VOCAB, (100, 101))[0]
    expected = take(plain, prompt, 20)
    for _ in range(2):
        assert take(llm, prompt, 20) == expected
    assert llm.last_stats.prompt_tokens <= 2
    longer = [*prompt, 1, 2, 3]
    assert take(llm, longer, 20) == take(plain, longer, 20)
    assert llm.last_stats.prompt_tokens <= 5


@pytest.mark.parametrize("n_open", [1, 2, 3, 5])
def test_states(models: Any, n_open: int) -> None:
    """A state is saved in the middle of a step, replay included."""
    plain, llm = models
    prompt = prompts(1, N_VOCAB, seed=4)[0]
    expected = take(plain, prompt, 40)
    llm.engine.drafting.override = Drafts(some_right(llm, [*prompt, *expected], np.random.default_rng(n_open)))
    stream = llm.generate(prompt, temp=0.0)
    tokens = [next(stream) for _ in range(n_open + 10)]
    assert tokens == expected[: n_open + 10]
    state = llm.save_state()
    assert [next(stream) for _ in range(5)] == expected[n_open + 10 : n_open + 15]
    stream.close()
    llm.engine.drafting.override = None
    take(llm, [3, 2, 1], 10)
    llm.load_state(state)
    assert llm.drafters[0].n_past() == llm.n_tokens == state.n_tokens
    # the last token was sampled but not evaluated: the prompt continues where the state ends
    assert take(llm, [*prompt, *tokens], 10) == expected[n_open + 10 : n_open + 20]
    assert llm.last_stats.prompt_tokens <= 2
    assert llm.last_stats.drafted > 0


def test_interrupted_decode_is_mended(models: Any) -> None:
    """A batch that no step knows of is in memory: tokens that cannot be taken back are evaluated again."""
    plain, llm = models
    prompt = prompts(1, N_VOCAB, seed=5)[0]
    expected = take(plain, prompt, 30)
    stream = llm.generate(prompt, temp=0.0)
    tokens = [next(stream) for _ in range(8)]
    stream.close()
    llm.target.decode_parts([_core.BatchPart(0, llm.n_tokens, [1], [2, 3, 4])])
    llm.eval([tokens[-1]])
    assert take(llm, [*prompt, *tokens], 20) == expected[8:28]


def test_plain(pair: Any) -> None:
    """The same engine runs without a head."""
    _, target, _ = pair
    with closing(load_plain(target, **OPTIONS)) as plain, closing(load(target, **OPTIONS)) as llm:
        assert take(llm, [1, 5, 9, 13], 40) == take(plain, [1, 5, 9, 13], 40)


@pytest.mark.parametrize(("n_parallel", "n_states"), [(1, 3), (2, 1)])
def test_small_passes(pair: Any, n_parallel: int, n_states: int) -> None:
    """An n_ubatch for which llama.cpp would abort is an error with the least one that will do; with that it runs."""
    arch, target, head = pair
    options = {**OPTIONS, "n_parallel": n_parallel, "draft": "chain", "draft_n_max": 3}
    least = n_states + 2 if KINDS[arch] == "snapshots" else n_parallel
    for n_ubatch in range(n_parallel, least):
        expected = rf"n_ubatch = {n_ubatch}: .* needs n_ubatch and n_batch of at least {least}"
        with pytest.raises(Eagle3Error, match=expected):
            load(target, head, n_ubatch=n_ubatch, **options)
    with closing(load(target, head, n_ubatch=least, **options)) as llm:
        assert len(take(llm, prompts(1)[0], 12)) == 12
