"""Options of `Sampling`, alone, in pairs and in triples, give the results of llama.cpp's own chain of samplers."""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp as lib
import numpy as np
import numpy.typing as npt
import pytest

from gguf_raw import ARRAY, I32, parse, serialize
from llama_cpp_eagle3.engine import SAMPLERS, Reasoning, SamplerChain, Sampling
from llama_cpp_eagle3.engine import sampler_chain as sampler_chain_module
from llama_cpp_eagle3.engine.vocab import Vocab
from lowlevel import LowLevel
from tiny import write_target

PROMPT = [104, 105, 106, 104, 105, 106, 104, 105]
GRAMMAR = "root ::= [a-p]+"
SEED = 5
N_CTX = 512  # positions of the context; no option reaches as far back


def process(tokens: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
    """Reverse the order of the logits, and read the tokens."""
    return -scores + np.single(0.01) * np.arange(len(scores), dtype=np.single) * (len(tokens) % 3)


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "hot": {"temperature": 1.7},
    "dynatemp": {"dynatemp_range": 4.0, "dynatemp_exponent": 0.7},
    "top_k": {"top_k": 9},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.3},
    "typ_p": {"typical_p": 0.5},
    "sigma": {"top_n_sigma": 1.5},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.02},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "dry": {"dry_multiplier": 2.0, "dry_allowed_length": 1},
    "keep": {"min_keep": 3},
    "order": {"samplers": ("temperature", "min_p", "top_k", "top_p", "xtc", "penalties")},
    "adaptive": {"samplers": (*SAMPLERS, "adaptive_p"), "adaptive_target": 0.3},
    "mirostat": {"mirostat_mode": 1},
    "mirostat_v2": {"mirostat_mode": 2},
    "bias": {"logit_bias": {100: 2.0, 101: -math.inf, 102: -1.0}},
    "ignore_eos": {"ignore_eos": True},
    "grammar": {"grammar": GRAMMAR},
    "processor": {"logits_processors": [process]},
}
COMBINATIONS = [c for n in (0, 1, 2, 3) for c in itertools.combinations(OPTIONS, n)]


class Reference:
    """llama.cpp's common_sampler, with all of its links, even those without effect."""

    def __init__(self, s: Sampling, vocab: Any, eog: frozenset[int]):
        n = lib.llama_vocab_n_tokens(vocab)
        self.processors, self.n_vocab = s.logits_processors, n
        self.grammar = lib.llama_sampler_init_grammar(vocab, s.grammar.encode(), b"root") if s.grammar else None
        self.chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        biases = [*s.logit_bias.items(), *((t, -math.inf) for t in eog if s.ignore_eos)]
        links = []
        if biases:
            links.append(
                lib.llama_sampler_init_logit_bias(n, len(biases), (lib.llama_logit_bias * len(biases))(*biases))
            )
        breakers = [b.encode() for b in s.dry_sequence_breakers]
        penalties = (s.repeat_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty)
        dry = (s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n)
        assert s.samplers is not None
        for name in s.samplers if s.mirostat_mode == 0 else ():
            if name == "penalties":
                links.append(lib.llama_sampler_init_penalties(n, *penalties))
            elif name == "dry":
                texts = (ctypes.c_char_p * len(breakers))(*breakers)
                links.append(lib.llama_sampler_init_dry(vocab, *dry, texts, len(breakers)))
            elif name == "top_n_sigma":
                links.append(lib.llama_sampler_init_top_n_sigma(s.top_n_sigma))
            elif name == "top_k":
                links.append(lib.llama_sampler_init_top_k(s.top_k))
            elif name == "typ_p":
                links.append(lib.llama_sampler_init_typical(s.typical_p, s.min_keep))
            elif name == "top_p":
                links.append(lib.llama_sampler_init_top_p(s.top_p, s.min_keep))
            elif name == "min_p":
                links.append(lib.llama_sampler_init_min_p(s.min_p, s.min_keep))
            elif name == "xtc":
                links.append(lib.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, s.min_keep, SEED))
            elif name == "temperature":
                links.append(lib.llama_sampler_init_temp_ext(s.temperature, s.dynatemp_range, s.dynatemp_exponent))
        if s.mirostat_mode:
            links.append(lib.llama_sampler_init_temp(s.temperature))
        if s.mirostat_mode == 1:
            links.append(lib.llama_sampler_init_mirostat(n, SEED, s.mirostat_tau, s.mirostat_eta, 100))
        elif s.mirostat_mode == 2:
            links.append(lib.llama_sampler_init_mirostat_v2(SEED, s.mirostat_tau, s.mirostat_eta))
        elif "adaptive_p" in s.samplers:
            links.append(lib.llama_sampler_init_adaptive_p(s.adaptive_target, s.adaptive_decay, SEED))
        else:
            links.append(lib.llama_sampler_init_dist(SEED))
        for link in links:
            lib.llama_sampler_chain_add(self.chain, link)

    def see(self, tokens: list[int]) -> None:
        for token in tokens:
            lib.llama_sampler_accept(self.chain, token)

    def draw(self, logits: npt.NDArray[np.single], tokens: list[int]) -> tuple[int, dict[int, float]]:
        """Draw a token as common_sampler_sample does; return it and its candidates."""
        for processor in self.processors:
            logits = processor(np.array(tokens, dtype=np.intc), logits)
        token, probs = self._apply(logits, [self.chain])
        if self.grammar:
            one = (lib.llama_token_data * 1)(lib.llama_token_data(token, 1.0, 0.0))
            lib.llama_sampler_apply(self.grammar, ctypes.byref(lib.llama_token_data_array(one, 1, -1, False)))
            if one[0].logit == -math.inf:
                token, probs = self._apply(logits, [self.grammar, self.chain])
            lib.llama_sampler_accept(self.grammar, token)
        lib.llama_sampler_accept(self.chain, token)
        return token, probs

    def _apply(self, logits: npt.NDArray[np.single], samplers: list[Any]) -> tuple[int, dict[int, float]]:
        rows = [lib.llama_token_data(i, float(x), 0.0) for i, x in enumerate(logits)]
        data = (lib.llama_token_data * len(rows))(*rows)
        array = lib.llama_token_data_array(data, len(rows), -1, False)
        for sampler in samplers:
            lib.llama_sampler_apply(sampler, ctypes.byref(array))
        left = {array.data[i].id: array.data[i].p for i in range(array.size) if array.data[i].p > 0.0}
        return int(array.data[array.selected].id), left

    def close(self) -> None:
        lib.llama_sampler_free(self.chain)
        if self.grammar:
            lib.llama_sampler_free(self.grammar)


