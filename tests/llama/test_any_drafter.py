"""Every drafter except heads: texts, sequences, prompts, n-grams beside it, noise, states."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from drafter_kinds import KINDS, Kind
from llama_cpp_eagle3 import Eagle3Llama
from loading import cheap_rows, is_tie, load, load_dice, load_plain, prompts, take

pytestmark = pytest.mark.usefixtures("no_clock")  # else a slow machine decides what is drafted

N_TOKENS = 40
TREE = {"draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}


class Pair:
    """The files of a kind of drafter."""

    def __init__(self, kind: Kind, folder: Path):
        self.kind = kind
        self.target, self.drafter = kind.write(folder)

    def load(self, **options: Any) -> Eagle3Llama:
        """Load the pair, with chains by default."""
        return load(self.target, self.drafter, **{"draft": "chain", "draft_n_max": self.kind.n_max} | options)

    def check_share(self, llm: Eagle3Llama) -> None:
        """Check that enough of the drafted tokens are accepted."""
        found, is_chain = llm.stats.of(self.kind.source), llm.draft == "chain" or llm.target.n_leaves_max == 1
        assert found.accepted > (self.kind.share if is_chain else self.kind.tree_share) * found.drafted > 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafters")


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, folder: Path) -> Pair:
    return Pair(KINDS[request.param], folder)


@pytest.mark.parametrize("mode", ["chain", "tree", "auto"])
def test_greedy_text_is_that_of_plain_llama_cpp(pair: Pair, mode: str) -> None:
    plain = load_plain(pair.target)
    options = {"chain": {}, "tree": TREE | {"draft": "tree", "draft_n_max": None}, "auto": {"draft": "auto"}}[mode]
    with pair.load(**options) as llm:
        assert llm.draft_sources == (pair.kind.source, "ngram", "grammar")
        if mode == "auto":
            cheap_rows(llm)  # else the drafts depend on the machine
        for prompt in prompts(3):
            is_tie(plain, prompt, take(plain, prompt, N_TOKENS), take(llm, prompt, N_TOKENS))
        pair.check_share(llm)


@pytest.mark.parametrize("kv_unified", [True, False], ids=["pooled", "split"])
@pytest.mark.parametrize("mode", ["chain", "auto"])
def test_sequences_of_a_batch(pair: Pair, mode: str, kv_unified: bool) -> None:
    """Each text is plain llama_cpp's, and drafts are accepted as if it were alone."""
    plain = load_plain(pair.target)
    texts = prompts(6, seed=1)
    with pair.load(n_parallel=3, kv_unified=kv_unified, draft=mode) as llm:
        if mode == "auto":
            cheap_rows(llm)
        outputs = llm.generate_batch(texts, max_tokens=N_TOKENS, temperature=0.0)
        for prompt, output in zip(texts, outputs, strict=True):
            is_tie(plain, prompt, take(plain, prompt, len(output.tokens)), output.tokens)
        pair.check_share(llm)


def test_prompts_longer_than_a_batch(pair: Pair) -> None:
    plain = load_plain(pair.target, n_batch=16, n_ubatch=8)
    (prompt,) = prompts(1, length=(100, 101), seed=2)
    with pair.load(n_batch=16, n_ubatch=8) as llm:
        is_tie(plain, prompt, take(plain, prompt, N_TOKENS), take(llm, prompt, N_TOKENS))
        pair.check_share(llm)


def test_mixed_with_ngrams(pair: Pair) -> None:
    """In a text that repeats itself both draft, and the text stays."""
    plain = load_plain(pair.target)
    (start,) = prompts(1, length=(20, 21), seed=5)
    with pair.load(draft="auto") as llm:
        cheap_rows(llm)
        for prompt in (start * 3, [*start, *take(plain, start, 20), *start]):
            is_tie(plain, prompt, take(plain, prompt, N_TOKENS), take(llm, prompt, N_TOKENS))
        assert llm.stats.of("ngram").drafted > 0
        assert llm.stats.of(pair.kind.source).drafted > 0


def test_sampled_text_is_the_same_with_drafts(pair: Pair) -> None:
    """The text for a seed is the same, as the drafter knows the noise."""
    plain = load_dice(pair.target)
    options = {"temp": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    with pair.load() as llm:
        for seed, prompt in enumerate(prompts(3, seed=6)):
            for one in (plain, llm):
                one.set_seed(seed)
            assert take(llm, prompt, N_TOKENS, **options) == take(plain, prompt, N_TOKENS, **options)
        assert llm.stats.of(pair.kind.source).accepted > 0


def test_states_and_going_back(pair: Pair) -> None:
    """A saved context continues with drafts, in another object and a pickled one; a prompt's known beginning stays."""
    (prompt,) = prompts(1, seed=3)
    with pair.load() as llm, pair.load() as other:
        text = take(llm, prompt, N_TOKENS)
        llm.reset()
        llm.eval(prompt)
        other.load_state(llm.save_state())
        assert other.drafters[0].n_past(0) == len(prompt)
        stream = other.generate(prompt, temp=0.0, reset=True)
        assert [next(stream) for _ in range(N_TOKENS)] == text
        stream.close()
        pair.check_share(other)
        assert take(other, [*prompt, *text[:20]], N_TOKENS)[:20] == text[20:]
        with pickle.loads(pickle.dumps(llm)) as third:
            assert third.draft_sources == llm.draft_sources
            assert take(third, prompt, N_TOKENS) == text
