"""Sampled text for a seed is the same with any drafts, in any company: plain llama_cpp's with NumPy's noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

import dflash
import mtp
from head_variants import VARIANTS
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import Sampling, Sequence, Shift
from loading import cheap_rows, load, load_dice, load_plain, logits_at, prompts, take
from small import write_small_pair
from tiny import write_head

pytestmark = pytest.mark.usefixtures("no_clock")

N = 24
N_CTX, N_KEEP, N_SHIFTED = 256, 4, 250
"""Sizes of texts whose context is shifted."""
HOT: dict[str, Any] = {"temperature": 6.0, "top_p": 1.0, "min_p": 0.0}
"""Options: a head that knows a perfect pair's greatest logit is right 4 times of 5; top-p would leave no other."""
PENALTIES = {"repeat_penalty": 1.3, "frequency_penalty": 0.2}
TREE = {"draft": "tree", "draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}
WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "off": {"draft_n_max": 0},
    "chain of 1": {"draft_n_max": 1},
    "chain of 6": {"draft_n_max": 6},
    "sure ones": {"draft_n_max": 4, "draft_p_min": 0.3},
    "tree": TREE,
    "auto": {"draft": "auto", "draft_sources": ("eagle3",)},
    "ngram": {"draft": "auto", "draft_sources": ("ngram",)},
    "both": {"draft": "auto", "draft_sources": ("eagle3", "ngram")},
    "all": {"draft": "auto"},
    "no head": {"draft": "auto"},
    "draft_model": {"draft_model": LlamaPromptLookupDecoding(num_pred_tokens=4)},
}
NO_HEAD = ("none", "no head", "draft_model")


@dataclass
class Pair:
    """A target, its head, and the texts of each prompt in each way to sample; the prompt's index is the seed."""

    target: Any
    head: Any
    prompts: list[list[int]]
    options: list[dict[str, Any]]
    texts: list[list[list[int]]]

    def load(self, way: str, **options: Any) -> Eagle3Llama:
        """Load the pair so that it drafts in this way."""
        llm = load(self.target, None if way in NO_HEAD else self.head, **WAYS[way] | options)
        if WAYS[way].get("draft") == "auto":
            cheap_rows(llm)
        return llm


@pytest.fixture(scope="module")
def pair(perfect_pair: Any) -> Pair:
    return make_pair(*perfect_pair, options=[HOT, HOT | {"top_k": 0, "temperature": 6.5}, HOT | PENALTIES])


@pytest.fixture(scope="module")
def random_pair(tiny_target: Any, tiny_head: Any) -> Pair:
    return make_pair(tiny_target, tiny_head, [{"temperature": 0.8}, {"temperature": 1.1, "top_k": 0}, PENALTIES])


@pytest.fixture(scope="module")
def block_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    able = dflash.write_able(tmp_path_factory.mktemp("dflash"))
    hot = {"temperature": 3.0, "top_p": 1.0, "min_p": 0.0}
    return make_pair(able.target, able.drafter, [hot, hot | {"top_k": 0}, hot | PENALTIES])


def make_pair(target: Any, head: Any, options: list[dict[str, Any]]) -> Pair:
    # ends that occurred before, for drafts from n-grams
    texts = [[*text, *text[:9], *text[3:10]] for text in prompts(8, n_vocab=100, length=(12, 30), seed=7)]
    with closing(load_dice(target)) as dice:
        no_end = without(dice.token_eos())

        def text_of(prompt: list[int], seed: int, how: dict[str, Any]) -> list[int]:
            dice.set_seed(seed)
            return take(dice, prompt, N, logits_processor=[no_end], **plain(how))

        found = [[text_of(prompt, seed, how) for seed, prompt in enumerate(texts)] for how in options]
    assert all(len({tuple(text) for text in row}) == len(texts) for row in found)
    assert all(a != b for a, b in pairwise(found))
    return Pair(target, head, texts, options, found)


def without(token: int) -> Callable[[Any, Any], Any]:
    """Return a logits processor that forbids a token."""

    def forbid(ids: Any, scores: Any) -> Any:
        scores[token] = -np.inf
        return scores

    return forbid


