"""How tokens are drawn from rows of logits: options, and llama.cpp's samplers that they stand for."""

from __future__ import annotations

import ctypes
import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral
from typing import Any, Literal

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from .._core import GumbelNoise, Target, grammar_sampler, sampler_accept
from ..errors import Eagle3Error
from .vocab import Vocab

_log = logging.getLogger("llama_cpp_eagle3")

LogitsProcessor = Callable[[npt.NDArray[np.intc], npt.NDArray[np.single]], npt.NDArray[np.single]]
"""(tokens so far, logits float32 (n_vocab,)) -> logits, as llama_cpp has it. It may change the logits in place."""

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama.cpp's samplers in llama-server's order; there are also "infill" and "adaptive_p"."""

Rng = Literal["gumbel", "llama"]
RNGS: tuple[Rng, ...] = ("gumbel", "llama")
"""What the last draw is made with, see `Sampling.rng`."""
_SEED_RANDOM = int(lib.LLAMA_DEFAULT_SEED)

_SAMPLER_CHARS = {
    "d": "dry",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "s": "top_n_sigma",
    "m": "min_p",
    "t": "temperature",
    "x": "xtc",
    "i": "infill",
    "e": "penalties",
    "a": "adaptive_p",
}
_SAMPLER_NAMES = {
    **{name.replace("_", ""): name for name in _SAMPLER_CHARS.values()},
    "typicalp": "typ_p",
    "typical": "typ_p",
    "typ": "typ_p",
    "nucleus": "top_p",
    "temp": "temperature",
}
_LARGEST, _SMALLEST = 1e9, 1e-9
_N_MIROSTAT = 100  # llama_cpp's choice of mirostat's m
_ORDERED_ONLY = ("top_n_sigma", "xtc_probability", "dynatemp_range", "dry_multiplier", "min_keep")
"""Options that llama_cpp's order has no sampler for."""
_F32_TINY = float(np.finfo(np.float32).tiny)  # the reciprocal of what is smaller may be infinite
_F32_MAX = float(np.finfo(np.float32).max)


def _finite(x: float) -> float:
    return min(max(x, -_LARGEST), _LARGEST)


