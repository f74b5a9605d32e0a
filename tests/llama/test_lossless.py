"""With any drafts the output is the target's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import llama_cpp
import numpy as np
import pytest

from drafting import draft_chain
from head_variants import MLA
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine.draft import Draft
from loading import Drafts, bundled_pair, is_tie, load, load_plain, prompts, take
from tiny import write_head, write_target

N_PROMPTS, N_TRAINED, N_TOKENS = 50, 25, 128


class Reference:
    """A target, and plain llama_cpp's texts after some prompts."""

    def __init__(self, target: Any, head: Any, texts: list[list[int]], n_ctx: int = 512):
        self.target, self.head, self.prompts, self.n_ctx = target, head, texts, n_ctx
        self.llm = load_plain(target, n_ctx=n_ctx)
        self.expected = [take(self.llm, p, N_TOKENS) for p in texts]


@pytest.fixture(scope="module")
def random_reference(tiny_target: Any, tiny_head: Any) -> Iterator[Reference]:
    """Return the reference of a head that is nearly always wrong."""
    reference = Reference(tiny_target, tiny_head, prompts(N_PROMPTS))
    yield reference
    reference.llm.close()


@pytest.fixture(scope="module")
def perfect_reference(perfect_pair: Any) -> Iterator[Reference]:
    """Return the reference of a head that is always right."""
    reference = Reference(*perfect_pair, texts=prompts(N_PROMPTS))
    yield reference
    reference.llm.close()


@pytest.fixture(scope="module")
def trained_reference() -> Iterator[Reference]:
    """Return the reference of the bundled pair, on code that it was not trained on."""
    from llama_cpp_eagle3.models import heldout_prompts

    target, head = bundled_pair()
    with closing(load_plain(target, vocab_only=True)) as llm:
        texts = [llm.tokenize(text.encode()) for text in heldout_prompts()]
    # the texts after 24, 48, ... tokens of each
    texts = [text[:n] for n in (24, 48, 72, 96) for text in texts if len(text) >= n]
    assert len(texts) >= N_TRAINED
    reference = Reference(target, head, texts[:N_TRAINED])
    yield reference
    reference.llm.close()


def compare(reference: Reference, n_max: int, n_prompts: int = N_PROMPTS) -> Eagle3Llama:
    """Generate after the prompts and compare; return the model for its figures, closed."""
    llm = load(reference.target, reference.head, draft_n_max=n_max, n_ctx=reference.n_ctx)
    try:
        found = [take(llm, p, N_TOKENS) for p in reference.prompts[:n_prompts]]
    finally:
        llm.close()
    triples = zip(reference.prompts, reference.expected, found, strict=False)
    n_ties = sum(is_tie(reference.llm, p, e, f) for p, e, f in triples)
    assert n_ties <= 5  # each tie is checked; kernels of other instruction sets have others
    return llm


@pytest.mark.parametrize("n_max", range(1, 9))
def test_random_head(random_reference: Reference, n_max: int) -> None:
    llm = compare(random_reference, n_max)
    assert llm.stats.draft_acceptance_rate < 0.05


@pytest.mark.parametrize("n_max", range(1, 9))
def test_perfect_head(perfect_reference: Reference, n_max: int) -> None:
    llm = compare(perfect_reference, n_max)
    assert llm.stats.draft_acceptance_rate > 0.99
    assert llm.stats.mean_acceptance_length > 0.9 * (n_max + 1)


@pytest.mark.slow
@pytest.mark.parametrize("n_max", [1, 2, 4, 8])
def test_trained_head(trained_reference: Reference, n_max: int) -> None:
    llm = compare(trained_reference, n_max)
    assert 0.1 < llm.stats.draft_acceptance_rate < 0.99


TREES = [(1, 4, 4), (3, 2, 6), (4, 3, 12), (6, 8, 24)]