def plain(options: dict[str, Any]) -> dict[str, Any]:
    return {"temp" if name == "temperature" else name: value for name, value in options.items()}


def check_each(pair: Pair, way: str) -> None:
    with closing(pair.load(way)) as llm:
        for options, expected in zip(pair.options, pair.texts, strict=True):
            for seed, prompt in enumerate(pair.prompts[:3]):
                llm.set_seed(seed)
                assert take(llm, prompt, N, ignore_eos=True, **plain(options)) == expected[seed]
        assert (llm.stats.drafted > 0) == (way not in ("none", "off"))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "all"])
def test_whatever_is_drafted(pair: Pair, way: str) -> None:
    check_each(pair, way)


@pytest.mark.parametrize("way", ["chain of 6", "tree", "both"])
def test_whatever_a_random_head_drafts(random_pair: Pair, way: str) -> None:
    check_each(random_pair, way)


@pytest.mark.parametrize("way", ["chain of 6", "sure ones", "tree", "all"])
def test_a_block_drafter(block_pair: Pair, way: str) -> None:
    check_each(block_pair, way)
    test_in_a_batch(block_pair, way, 8)
    test_preempted(block_pair, way)
    assert shifted(block_pair, way).generated == shifted(block_pair, "none").generated


@pytest.fixture(scope="module", params=["p_eagle", "kimi", "small", "mtp"])
def other_pair(request: pytest.FixtureRequest, tiny_target: Any, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return a pair with a parallel head, latent attention, a small model, or the target's own block."""
    folder = tmp_path_factory.mktemp("other")
    target: Any
    drafter: Any
    if request.param == "small":
        target, drafter = write_small_pair(folder)
    elif request.param == "mtp":
        target, drafter = str(mtp.write_able(folder, "glm4moe-mtp")), None
    else:
        target, drafter = tiny_target, write_head(folder / "head.gguf", tiny_target, **VARIANTS[request.param])
    hot = {"temperature": 2.0, "top_p": 1.0, "min_p": 0.0}
    return make_pair(target, drafter, [hot, hot | PENALTIES])


@pytest.mark.parametrize("way", ["chain of 6", "tree", "all"])
def test_other_drafters(other_pair: Pair, way: str) -> None:
    check_each(other_pair, way)
    test_in_a_batch(other_pair, way, 8)


@pytest.mark.parametrize("way", ["none", "chain of 6", "tree", "both"])
@pytest.mark.parametrize("n", [1, 8])
def test_in_a_batch(pair: Pair, way: str, n: int) -> None:
    for unified in (True, False) if n > 1 and way != "tree" else (True,):
        with closing(pair.load(way, n_parallel=n, kv_unified=unified, n_ctx=256 * n)) as llm:
            for options, expected in zip(pair.options, pair.texts, strict=True):
                found = []
                for i in range(0, len(pair.prompts), n):
                    each = [options | {"seed": seed} for seed in range(i, i + n)]
                    found += llm.generate_batch(pair.prompts[i : i + n], each, max_tokens=N, ignore_eos=True)
                assert [result.tokens[:N] for result in found] == expected  # a character may have been completed
            assert way == "none" or llm.stats.drafted > 0


@pytest.mark.parametrize("way", ["none", "chain of 6", "tree", "both"])
def test_preempted(pair: Pair, way: str) -> None:
    """All lose their slots every few steps, with more sequences than slots; lost prefixes are evaluated again."""
    with closing(pair.load(way, n_parallel=3, kv_unified=True, n_ctx=384, prefix_cache_bytes=0)) as llm:
        engine = llm.engine
        for options, expected in zip(pair.options, pair.texts, strict=True):
            sequences = [
                engine.add(prompt, Sampling(seed=seed, ignore_eos=True, **options), max_tokens=N)
                for seed, prompt in enumerate(pair.prompts)
            ]
            for i in range(10_000):
                if not engine.has_work:
                    break
                engine.step()
                if i % 7 == 6:
                    engine.preempt_all()
            assert [s.generated[:N] for s in sequences] == expected


def shifted(pair: Pair, way: str) -> Sequence:
    """Return a text that is longer than the context."""
    prompt = prompts(1, n_vocab=100, length=(150, 151))[0]
    with closing(pair.load(way, n_ctx=N_CTX)) as llm:
        engine = llm.engine
        s = engine.add(prompt, Sampling(seed=5, ignore_eos=True, **HOT), max_tokens=N_SHIFTED, shift=Shift(N_KEEP))
        while not s.is_done:
            engine.step()
        return s


@pytest.fixture(scope="module")
def shifted_text(pair: Pair) -> list[int]:
    """Return the text in a context that is shifted several times, piece by piece by plain llama_cpp."""
    prompt = prompts(1, n_vocab=100, length=(150, 151))[0]
    left, text = list(prompt), list[int]()
    n_cuts = 0
    with closing(load_dice(pair.target, n_ctx=2 * N_CTX)) as dice:
        dice.set_seed(5)
        no_end = without(dice.token_eos())
        while len(text) < N_SHIFTED:
            dice.n_drawn = len(text)
            n_more = min(N_CTX + 1 - len(left), N_SHIFTED - len(text))
            text += take(dice, left, n_more, **plain(HOT), logits_processor=[no_end])
            left += text[-n_more:]
            del left[N_KEEP : N_KEEP + (N_CTX - N_KEEP) // 2]
            n_cuts += 1
    assert n_cuts > 2
    return text


@pytest.mark.parametrize("way", ["none", "chain of 6", "tree", "both"])
def test_when_the_context_shifts(pair: Pair, shifted_text: list[int], way: str) -> None:
    s = shifted(pair, way)
    assert s.n_generated == N_SHIFTED
    assert s.generated == shifted_text[N_SHIFTED - len(s.generated) :]


@pytest.mark.parametrize("way", ["chain of 6", "tree", "both"])
def test_pairs_of_tokens_have_their_law(random_pair: Pair, way: str) -> None:
    """Two tokens of many seeds, drafted or not, have the exact probabilities of plain llama_cpp's logits."""
    n_texts, top_k, prompt = 800, 3, random_pair.prompts[0]
    temperature = 1.5
    with closing(load_plain(random_pair.target)) as llm:

        def law(tokens: list[int]) -> dict[int, float]:
            logits = logits_at(llm, tokens).astype(np.float64)
            best = np.argsort(-logits)[:top_k]
            p = np.exp((logits[best] - logits.max()) / temperature)
            return dict(zip(best.tolist(), (p / p.sum()).tolist(), strict=True))

        first = law(prompt)
        expected = {(a, b): p * q for a, p in first.items() for b, q in law([*prompt, a]).items()}
    options: Any = {"temperature": temperature, "top_k": top_k, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}
    with closing(random_pair.load(way, n_parallel=8, kv_unified=True, n_ctx=1024)) as llm:
        seeds: Any = [{"seed": seed} for seed in range(n_texts)]
        found = llm.generate_batch([prompt] * n_texts, seeds, max_tokens=4, **options)
        assert llm.stats.accepted > 0
    counts = Counter(tuple(result.tokens[:2]) for result in found)
    assert set(counts) <= set(expected)
    chi2 = sum((counts[pair] - n_texts * p) ** 2 / (n_texts * p) for pair, p in expected.items())
    assert chi2 < 27.9  # 9 pairs, 8 degrees of freedom: one in two thousand, and the seeds are fixed


def test_log_probabilities_are_those_without_drafts(pair: Pair) -> None:
    """The texts and their log probabilities are the same with drafts."""
    found = {}
    for way in ("none", "chain of 6", "tree", "both"):
        with closing(pair.load(way, n_parallel=8, kv_unified=True, n_ctx=2048)) as llm:
            seeds: Any = [{"seed": seed} for seed in range(8)]
            results = llm.generate_batch(pair.prompts, seeds, max_tokens=N, logprobs=0, ignore_eos=True, **HOT)
            found[way] = [[entry.logprob for entry in result.logprobs[:N]] for result in results]
    for way, expected in found.items():
        assert np.mean(expected) < -0.5, way
        np.testing.assert_allclose(found["none"], expected, atol=2e-3, err_msg=way)