def samplers_of(value: list[str] | str) -> list[str]:
    """llama-server's names or letters of samplers as llama.cpp's names; what it does not know it leaves out, too."""
    if isinstance(value, str):
        return [_SAMPLER_CHARS[char] for char in value if char in _SAMPLER_CHARS]
    names = (_SAMPLER_NAMES.get(name.lower().replace("_", "").replace("-", "")) for name in value)
    return [name for name in names if name is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """A part of the text that a lazy grammar does not look at, and that may have a limit; all in tokens."""

    start: Sequence[int]
    """Begins it."""
    ends: Sequence[Sequence[int]]
    """Each of them ends it."""
    forced: Sequence[int]
    """Written when the budget is spent: a message, if any, and the first of the ends."""
    budget: int = -1
    """-1: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Everything that says which token a row of logits becomes; names and defaults are llama_cpp's.

    The samplers stand in the order that `llama_cpp.Llama` has: logits processors, logit bias, penalties, grammar, then
    greedy (temperature 0), plain (temperature < 0), mirostat, or top-k, typical-p, top-p, min-p, temperature.

    With `samplers` they are llama-server's: logit bias, those in their order, and a draw; temperature 0 is greedy, the
    penalties see the prompt too, and the grammar is asked about the token that was drawn, so that it only has to be
    applied to all if it refuses that one. An option that only they have (min_keep, top-n-sigma, XTC, dynamic
    temperature, DRY) makes them `SAMPLERS`, if they are not given.

    Tokens that the model's header suppresses are never drawn.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    """Generated tokens that the penalties look back at."""
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int | None = None
    """None, or 2**32 - 1 as llama.cpp has it: another one each time."""
    rng: Rng = "gumbel"
    """"gumbel": the token with the greatest logit + noise, where the noise depends on seed, number of tokens drawn and
    token alone, so that drafts know it. "llama": llama.cpp's `dist`, with its texts for a seed. Both draw from the same
    probabilities. XTC, mirostat and adaptive_p have llama.cpp's generator in any case."""
    grammar: str | None = None
    """In GBNF."""
    grammar_root: str = "root"
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token -> what is added to its logit."""
    ignore_eos: bool = False
    """Never draw a token that ends the text."""
    logits_processors: Sequence[LogitsProcessor] = ()

    samplers: Sequence[str] | None = None
    """llama.cpp's samplers in their order, of `SAMPLERS` and those that it names."""
    min_keep: int = 0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    grammar_lazy: bool = False
    """The grammar waits for one of its triggers."""
    grammar_triggers: Sequence[str] = ()
    """Regular expressions; what follows the beginning of the first group, or of the match, is the grammar's."""
    grammar_trigger_tokens: Sequence[int] = ()
    grammar_prefill: Sequence[int] = ()
    """Tokens at the end of the prompt that belong to the grammar's text, and to the reasoning's."""
    reasoning: Reasoning | None = None
    keeps_probs: bool = False
    """Keep the probabilities of the candidates that the samplers left: see `Chain.probs`."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, (float, np.floating)) and math.isnan(value):
                raise ValueError(f"expected {f.name} to be a number, found nan")
        if not _F32_TINY <= self.repeat_penalty <= _F32_MAX:
            raise ValueError(f"expected repeat_penalty to be finite and greater than 0, found {self.repeat_penalty}")
        for name in ("frequency_penalty", "presence_penalty"):
            if not abs(getattr(self, name)) <= _F32_MAX:
                raise ValueError(f"expected {name} to be finite, found {getattr(self, name)}")
        unknown = set(self.samplers or ()) - {*SAMPLERS, "infill", "adaptive_p"}
        if unknown:
            raise ValueError(f"unknown sampler {min(unknown)!r}; there are {', '.join(SAMPLERS)}, infill, adaptive_p")
        if self.mirostat_mode not in (0, 1, 2):
            raise ValueError(f"expected mirostat_mode to be 0, 1 or 2, found {self.mirostat_mode}")
        if self.seed is not None and (not isinstance(self.seed, Integral) or isinstance(self.seed, bool)):
            raise ValueError(f"expected seed to be an integer, found {self.seed!r}")
        check_rng(self.rng)
        if self.samplers is None and any(getattr(self, name) != self._default(name) for name in _ORDERED_ONLY):
            object.__setattr__(self, "samplers", SAMPLERS)

    @classmethod
    def _default(cls, name: str) -> Any:
        return next(f.default for f in fields(cls) if f.name == name)

    def within(self, n_ctx: int, n_vocab: int) -> Sampling:
        """The same draws with every number that becomes memory or time no larger than a context and a vocabulary need.

        llama.cpp allocates as many tokens as the penalties may look back at, whether or not there are so many, and
        takes the numbers as they are: 8 GiB for 2147483647, and another number for what is larger. Its floats have 32
        bits: what is infinite there makes logits that are no numbers.
        """
        floats = {f.name: getattr(self, f.name) for f in fields(self)}
        floats = {name: _finite(value) for name, value in floats.items() if isinstance(value, float)}
        floats["repeat_penalty"] = max(_SMALLEST, _finite(self.repeat_penalty))
        return replace(
            self,
            **floats,
            logit_bias={token: bias if bias == -math.inf else _finite(bias) for token, bias in self.logit_bias.items()},
            top_k=max(0, min(self.top_k, n_vocab)),
            min_keep=max(0, min(self.min_keep, n_vocab)),
            penalty_last_n=max(0, min(self.penalty_last_n, n_ctx)),
            dry_penalty_last_n=max(0, min(self.dry_penalty_last_n, n_ctx)),
            dry_allowed_length=max(-n_ctx, min(self.dry_allowed_length, n_ctx)),
        )

    @property
    def has_rules(self) -> bool:
        """Whether there is a grammar, or a reasoning to be looked after."""
        return self.grammar is not None or self.reasoning is not None

    def biases(self, vocab: Vocab) -> dict[int, float]:
        """What is added to the logits of single tokens."""
        never = vocab.suppressed | (vocab.eog if self.ignore_eos else frozenset())
        return dict(self.logit_bias) | dict.fromkeys(never, -math.inf)

    @property
    def ignored(self) -> dict[str, str]:
        """Options that are set and do nothing -> the sampler that would have to be among `samplers`."""
        there = () if self.mirostat_mode else SAMPLERS if self.samplers is None else self.samplers
        by_option = {
            "repeat_penalty": "penalties",
            "frequency_penalty": "penalties",
            "presence_penalty": "penalties",
            "typical_p": "typ_p",
            "top_n_sigma": "top_n_sigma",
            "xtc_probability": "xtc",
            "dynatemp_range": "temperature",
            "dry_multiplier": "dry",
            "adaptive_target": "adaptive_p",
        }
        return {
            name: sampler
            for name, sampler in by_option.items()
            if sampler not in there and getattr(self, name) != self._default(name)
        }

    @property
    def looks_back(self) -> bool:
        """Whether something but a bias changes logits before the best of them are looked for."""
        return bool(
            self.repeat_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.has_rules
            or self.logits_processors
        )


class Chain:
    """A llama_sampler chain, which remembers what it has drawn: one for each text."""

    def __init__(self, sampling: Sampling, vocab: Vocab, n_ctx: int):
        """Build the chain for texts in a context of n_ctx tokens.

        Raises:
            ValueError: the grammar cannot be used, or the bias is for tokens that do not exist.
        """
        sampling = sampling.within(n_ctx, vocab.n_tokens)
        for option, sampler in sampling.ignored.items():
            _tell_ignored(option, "mirostat is on" if sampling.mirostat_mode else f"samplers lacks {sampler!r}")
        self._sampling, self._vocab = sampling, vocab
        self._processors = list(sampling.logits_processors)
        self.noise: GumbelNoise | None = None
        """What it draws with, as far as drafts can know it."""
        self._grammar: Any = None
        self._grammar_address = 0
        self.probs: list[tuple[int, float]] = []
        """With `keeps_probs`: the candidates of the last draw, the most probable first."""
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._address = _address(self._chain)
        biases = sampling.biases(vocab)
        if sampling.has_rules and sampling.samplers is not None:
            self._grammar = self._grammar_link()
            self._grammar_address = _address(self._grammar)
            if sampling.reasoning is not None:  # what a spent budget forces is no refused draw
                lib.llama_sampler_chain_add(self._chain, self._budget_link())
        for link in self._bias_links(biases) + (self._links() if sampling.samplers is None else self._ordered_links()):
            lib.llama_sampler_chain_add(self._chain, link)
        self.is_argmax = not biases and not sampling.keeps_probs and self._takes_greatest()
        """Whether it draws the greatest logit of a row as it is."""
        self._n_best = 0 if any(bias > 0.0 for bias in biases.values()) else self._n_candidates(len(biases))

    def _n_candidates(self, n_lowered: int) -> int:
        """The best logits of a row that are all it looks at, though so many may be lowered; 0: it looks at more."""
        if self._takes_greatest():
            return 1 + n_lowered
        return self._sampling.top_k + n_lowered if self._begins_with_top_k() else 0

    def _begins_with_top_k(self) -> bool:
        s = self._sampling
        if s.looks_back or s.mirostat_mode != 0 or s.top_k <= 0:
            return False
        if s.samplers is None:
            return s.temperature > 0.0
        return next((name for name in s.samplers if self._is_active(name)), None) == "top_k"

    def _takes_greatest(self) -> bool:
        s = self._sampling
        if s.looks_back:
            return False
        if s.samplers is None:
            return s.temperature == 0.0
        # these may take the greatest away
        others = {"dry", "typ_p", "xtc", "infill", "adaptive_p"}
        active = {name for name in s.samplers if self._is_active(name)}
        # a range of temperatures ends above 0
        takes_one = s.temperature <= 0.0 and s.dynatemp_range <= 0.0 and "temperature" in s.samplers
        return s.mirostat_mode == 0 and takes_one and not active & others

    def _is_active(self, sampler: str) -> bool:
        """Whether one of llama-server's samplers does anything."""
        s = self._sampling
        penalties = s.repeat_penalty != 1.0 or s.frequency_penalty != 0.0 or s.presence_penalty != 0.0
        active = {
            "penalties": s.penalty_last_n != 0 and penalties,
            "dry": s.dry_multiplier != 0.0 and s.dry_base >= 1.0 and s.dry_penalty_last_n != 0,
            "top_n_sigma": s.top_n_sigma > 0.0,
            "top_k": s.top_k > 0,
            "typ_p": s.typical_p < 1.0,
            "top_p": s.top_p < 1.0,
            "min_p": s.min_p > 0.0,
            "xtc": s.xtc_probability > 0.0 and s.xtc_threshold <= 0.5,
            "temperature": s.temperature != 1.0 or s.dynatemp_range > 0.0,
        }
        return active.get(sampler, True)

    def _bias_links(self, biases: Mapping[int, float]) -> list[Any]:
        n_vocab = self._vocab.n_tokens
        if not biases:
            return []
        unknown = [token for token in biases if not 0 <= token < n_vocab]
        if unknown:
            raise ValueError(f"logit_bias: expected tokens in 0..{n_vocab - 1}, found {unknown[0]}")
        array = (lib.llama_logit_bias * len(biases))(*biases.items())
        return [lib.llama_sampler_init_logit_bias(n_vocab, len(biases), array)]

    def _grammar_link(self) -> Any:
        """The grammar, and what looks after the reasoning; both have seen the end of the prompt."""
        s = self._sampling
        vocab = _address(self._vocab.pointer)
        grammar = 0
        try:
            if s.grammar is not None:
                triggers = (s.grammar_triggers, s.grammar_trigger_tokens)
                grammar = grammar_sampler(vocab, s.grammar, s.grammar_root, s.grammar_lazy, *triggers)
                try:
                    for token in () if s.grammar_lazy else s.grammar_prefill:
                        sampler_accept(grammar, token)
                except Eagle3Error as e:
                    raise ValueError(f"the grammar does not begin with the end of the prompt: {e}") from None
            if s.reasoning is not None:
                # the module is large, and few need it
                from .._chat import reasoning_sampler

                r = s.reasoning
                budget = min(r.budget, 2**31 - 1) if r.budget >= 0 else 2**31 - 1
                return _pointer(
                    reasoning_sampler(
                        vocab, grammar, s.grammar_lazy, r.start, r.ends, r.forced, budget, s.grammar_prefill
                    )
                )
        except BaseException:
            lib.llama_sampler_free(_pointer(grammar))
            raise
        return _pointer(grammar)

    def _budget_link(self) -> Any:
        """The reasoning's budget alone; it stands before all others."""
        from .._chat import reasoning_budget_sampler

        return _pointer(reasoning_budget_sampler(self._grammar_address))

    def _penalties_link(self) -> Any:
        s = self._sampling
        penalties = (s.repeat_penalty, s.frequency_penalty, s.presence_penalty)
        return lib.llama_sampler_init_penalties(self._vocab.n_tokens, s.penalty_last_n, *penalties)

    @property
    def _seed(self) -> int:
        seed = self._sampling.seed
        return _SEED_RANDOM if seed is None else int(seed) & 0xFFFFFFFF

    def _draw_link(self) -> Any:
        """A draw from the probabilities of what is left."""
        s = self._sampling
        if s.rng == "llama":
            return lib.llama_sampler_init_dist(self._seed)
        seed = secrets.randbits(32) if self._seed == _SEED_RANDOM else self._seed
        if s.samplers is None and s.temperature < 0.0:
            noise = GumbelNoise(seed, biases=s.biases(self._vocab))
        else:
            temperature = self._temperature()
            if temperature <= 0.0:  # the draw has one candidate, so that drafts need no noise
                return _pointer(GumbelNoise(seed).sampler())
            noise = GumbelNoise(
                seed,
                temperature=temperature,
                top_k=s.top_k if self._has("top_k") else 0,
                top_p=s.top_p if self._has("top_p") else 1.0,
                min_p=s.min_p if self._has("min_p") else 0.0,
                biases=s.biases(self._vocab),
            )
        self.noise = noise
        return _pointer(noise.sampler())

    def _temperature(self) -> float:
        """What logits are divided by; of a range that depends on the row, the middle."""
        s = self._sampling
        if not self._has("temperature"):
            return 1.0
        if s.samplers is None or s.dynatemp_range <= 0.0:
            return s.temperature
        return (max(0.0, s.temperature - s.dynatemp_range) + max(0.0, s.temperature + s.dynatemp_range)) / 2.0

    def _has(self, sampler: str) -> bool:
        samplers = self._sampling.samplers
        return samplers is None or sampler in samplers

    def _mirostat_link(self) -> Any:
        s, n_vocab = self._sampling, self._vocab.n_tokens
        if s.mirostat_mode == 1:
            return lib.llama_sampler_init_mirostat(n_vocab, self._seed, s.mirostat_tau, s.mirostat_eta, _N_MIROSTAT)
        return lib.llama_sampler_init_mirostat_v2(self._seed, s.mirostat_tau, s.mirostat_eta)

    def _links(self) -> list[Any]:
        """Those of llama_cpp."""
        s = self._sampling
        links = [self._penalties_link()]
        if s.has_rules:
            links.append(self._grammar_link())
        if s.temperature < 0.0:
            links.append(self._draw_link())
        elif s.temperature == 0.0:
            links.append(lib.llama_sampler_init_greedy())
        elif s.mirostat_mode:
            links.append(self._mirostat_link())
        else:
            links += [
                lib.llama_sampler_init_top_k(s.top_k),
                lib.llama_sampler_init_typical(s.typical_p, 1),
                lib.llama_sampler_init_top_p(s.top_p, 1),
                lib.llama_sampler_init_min_p(s.min_p, 1),
                lib.llama_sampler_init_temp(s.temperature),
                self._draw_link(),
            ]
        return links

    def _ordered_links(self) -> list[Any]:
        """Those of llama-server, but for those that do nothing."""
        s = self._sampling
        assert s.samplers is not None
        if s.mirostat_mode:
            return [lib.llama_sampler_init_temp(s.temperature), self._mirostat_link()]
        breakers = tuple(breaker.encode() for breaker in s.dry_sequence_breakers)
        dry = (s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n, breakers)
        make: dict[str, Callable[[], Any]] = {
            "penalties": self._penalties_link,
            "dry": lambda: self._vocab.dry.copy(self._vocab.pointer, dry),
            "top_n_sigma": lambda: lib.llama_sampler_init_top_n_sigma(s.top_n_sigma),
            "top_k": lambda: lib.llama_sampler_init_top_k(s.top_k),
            "typ_p": lambda: lib.llama_sampler_init_typical(s.typical_p, s.min_keep),
            "top_p": lambda: lib.llama_sampler_init_top_p(s.top_p, s.min_keep),
            "min_p": lambda: lib.llama_sampler_init_min_p(s.min_p, s.min_keep),
            "xtc": lambda: lib.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, s.min_keep, self._seed),
            "temperature": lambda: lib.llama_sampler_init_temp_ext(
                s.temperature, s.dynatemp_range, s.dynatemp_exponent
            ),
            "infill": lambda: lib.llama_sampler_init_infill(self._vocab.pointer),
        }
        links = [make[name]() for name in s.samplers if name in make and self._is_active(name)]
        if "adaptive_p" in s.samplers:  # it draws
            links.append(lib.llama_sampler_init_adaptive_p(s.adaptive_target, s.adaptive_decay, self._seed))
        else:
            links.append(self._draw_link())
        return links

    def see(self, prompt: Sequence[int]) -> None:
        """Have the penalties of llama-server's samplers look back at the prompt too."""
        s = self._sampling
        if s.samplers is None:
            return
        lengths = {"penalties": s.penalty_last_n, "dry": s.dry_penalty_last_n}
        n = max((n for name, n in lengths.items() if name in s.samplers and self._is_active(name)), default=0)
        for token in prompt[max(0, len(prompt) - n) :] if n > 0 else ():
            if token >= 0:  # an image says nothing twice
                lib.llama_sampler_accept(self._chain, token)
        if self.noise is not None:
            self.noise.position = 0

    def draw(self, target: Target, row: int, tokens: Sequence[int]) -> int:
        """Draw the token that follows `tokens` from a row of the target's last decode (-1: of somebody else's)."""
        if self.is_argmax:
            return target.argmax(row)
        if not self._processors and not self._sampling.keeps_probs:
            return target.sample(self._address, row, self._n_best, self._grammar_address)
        scores = target.logits(row)
        input_ids = np.asarray(tokens, dtype=np.intc)
        for processor in self._processors:
            scores[:] = processor(input_ids, scores)
        token = target.sample_from(self._address, scores, self._grammar_address)
        if self._sampling.keeps_probs:
            self.probs = target.sampled_probs() or [(token, 1.0)]  # greedy computes none
        return token

    def __del__(self) -> None:
        for name in ("_chain", "_grammar"):  # a link of the chain may look into the grammar
            sampler = self.__dict__.get(name)
            if sampler:
                lib.llama_sampler_free(sampler)


def check_rng(rng: str) -> None:
    """Raise ValueError for what is none of `RNGS`."""
    if rng not in RNGS:
        raise ValueError(f"expected rng to be one of {', '.join(RNGS)}, found {rng!r}")


@cache  # once
def _tell_ignored(option: str, why: str) -> None:
    _log.warning("%s has no effect: %s", option, why)


def _address(sampler: Any) -> int:
    return int(ctypes.cast(sampler, ctypes.c_void_p).value or 0)


def _pointer(address: int) -> Any:
    return ctypes.cast(address, lib.llama_sampler_p_ctypes)