def compare_trees(reference: Reference, shape: tuple[int, int, int], n_prompts: int = 15) -> Eagle3Llama:
    """Compare as `compare` does, with trees of (depth, top_k, tokens)."""
    depth, topk, n_tokens = shape
    options = {"draft_tree_depth": depth, "draft_tree_topk": topk, "draft_tree_tokens": n_tokens}
    llm = load(reference.target, reference.head, n_ctx=reference.n_ctx, **options)
    try:
        found = [take(llm, p, N_TOKENS) for p in reference.prompts[:n_prompts]]
        assert llm.draft == "tree"
    finally:
        llm.close()
    triples = zip(reference.prompts, reference.expected, found, strict=False)
    assert sum(is_tie(reference.llm, p, e, f) for p, e, f in triples) <= 5
    return llm


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_trees_of_a_random_head(random_reference: Reference, shape: tuple[int, int, int]) -> None:
    llm = compare_trees(random_reference, shape)
    assert llm.stats.drafted > 0.9 * shape[2] * llm.stats.steps


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_trees_of_a_perfect_head(perfect_reference: Reference, shape: tuple[int, int, int]) -> None:
    llm = compare_trees(perfect_reference, shape)
    assert llm.stats.mean_acceptance_length > 0.9 * (shape[0] + 1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", TREES, ids=str)
def test_trees_of_a_trained_head(trained_reference: Reference, shape: tuple[int, int, int]) -> None:
    """In real trees other branches than the first are accepted too."""
    llm = compare_trees(trained_reference, shape, 8)
    chain = compare(trained_reference, shape[0], 8)
    assert llm.stats.mean_acceptance_length > chain.stats.mean_acceptance_length


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_drafts_that_are_right_now_and_then(tiny_target: Any, tiny_head: Any, rate: float) -> None:
    """Every pattern of acceptance occurs, by a drafter that knows the answer and errs at random."""
    plain, rng = load_plain(tiny_target), np.random.default_rng(5)
    llm = load(tiny_target, tiny_head, draft_n_max=5)
    for prompt in prompts(20, seed=5):
        expected = take(plain, prompt, N_TOKENS + 8)
        context = [*prompt, *expected]

        def draft(id_last: int, n_room: int, context: list[int] = context) -> Draft:
            n_max = min(llm.draft_n_max, n_room)
            draft_chain(llm.drafters[0], id_last, n_max)  # the drafter's state must survive any outcome
            right = context[llm.n_tokens + 1 :][:n_max]
            return Draft.chain([t if rng.random() < rate else (t + 1) % 320 for t in right])

        llm.engine.drafting.override = Drafts(draft)
        found = take(llm, prompt, N_TOKENS)
        assert not is_tie(plain, prompt, expected[:N_TOKENS], found)
        assert llm.drafters[0].n_past() == llm.n_tokens
    mean = sum(rate**i for i in range(1, 6)) / 5  # a draft counts up to its first error
    assert llm.stats.draft_acceptance_rate == pytest.approx(mean, abs=0.05)
    llm.engine.drafting.override = None
    llm.close()
    plain.close()


@pytest.mark.parametrize(
    "options",
    [
        {"temp": 0.8},
        {"temp": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temp": 0.8, "repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
        {"temp": 0.0, "repeat_penalty": 1.3},
        {"temp": 0.0, "presence_penalty": 0.5},
        {"temp": 0.8, "mirostat_mode": 1},
        {"temp": 0.8, "mirostat_mode": 2, "mirostat_tau": 3.0},
        {"temp": 0.9, "typical_p": 0.5},
        {"temp": -1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("draft", ["chain", "tree"])
def test_same_seed_same_text(
    tiny_target: Any, tiny_head: Any, perfect_pair: Any, options: dict[str, Any], draft: str
) -> None:
    """With one draw per token and the same logits, all samplers give exactly plain llama_cpp's tokens."""
    for target, head in ((tiny_target, tiny_head), perfect_pair):
        plain, llm = load_plain(target), load(target, head, draft=draft, rng="llama")
        for seed, prompt in enumerate(prompts(10, seed=7)):
            plain.set_seed(seed)
            llm.set_seed(seed)
            assert take(plain, prompt, 64, **options) == take(llm, prompt, 64, **options)
        plain.close()
        llm.close()


def test_counts_match_the_softmax(tiny_target: Any, tiny_head: Any) -> None:
    """Draw 10,000 times from the row after an accepted draft token, and compare with the target's own softmax.

    The generator is llama.cpp's, since drafts that know the noise differ for each seed.
    """
    temp, n_draws = 0.8, 10_000
    prompt, first = prompts(1, seed=11)[0], 65
    plain, llm = load_plain(tiny_target), load(tiny_target, tiny_head, rng="llama")
    llm.eval([*prompt])
    drafted = draft_chain(llm.drafters[0], first, 1)
    forced = [first, *drafted]  # drafted tokens are forced, so that the third token is drawn from a drafted row
    plain.eval([*prompt, *forced])
    logits = llama_cpp.llama_get_logits_ith(plain.ctx, -1)
    expected = np.exp(np.ctypeslib.as_array(logits, shape=(plain.n_vocab(),)).astype(np.float64) / temp)
    expected *= n_draws / expected.sum()

    def force(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        i = len(input_ids) - len(prompt)
        if i < len(forced):
            token = scores[forced[i]]
            scores[:] = -np.inf
            scores[forced[i]] = token
        return scores

    processors = llama_cpp.LogitsProcessorList([force])
    options = {"temp": temp, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "logits_processor": processors}
    counts: Counter[int] = Counter()
    for seed in np.random.default_rng(0).integers(1, 2**31, n_draws):
        llm.set_seed(int(seed))
        first, second, third = take(llm, prompt, 3, **options)
        assert [first, second] == forced
        counts[third] += 1
    assert llm.stats.accepted >= n_draws
    assert llm.stats.accepted_per_position[0] >= n_draws
    plain.close()
    llm.close()

    # tokens that are expected less than five times share one bin
    rare = expected < 5
    observed = np.array([counts[t] for t in range(len(expected))])
    bins_expected = np.append(expected[~rare], expected[rare].sum())
    bins_observed = np.append(observed[~rare], observed[rare].sum())
    used = bins_expected > 0
    chi2 = float(((bins_observed - bins_expected)[used] ** 2 / bins_expected[used]).sum())
    n_free = int(used.sum()) - 1
    assert n_free >= 10
    # Wilson-Hilferty: the cube root of chi2 / n is nearly normal; 3.7 is one in ten thousand
    z = ((chi2 / n_free) ** (1 / 3) - (1 - 2 / (9 * n_free))) / np.sqrt(2 / (9 * n_free))
    assert z < 3.7, f"chi2 = {chi2:.1f} with {n_free} degrees of freedom"


def test_without_a_head(tiny_target: Any) -> None:
    """The baseline is the same engine without drafts."""
    plain, llm = load_plain(tiny_target), load(tiny_target)
    for prompt in prompts(20, seed=3):
        assert take(llm, prompt, 64) == take(plain, prompt, 64)
    assert llm.stats.drafted == 0
    assert llm.stats.mean_acceptance_length == 1.0
    plain.close()
    llm.close()


def test_llama_s_own_kind_of_draft(tiny_target: Any) -> None:
    """A `draft_model` of llama_cpp drafts as well, and without requesting all logits."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    plain = load_plain(tiny_target)
    llm = load(tiny_target, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4), draft_n_max=4)
    for prompt in prompts(5, seed=4):
        text = [*prompt, *prompt]
        assert take(llm, text, 96) == take(plain, text, 96)
    assert llm.stats.drafted > 0
    plain.close()
    llm.close()


def test_n_min_drops_short_drafts(tiny_target: Any, tiny_head: Any) -> None:
    llm = load(tiny_target, tiny_head, draft_n_max=4, draft_n_min=4, draft_p_min=0.9)
    take(llm, [1, 2, 3], 64)
    assert llm.stats.drafted % 4 == 0
    n_always = load(tiny_target, tiny_head, draft_n_max=4)
    take(n_always, [1, 2, 3], 64)
    assert llm.stats.drafted < n_always.stats.drafted
    assert llm.stats.steps == n_always.stats.steps
    llm.close()
    n_always.close()


def test_nothing_drafted_at_n_max_0(tiny_target: Any, tiny_head: Any) -> None:
    llm = load(tiny_target, tiny_head, draft_n_max=0)
    take(llm, [1, 2, 3], 16)
    assert llm.stats.drafts == 0
    llm.draft_n_max = 2  # it can be changed at any time
    take(llm, [1, 2, 3], 16)
    assert llm.last_stats.drafts > 0
    llm.close()


def test_islice_leaves_no_step_open(tiny_target: Any, tiny_head: Any) -> None:
    llm = load(tiny_target, tiny_head)
    tokens = list(islice(llm.generate([5, 6, 7], temp=0.0), 9))
    assert llm.engine.stepper.opened is None
    assert llm.n_tokens == 3 + len(tokens) - 1
    llm.close()


@pytest.mark.also_on_rpc("both-on-rpc")
@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize(
    "variant",
    [{}, {"boundaries": (0, 4)}, {"use_aux_hidden_state": False}, {"mask_token": 5}, MLA],
    ids=["plain", "boundaries", "no_fc", "p_eagle", "mla"],
)
def test_other_targets_and_heads(tmp_path: Any, arch: str, variant: dict[str, Any]) -> None:
    """Native and callback taps and the last boundaries work; conversations grow, so that prompts are reused."""
    target = write_target(tmp_path / "t.gguf", arch)
    head = write_head(tmp_path / "h.gguf", target, **variant)
    plain, llm = load_plain(target, n_batch=32, n_ubatch=16), load(target, head, n_batch=32, n_ubatch=16)
    for prompt in prompts(5, length=(3, 90), seed=6):
        for _ in range(3):
            expected = take(plain, prompt, 24)
            assert take(llm, prompt, 24) == expected
            prompt += [*expected, 11, 12]
    assert llm.stats.drafted > 500
    plain.close()
    llm.close()