@pytest.fixture(scope="module")
def low(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowLevel]:
    with LowLevel(write_target(tmp_path_factory.mktemp("chain") / "t.gguf").path) as low:
        low.target.decode(np.random.default_rng(0).integers(0, 256, 12).tolist(), 0)
        yield low


def options_of(names: tuple[str, ...], **more: Any) -> dict[str, Any]:
    """Return the options of a flat row and llama-server's order, with nothing else on."""
    base: dict[str, Any] = {"samplers": SAMPLERS, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    for name in names:
        base |= OPTIONS[name]
    return base | {"seed": SEED, "rng": "llama"} | more


def compare(low: LowLevel, vocab: Vocab, names: tuple[str, ...], keeps_probs: bool) -> list[int]:
    sampling = Sampling(**options_of(names, keeps_probs=keeps_probs))
    reference, chain = Reference(sampling, vocab.pointer, vocab.eog), SamplerChain(sampling, vocab, N_CTX)
    reference.see(PROMPT)
    chain.see(PROMPT)
    tokens = [*PROMPT]
    for row in range(8):
        expected, probs = reference.draw(low.target.logits(row), tokens)
        assert chain.draw(low.target, row, tokens) == expected, (names, row)
        if keeps_probs:
            assert dict(chain.probs) == probs, (names, row)
            assert [p for _, p in chain.probs] == sorted(probs.values(), reverse=True)
        tokens.append(expected)
    reference.close()
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("keeps_probs", [False, True])
@pytest.mark.parametrize("first", ["", *OPTIONS])
def test_combinations(low: LowLevel, first: str, keeps_probs: bool) -> None:
    vocab = Vocab(low.model)
    of_first = [names for names in COMBINATIONS if (names or ("",))[0] == first]
    assert of_first
    for names in of_first:
        compare(low, vocab, names, keeps_probs)


def test_every_option_is_seen(low: LowLevel) -> None:
    """Every option changes a result, else the comparison would be worthless."""
    vocab = Vocab(low.model)

    def distributions(names: tuple[str, ...]) -> list[list[tuple[int, float]]]:
        chain = SamplerChain(Sampling(**options_of(names, keeps_probs=True)), vocab, N_CTX)
        chain.see(PROMPT)
        found = []
        for row in range(12):
            chain.draw(low.target, row, PROMPT)
            found.append(chain.probs)
        return found

    for name in OPTIONS.keys() - {"keep", "order"}:  # these options only say how others work
        assert distributions((name,)) != distributions(()), name
    assert distributions(("min_p", "keep")) != distributions(("min_p",))
    assert distributions(("order", "hot", "min_p")) != distributions(("hot", "min_p"))


def test_greedy_probability_without_samplers(low: LowLevel) -> None:
    chain = SamplerChain(
        Sampling(temperature=0.0, keeps_probs=True, logits_processors=[process]), Vocab(low.model), N_CTX
    )
    token = chain.draw(low.target, 0, PROMPT)
    assert token == int(process(np.array(PROMPT, dtype=np.intc), low.target.logits(0)).argmax())
    assert chain.probs == [(token, 1.0)]


def test_greedy_within_a_range_of_temperatures(low: LowLevel) -> None:
    vocab = Vocab(low.model)
    greedy = [int(low.target.logits(row).argmax()) for row in range(8)]
    assert compare(low, vocab, ("greedy",), keeps_probs=False) == greedy
    assert compare(low, vocab, ("greedy", "dynatemp"), keeps_probs=False) != greedy


@pytest.mark.parametrize("name", ["dynatemp", "sigma", "xtc", "dry", "keep"])
def test_options_that_llama_cpp_lacks_need_no_samplers(low: LowLevel, name: str) -> None:
    """Options that llama.cpp lacks make the chain llama.cpp's own, and work."""
    options = options_of((name,))
    del options["samplers"]
    sampling = Sampling(**options)
    assert sampling == Sampling(**options_of((name,)))
    assert not sampling.ignored


def test_options_without_their_sampler_are_told(low: LowLevel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    sampler_chain_module._warn_ignored.cache_clear()  # other tests of this process may have warned already
    options: dict[str, Any] = {"adaptive_target": 0.3, "xtc_probability": 0.5, "samplers": ("top_k",)}
    for _ in range(2):
        SamplerChain(Sampling(**options), Vocab(low.model), N_CTX)
    lines = [record.getMessage() for record in caplog.records]
    for name, sampler in (("adaptive_target", "adaptive_p"), ("xtc_probability", "xtc")):
        assert lines.count(f"{name} has no effect: samplers lacks {sampler!r}") == 1
    assert set(Sampling(adaptive_target=0.3).ignored) == {"adaptive_target"}
    assert set(Sampling(mirostat_mode=2, dry_multiplier=1.0).ignored) == {"dry_multiplier"}
    assert not Sampling(samplers=("penalties",), repeat_penalty=1.1).ignored


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, np.float32("nan"), 1e-45, 1e39])
def test_penalties_that_cannot_be(value: float) -> None:
    with pytest.raises(ValueError, match="expected repeat_penalty to be"):
        Sampling(repeat_penalty=value)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_infinite_penalties(name: str) -> None:
    with pytest.raises(ValueError, match=f"expected {name} to be finite"):
        Sampling(**{name: -math.inf})


