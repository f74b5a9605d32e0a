"""Draws with noise that drafters know: the generator, the distribution, independence, and the drafts that use it."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import dice
from drafting import draft_chain, draft_tree
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import GumbelNoise, philox4x32
from llama_cpp_eagle3.engine import SAMPLERS, SamplerChain, Sampling
from llama_cpp_eagle3.engine.vocab import Vocab
from llama_cpp_eagle3.models import heldout_prompts
from loading import OPTIONS, bundled_pair, load, prompts, take
from lowlevel import LowLevel
from tiny import write_target

N_CTX = 512
PROMPT = [104, 105, 106, 104, 105, 106, 104, 105]
LIMIT = 4.0
"""Standard deviations; all seeds are fixed, so that a test that passed passes always."""


def process(tokens: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
    return -scores


LAW: dict[str, dict[str, Any]] = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "cold": {"temperature": 0.4},
    "dynatemp": {"dynatemp_range": 0.9, "dynatemp_exponent": 0.7},
    "top_k": {"top_k": 9},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.3},
    "typ_p": {"typical_p": 0.5},
    "sigma": {"top_n_sigma": 1.5},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "dry": {"dry_multiplier": 2.0, "dry_allowed_length": 1},
    "keep": {"min_keep": 3},
    "order": {"samplers": ("temperature", "min_p", "top_k", "top_p", "penalties")},
    "bias": {"logit_bias": {100: 2.0, 101: -math.inf, 102: -1.0}},
    "ignore_eos": {"ignore_eos": True},
    "processor": {"logits_processors": [process]},
}


@pytest.fixture(scope="module")
def low(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowLevel]:
    with LowLevel(write_target(tmp_path_factory.mktemp("gumbel") / "t.gguf").path) as low:
        low.target.decode(np.random.default_rng(0).integers(0, 256, 12).tolist(), 0)
        yield low


def deviation(observed: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Return counts' deviation from the expected ones, in standard deviations: chi-squared by Wilson and Hilferty.

    Values expected less than five times share one bin. Impossible values must not be observed.
    """
    assert not observed[expected == 0].any()
    rare = expected < 5
    bins = [np.append(x[~rare], x[rare].sum()) for x in (observed.astype(float), expected)]
    used = bins[1] > 0
    n_free = int(used.sum()) - 1
    if n_free == 0:
        return 0.0
    chi2 = float(((bins[0] - bins[1])[used] ** 2 / bins[1][used]).sum())
    return float(((chi2 / n_free) ** (1 / 3) - (1 - 2 / (9 * n_free))) / math.sqrt(2 / (9 * n_free)))


def counts_of(draws: Sequence[int], n: int) -> npt.NDArray[Any]:
    return np.bincount(draws, minlength=n)


# the generator


