"""How tokens are sampled from rows of logits: options, and the llama.cpp samplers that they configure."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .arguments import check_fields
from .vocab import Vocab

_log = logging.getLogger("llama_cpp_eagle3")

LogitsProcessor = Callable[[npt.NDArray[np.intc], npt.NDArray[np.single]], npt.NDArray[np.single]]
"""(tokens so far, logits float32 (n_vocab,)) -> logits, as llama_cpp has it. It may change the logits in place."""

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama.cpp's samplers in llama-server's order; there are also "infill" and "adaptive_p"."""

Rng = Literal["gumbel", "llama"]
RNGS: tuple[Rng, ...] = ("gumbel", "llama")
"""Random generators of the last draw, see `Sampling.rng`."""

_LARGEST, _SMALLEST = 1e9, 1e-9
_ORDERED_ONLY = ("top_n_sigma", "xtc_probability", "dynatemp_range", "dry_multiplier", "min_keep")
"""Options for which llama_cpp's chain has no sampler."""
_F32_TINY = float(np.finfo(np.float32).tiny)  # reciprocals of smaller numbers may be infinite
_F32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The part of a text in which the model reasons. A lazy grammar ignores it, and it may have a budget of tokens."""

    start: Sequence[int]
    """Tokens that begin it."""
    ends: Sequence[Sequence[int]]
    """Sequences of tokens, each of which ends it."""
    forced: Sequence[int]
    """Tokens that are written when the budget is spent: a message, if any, and the first of `ends`."""
    budget: int = -1
    """Tokens; -1 = no limit."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The options of a sampler chain; names and defaults are llama_cpp's. Probabilities and shares are 0 to 1.

    Without `samplers` the chain has the order of `llama_cpp.Llama`: logits processors, logit bias, penalties, grammar,
    then one of: greedy (temperature 0), plain sampling (temperature < 0), mirostat, or top-k, typical-p, top-p, min-p,
    temperature.

    With `samplers` it is llama-server's: logit bias, these samplers in their order, and the draw. Temperature 0 is
    greedy, the penalties count the prompt too, and the grammar checks the token that was drawn; only if it refuses that
    one it is applied to all tokens. An option that only this chain has (min_keep, top-n-sigma, XTC, dynamic
    temperature, DRY) implies `SAMPLERS`, if `samplers` is not given.

    Tokens that the model's header suppresses are never sampled.

    Raises:
        ValueError: a value cannot work: another type, an unknown sampler, rng or mirostat mode, a penalty that is not
            finite.
    """

    temperature: float = 0.8
    """Logits are divided by it; 0 = greedy, < 0 = sample from the unchanged softmax (without `samplers`)."""
    top_k: int = 40
    """Keep the k most probable tokens; <= 0 = all."""
    top_p: float = 0.95
    """Keep the most probable tokens that have this share of the probability together; 1 = all (arXiv 1904.09751)."""
    min_p: float = 0.05
    """Keep tokens that are at least this share as probable as the most probable one; 0 = all (arXiv 2407.01082)."""
    typical_p: float = 1.0
    """Keep the tokens whose information is closest to the entropy, up to this share; 1 = all (arXiv 2202.00666)."""
    repeat_penalty: float = 1.0
    """Positive logits of tokens in the last `repeat_last_n` are divided by it, negative ones multiplied; 1 = off."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit as often as the token is among them."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token among them."""
    repeat_last_n: int = 64
    """Generated tokens that the penalties look back at."""
    mirostat_mode: int = 0
    """1 or 2: sample by mirostat, instead of top-k to min-p (arXiv 2007.14966); 0 = off."""
    mirostat_tau: float = 5.0
    """The surprise of a token that mirostat aims at, in bits."""
    mirostat_eta: float = 0.1
    """Mirostat's learning rate."""
    seed: int | None = None
    """The generator's seed; None, or 2**32 - 1 as in llama.cpp: a random one."""
    rng: Rng = "gumbel"
    """"gumbel": take the token with the greatest logit + Gumbel noise, which is a draw from the softmax. The noise is a
    function of the seed, the number of tokens drawn and the token, so the drafter can compute it too. "llama":
    llama.cpp's `dist`, which gives its texts for a seed. Both sample the same distribution. XTC, mirostat and
    adaptive_p always use llama.cpp's generator."""
    grammar: str | None = None
    """Grammar in GBNF that the text must follow."""
    grammar_root: str = "root"
    """The rule that the grammar begins with."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token -> what is added to its logit; -inf = never sample it."""
    ignore_eos: bool = False
    """Never sample a token that ends the text."""
    min_tokens: int = 0
    """Before so many tokens, sample none that ends the text, and take no stop string for its end."""
    bad_words: Sequence[Sequence[int]] = ()
    """Words as tokens: after the others of a word its last one is never sampled."""
    allowed_tokens: Sequence[int] | None = None
    """Sample only these; None: any."""
    logits_processors: Sequence[LogitsProcessor] = ()
    """Functions that change each row of logits first, in this order."""

    samplers: Sequence[str] | None = None
    """The chain of llama.cpp's samplers, in order: of `SAMPLERS`, "infill" and "adaptive_p"."""
    min_keep: int = 0
    """Tokens that top-p, min-p, typical-p and XTC leave at least."""
    top_n_sigma: float = -1.0
    """Keep tokens whose logit is within so many standard deviations of the greatest; <= 0 = all (arXiv 2411.07641)."""
    xtc_probability: float = 0.0
    """Chance that XTC removes all tokens above `xtc_threshold` but the least probable of them."""
    xtc_threshold: float = 0.1
    """Probability."""
    dynatemp_range: float = 0.0
    """The temperature varies with the entropy by this much around `temperature`; 0 = fixed."""
    dynatemp_exponent: float = 1.0
    """The exponent of the normalized entropy in that."""
    dry_multiplier: float = 0.0
    """Strength of DRY, which penalizes tokens that would repeat a sequence of the text; 0 = off."""
    dry_base: float = 1.75
    """The penalty is dry_multiplier * dry_base ** (tokens repeated before this one - dry_allowed_length)."""
    dry_allowed_length: int = 2
    """Repetitions of up to so many tokens are free."""
    dry_penalty_last_n: int = 64
    """Tokens in which DRY looks for repetitions."""
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    """Strings that a repetition does not extend across."""
    adaptive_target: float = -1.0
    """Probability of sampled tokens that adaptive_p aims at; < 0 = off."""
    adaptive_decay: float = 0.9
    """Weight of earlier tokens in adaptive_p's average."""
    grammar_lazy: bool = False
    """Whether the grammar waits for one of its triggers."""
    grammar_triggers: Sequence[str] = ()
    """Regular expressions. The grammar's text begins with the first group of a match, or with the match."""
    grammar_trigger_tokens: Sequence[int] = ()
    """Tokens that start the grammar too; they belong to its text."""
    grammar_prefill: Sequence[int] = ()
    """Tokens at the end of the prompt that belong to the grammar's text, and to the reasoning's."""
    reasoning: Reasoning | None = None
    """The part of the text that a lazy grammar ignores."""
    keeps_probs: bool = False
    """Keep the probabilities of the candidates that the samplers left: see `SamplerChain.probs`."""

    def __post_init__(self) -> None:
        check_fields(self)
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
        if self.min_tokens < 0:
            raise ValueError(f"expected min_tokens to be 0 or more, found {self.min_tokens}")
        if self.samplers is None and any(getattr(self, name) != _DEFAULTS[name] for name in _ORDERED_ONLY):
            object.__setattr__(self, "samplers", SAMPLERS)

    def within(self, n_ctx: int, n_vocab: int) -> Sampling:
        """The same options, with numbers limited to what a context and a vocabulary can need; draws are the same.

        llama.cpp allocates memory for all tokens that the penalties may look back at: 8 GiB for 2147483647, and larger
        numbers overflow. Its floats have 32 bits: a number that is infinite there makes NaN of logits.
        """
        limits = {
            "repeat_penalty": (_SMALLEST, _LARGEST),
            "top_k": (0, n_vocab),
            "min_keep": (0, n_vocab),
            "repeat_last_n": (0, n_ctx),
            "dry_penalty_last_n": (0, n_ctx),
            "dry_allowed_length": (-n_ctx, n_ctx),
        }
        changed: dict[str, Any] = {}
        for name, value in zip(_NUMBERS, _numbers_of(self), strict=True):
            low, high = limits.get(name, (-_LARGEST, _LARGEST))
            if isinstance(value, float) or name in limits:
                within = min(max(value, low), high)
                if within != value:
                    changed[name] = within
        bias = {token: x for token, x in self.logit_bias.items() if x != -math.inf and abs(x) > _LARGEST}
        if bias:
            bias = {token: min(max(x, -_LARGEST), _LARGEST) for token, x in bias.items()}
            changed["logit_bias"] = {**self.logit_bias, **bias}
        return replace(self, **changed) if changed else self

    @property
    def has_rules(self) -> bool:
        """Whether there is a grammar or a reasoning."""
        return self.grammar is not None or self.reasoning is not None

    def biases(self, vocab: Vocab) -> dict[int, float]:
        """What is added to the logits of single tokens."""
        never = vocab.suppressed | (vocab.eog if self.ignore_eos else frozenset())
        return dict(self.logit_bias) | dict.fromkeys(never, -math.inf)

    @property
    def ignored(self) -> dict[str, str]:
        """Options that are set but have no effect -> the sampler that is missing in `samplers`."""
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
            if sampler not in there and getattr(self, name) != _DEFAULTS[name]
        }

    @property
    def looks_back(self) -> bool:
        """Whether logits are changed, other than by a bias, before the best of them are selected."""
        return bool(
            self.repeat_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.has_rules
            or self.logits_processors
        )


_DEFAULTS = {f.name: f.default for f in fields(Sampling)}
_NUMBERS = tuple(f.name for f in fields(Sampling) if f.type in ("int", "float"))
_numbers_of = attrgetter(*_NUMBERS)