@pytest.mark.parametrize("bias", [{-1: 1.0}, {2**70: 1.0}, {5: math.nan}])
def test_biases_that_cannot_be(low: LowLevel, bias: dict[int, float]) -> None:
    with pytest.raises(
        ValueError, match=r"logit_bias: expected numbers for tokens in 0|expected logit_bias to be a mapping"
    ):
        SamplerChain(Sampling(logit_bias=bias), Vocab(low.model), N_CTX)


@pytest.mark.parametrize("samplers", [None, SAMPLERS])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_suppressed_tokens(tmp_path: Path, samplers: tuple[str, ...] | None, temperature: float) -> None:
    """Tokens that the model's header suppresses are not drawn, whatever the request adds to them."""
    file = parse(Path(write_target(tmp_path / "t.gguf").path).read_bytes())
    allowed = (70, 80)
    never = [token for token in range(len(file.get("tokenizer.ggml.tokens"))) if token not in allowed]
    file.set("tokenizer.ggml.suppress_tokens", ARRAY, never, I32)
    path = tmp_path / "suppressing.gguf"
    path.write_bytes(serialize(file))
    with LowLevel(str(path)) as low:
        low.target.decode(list(range(12)), 0)
        vocab = Vocab(low.model)
        assert vocab.suppressed == set(never)
        sampling = Sampling(
            samplers=samplers, temperature=temperature, top_p=1.0, min_p=0.0, logit_bias={never[3]: 100.0}, seed=SEED
        )
        chain = SamplerChain(sampling, vocab, N_CTX)
        drawn = {chain.draw(low.target, row, []) for row in range(12)}
        assert drawn <= set(allowed)
        assert temperature == 0.0 or drawn == set(allowed)


def test_a_spent_budget_takes_no_draw(low: LowLevel) -> None:
    """llama.cpp applies a reasoning's budget before its chain: one draw for each token, forced ones included."""
    vocab, forced = Vocab(low.model), [65, 66, 67]
    reasoning = Reasoning(start=[40], ends=[[67]], forced=forced, budget=2)
    # a budget waits for whole characters
    parts = [token for token in range(vocab.n_tokens) if not vocab.piece(token).isascii()]
    options = options_of((), logit_bias=dict.fromkeys(parts, -math.inf))
    chain = SamplerChain(Sampling(**options, reasoning=reasoning, grammar_prefill=[40]), vocab, N_CTX)
    reference = Reference(Sampling(**options), vocab.pointer, vocab.eog)
    for row in range(10):
        logits = low.target.logits(row)
        if 2 <= row < 5:
            logits = np.where(np.arange(len(logits)) == forced[row - 2], logits, -np.inf).astype(np.single)
        assert chain.draw(low.target, row, []) == reference.draw(logits, [])[0], row
    reference.close()