def test_philox_has_the_vectors_of_its_authors() -> None:
    """Ours and NumPy's generator match Random123's kat_vectors; other tests take NumPy's as the reference."""
    ones = 0xFFFFFFFF
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    for counter, key, words in (
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([ones] * 4, (ones, ones), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (pi, (0xA4093822, 0x299F31D0), [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ):
        assert philox4x32(counter, key) == words
        assert dice.philox(counter, key).tolist() == words


def test_noise_is_numpys() -> None:
    """The noise is NumPy's for tokens, for later positions, and for seeds."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        seed, position, token = (int(rng.integers(0, n)) for n in (1 << 32, 1 << 20, 300_000))
        noise = GumbelNoise(seed)
        noise.position = position
        n_ahead = int(rng.integers(0, 9))
        assert noise(token, n_ahead) == pytest.approx(float(dice.noise(seed, position + n_ahead, token)), rel=1e-12)


def test_noise_is_gumbel() -> None:
    """Kolmogorov and Smirnov's test passes over tokens and over positions."""
    found = [dice.noise(1, 0, np.arange(50_000)), dice.noise(2, np.arange(50_000), 7)]
    for values in found:
        u = np.sort(np.exp(-np.exp(-values)))
        steps = np.arange(len(u) + 1) / len(u)
        distance = max(np.abs(u - steps[1:]).max(), np.abs(u - steps[:-1]).max())
        assert distance * math.sqrt(len(u)) < 1.95  # one in a thousand


Noise = Callable[[int, Any, Any], npt.NDArray[np.float64]]
"""Noise by seed, positions, tokens."""


def philox(seed: int, position: Any, token: Any) -> npt.NDArray[np.float64]:
    return dice.noise(seed, position, token)


def seed_plus_position(seed: int, position: Any, token: Any) -> npt.NDArray[np.float64]:
    return dice.noise(0, seed + position, token)


def no_position(seed: int, position: Any, token: Any) -> npt.NDArray[np.float64]:
    return dice.noise(seed, position // 2, token)


def token_plus_position(seed: int, position: Any, token: Any) -> npt.NDArray[np.float64]:
    return dice.noise(seed, 0, token + position)


def worst_pair(noise: Noise) -> float:
    """Draw from six equally likely tokens by a flat row; return the pairs' largest deviation from independence."""
    n, n_tokens = 4000, 6

    def draws(seed: int, first: int = 0) -> npt.NDArray[Any]:
        positions, tokens = np.meshgrid(first + np.arange(n), np.arange(n_tokens), indexing="ij")
        return noise(seed, positions, tokens).argmax(axis=1)

    base = draws(1)
    others = [draws(1, 1), draws(1, 2), draws(2), draws(2, 1), draws(0), draws(0, 1), draws(1 << 31), draws(257)]
    flat = np.full(n_tokens**2, n / n_tokens**2)
    return max(deviation(counts_of((n_tokens * base + other).tolist(), n_tokens**2), flat) for other in others)


def test_successive_tokens_and_seeds_are_independent() -> None:
    assert worst_pair(philox) < LIMIT


@pytest.mark.parametrize("broken", [seed_plus_position, no_position, token_plus_position])
def test_a_broken_generator_is_found(broken: Noise) -> None:
    assert worst_pair(broken) > 10 * LIMIT


# the distribution


@cache
def vocab_of(low: LowLevel) -> Vocab:
    return Vocab(low.model)


def sampling_of(names: Sequence[str], **more: Any) -> Sampling:
    options: dict[str, Any] = {"samplers": SAMPLERS, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    for name in names:
        options |= LAW[name]
    return Sampling(**options | more)


def draw(low: LowLevel, sampling: Sampling) -> tuple[int, list[tuple[int, float]]]:
    chain = SamplerChain(sampling, vocab_of(low), N_CTX)
    chain.see(PROMPT)
    return chain.draw(low.target, 11, PROMPT), chain.probs


def law_of(low: LowLevel, n_vocab: int, names: Sequence[str], **more: Any) -> npt.NDArray[Any]:
    """Return the probabilities that llama.cpp's own chain gives for the candidates that it leaves."""
    _, probs = draw(low, sampling_of(names, rng="llama", keeps_probs=True, seed=1, **more))
    p = np.zeros(n_vocab)
    for token, share in probs:
        p[token] = share
    return p / p.sum()


def draws_of(low: LowLevel, names: Sequence[str], n: int) -> list[int]:
    """Return draws of a text, or each with a seed of its own where a draw changes the next one's distribution."""
    if {"penalties", "dry"} & set(names):
        return [draw(low, sampling_of(names, seed=seed))[0] for seed in range(n)]
    chain = SamplerChain(sampling_of(names, seed=3), vocab_of(low), N_CTX)
    return [chain.draw(low.target, 11, PROMPT) for _ in range(n)]


@pytest.mark.parametrize("n", [1, 2])
def test_draws_have_the_law_of_llama_cpp(low: LowLevel, n: int) -> None:
    """Every sampler alone has llama.cpp's distribution, and so has a third of the pairs."""
    n_vocab, n_draws = len(low.target.logits(11)), 800 if n == 1 else 200
    for names in list(itertools.combinations(LAW, n))[:: 2 * n - 1]:
        p = law_of(low, n_vocab, names)
        draws = draws_of(low, names, n_draws)
        assert deviation(counts_of(draws, n_vocab), n_draws * p) < LIMIT, names


def test_xtc_has_its_law(low: LowLevel) -> None:
    """XTC has a generator of its own, with the same seed: half the time only the last of the likely tokens is left."""
    n_vocab, n_draws, threshold = len(low.target.logits(11)), 2000, 0.03
    p = law_of(low, n_vocab, ())
    likely = [int(t) for t in np.argsort(-p) if p[t] >= threshold]
    assert len(likely) > 2
    cut = p.copy()
    cut[likely[:-1]] = 0.0
    law = 0.5 * p + 0.5 * cut / cut.sum()
    sampling = sampling_of((), seed=3, xtc_probability=0.5, xtc_threshold=threshold)
    chain = SamplerChain(sampling, vocab_of(low), N_CTX)
    text = [chain.draw(low.target, 11, PROMPT) for _ in range(n_draws)]
    each = [draw(low, replace(sampling, seed=seed))[0] for seed in range(n_draws)]
    for draws in (text, each):
        assert deviation(counts_of(draws, n_vocab), n_draws * law) < LIMIT
        assert deviation(counts_of(draws, n_vocab), n_draws * p) > LIMIT


def test_one_text_has_the_softmax_of_its_row(low: LowLevel) -> None:
    """Successive draws of one chain have the softmax's distribution in float64."""
    logits = low.target.logits(11).astype(np.float64)
    n_draws = 15_000
    for temperature in (0.5, 1.0, 2.0):
        chain = SamplerChain(sampling_of((), temperature=temperature, seed=3), vocab_of(low), N_CTX)
        draws = [chain.draw(low.target, 11, PROMPT) for _ in range(n_draws)]
        p = np.exp((logits - logits.max()) / temperature)
        assert deviation(counts_of(draws, len(p)), n_draws * p / p.sum()) < LIMIT
        assert chain.noise is not None
        assert chain.noise.position == n_draws


def test_a_grammar_that_refuses(low: LowLevel) -> None:
    """A refused token is drawn again with other noise, as llama.cpp does: p(x) + p(refused) p'(x)."""
    n_vocab, n_draws = len(low.target.logits(11)), 4000
    likelier = dict.fromkeys(range(ord("a"), ord("q")), 3.0)
    options: dict[str, Any] = {"top_k": 20, "logit_bias": likelier}
    first = law_of(low, n_vocab, (), **options)
    allowed = np.array([bool(re.fullmatch(b"[a-p]+", vocab_of(low).piece(t))) for t in range(n_vocab)])
    forbidden = {int(t): -math.inf for t in np.flatnonzero(~allowed)}
    second = law_of(low, n_vocab, (), top_k=20, logit_bias=likelier | forbidden)
    assert 0.2 < first[allowed].sum() < 0.8
    p = np.where(allowed, first, 0.0) + first[~allowed].sum() * second
    # no token of a text changes the next one's probabilities
    sampling = sampling_of((), seed=3, grammar="root ::= [a-p]+", ignore_eos=True, **options)
    chain = SamplerChain(sampling, vocab_of(low), N_CTX)
    draws = [chain.draw(low.target, 11, PROMPT) for _ in range(n_draws)]
    assert deviation(counts_of(draws, n_vocab), n_draws * p) < LIMIT


def test_probabilities_are_kept(low: LowLevel) -> None:
    for names in (("top_k", "hot"), ("min_p",), ()):
        expected = draw(low, sampling_of(names, keeps_probs=True, rng="llama", seed=1))[1]
        found = draw(low, sampling_of(names, keeps_probs=True, seed=1))[1]
        assert [t for t, _ in found] == [t for t, _ in expected]
        assert [p for _, p in found] == pytest.approx([p for _, p in expected], rel=1e-5)


def test_what_is_seen_is_not_counted(low: LowLevel) -> None:
    """The noise of the first token is that of position 0, however far penalties look back."""
    for n in (0, 3, 8):
        chain = SamplerChain(sampling_of((), frequency_penalty=0.1, seed=3), vocab_of(low), N_CTX)
        chain.see(PROMPT[:n])
        assert chain.noise is not None
        assert chain.noise.position == 0


def test_without_a_seed_each_text_is_another(low: LowLevel) -> None:
    for seed in (None, 0xFFFFFFFF, -1):
        texts = {
            tuple(chain.draw(low.target, 11, PROMPT) for _ in range(20))
            for chain in (SamplerChain(sampling_of((), seed=seed), vocab_of(low), N_CTX) for _ in range(4))
        }
        assert len(texts) == 4


def test_errors(tiny_target: Any) -> None:
    with pytest.raises(ValueError, match="expected rng to be one of gumbel, llama, found 'dice'"):
        Sampling(rng="dice")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected rng to be one of gumbel, llama, found 'dice'"):
        load(tiny_target, rng="dice")
    for seed in (1.5, "7", True):
        with pytest.raises(ValueError, match="expected seed to be an integer or None, found"):
            Sampling(seed=seed)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected seed to be an integer, found"):
            load(tiny_target, seed=seed)
    assert Sampling(seed=np.int64(3)).seed == 3  # type: ignore[arg-type]
    with load(tiny_target) as llm:
        for bad in (1.5, "7", True):
            with pytest.raises(ValueError, match="expected seed to be an integer or None, found"):
                llm.set_seed(bad)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected rng to be one of gumbel, llama, found 'x'"):
            llm.rng = "x"  # type: ignore[assignment]
        assert (llm.rng, llm._seed) == ("gumbel", 1)
        for _ in range(2):  # llama_cpp draws the second one's seed from the first
            llm.create_completion("a", max_tokens=1, seed=np.int64(3) if llm._seed == 1 else None)
        llm.set_seed(None)
        assert len({tuple(take(llm, PROMPT, 8, temp=2.0)) for _ in range(4)}) > 1
        llm.set_seed(3)
        llm.rng = "llama"
        assert take(llm, PROMPT, 8, temp=2.0) == take(llm, PROMPT, 8, temp=2.0)
    with pytest.raises(ValueError, match="expected the temperature to be greater than 0, found 0"):
        GumbelNoise(1, temperature=0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "samplers": SAMPLERS},
        {"temperature": -1.0, "samplers": SAMPLERS},
        {"mirostat_mode": 2},
        {"samplers": ("adaptive_p",)},
        {"rng": "llama"},
    ],
    ids=str,
)
def test_greedy_and_other_dice_have_no_noise(low: LowLevel, options: dict[str, Any]) -> None:
    sampling = Sampling(**{"seed": 1} | options)
    assert SamplerChain(sampling, vocab_of(low), N_CTX).noise is None


@pytest.fixture
def tiny_pair(tiny_target: Any, tiny_head: Any) -> tuple[Any, Any]:
    return tiny_target, tiny_head


# the drafts


def test_drafts_are_what_the_noise_makes_of_the_head(tiny_pair: Any) -> None:
    """A draft is the token with the greatest log q / T + noise, of the head's own logits in NumPy."""
    with closing(load(*tiny_pair)) as llm:
        drafter: Any = llm.drafters[0]
        changed = 0
        d2t = tiny_pair[1].d2t
        for i, prompt in enumerate(prompts(12, seed=4)):
            llm.reset()
            llm.eval([*prompt])
            greedy = draft_chain(drafter, 65, 1)
            noise = GumbelNoise(i, temperature=2.0, biases={int(d2t[i]): 1.0})
            noise.position = 100 * i
            drafter.set_noise(noise)
            for n_ahead in range(3):
                found = draft_chain(drafter, 65, 1 + n_ahead)
                logits = drafter.draft_logits.astype(np.float64)
                best = np.argsort(-logits)[:16]
                scores = {int(d2t[k]): (logits[k] + (k == i)) / 2.0 + noise(int(d2t[k]), n_ahead) for k in best}
                assert found[-1] == max(scores, key=scores.__getitem__)
            changed += found[:1] != greedy
            children = draft_tree(drafter, 65, 1, 4, 4)
            assert children.tokens[0] == found[0]
            assert list(children.probs) == sorted(children.probs, reverse=True)
            drafter.set_noise(None)
            assert draft_chain(drafter, 65, 1) == greedy
        assert changed > 3


def test_top_n_sigma_cuts_drafts(tiny_pair: Any) -> None:
    """With a deviation of 2.5, a token further than n times that below the best one comes last."""
    options = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_n_sigma": 0.3}
    n_cut = 0
    with closing(load(*tiny_pair)) as llm:
        drafter: Any = llm.drafters[0]
        d2t = tiny_pair[1].d2t
        llm.eval(prompts(1, seed=4)[0])
        for seed in range(40):
            noise = SamplerChain(Sampling(seed=seed, **options), llm.engine.vocab, N_CTX).noise
            assert noise is not None
            drafter.set_noise(noise)
            found = draft_chain(drafter, 65, 1)
            logits = drafter.draft_logits.astype(np.float64)
            best = np.argsort(-logits)[:16]
            uncut = np.array([logits[k] / 2.0 + noise(int(d2t[k])) for k in best])
            scores = uncut - np.where(logits[best] < logits.max() - 0.3 * 2.5, 3.0, 0.0)
            assert found == [int(d2t[best[scores.argmax()]])]
            n_cut += int(scores.argmax() != uncut.argmax())
    assert n_cut > 3


def test_known_dice_are_worth_more() -> None:
    """The bundled pair with llama.cpp's default samplers takes fewer steps for the same text."""
    target, head = bundled_pair()
    options = OPTIONS | {"n_ctx": 512, "draft_model_path": str(head), "draft": "chain", "draft_n_max": 4}
    steps: Counter[str] = Counter()
    with closing(Eagle3Llama(str(target), **options)) as llm:
        for i, text in enumerate(heldout_prompts()[:4]):
            for rng in ("llama", "gumbel"):
                prompt = llm.tokenize(text[:400].encode())
                result = llm.generate_batch([prompt], max_tokens=48, temperature=0.8, seed=i, rng=rng, ignore_eos=True)[
                    0
                ]
                steps[rng] += result.stats.steps
    assert steps["gumbel"] < 0.9 * steps["llama"]
