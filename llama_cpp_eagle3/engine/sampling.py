"""How tokens are drawn from rows of logits: options, and llama.cpp's samplers that they stand for."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from .._core import Target
from .vocab import Vocab

LogitsProcessor = Callable[[npt.NDArray[np.intc], npt.NDArray[np.single]], npt.NDArray[np.single]]
"""(tokens so far, logits float32 (n_vocab,)) -> logits, as llama_cpp has it. It may change the logits in place."""

_N_MIROSTAT = 100  # llama_cpp's choice of mirostat's m


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Everything that says which token a row of logits becomes; names and defaults are llama_cpp's.

    The samplers stand in the order that `llama_cpp.Llama` has: logits processors, logit bias, penalties, grammar, then
    greedy (temperature 0), plain (temperature < 0), mirostat, or top-k, typical-p, top-p, min-p, temperature.
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
    """None: another one each time."""
    grammar: str | None = None
    """In GBNF."""
    grammar_root: str = "root"
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token -> what is added to its logit."""
    ignore_eos: bool = False
    """Never draw a token that ends the text."""
    logits_processors: Sequence[LogitsProcessor] = ()

    def __post_init__(self) -> None:
        for name in (
            *("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "frequency_penalty"),
            *("presence_penalty", "mirostat_tau", "mirostat_eta"),
        ):
            if math.isnan(getattr(self, name)):
                raise ValueError(f"expected {name} to be a number, found nan")
        if self.mirostat_mode not in (0, 1, 2):
            raise ValueError(f"expected mirostat_mode to be 0, 1 or 2, found {self.mirostat_mode}")

    @property
    def changes_logits(self) -> bool:
        """Whether something changes the logits before the best of them are looked for."""
        return bool(
            self.repeat_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.grammar is not None
            or self.logit_bias
            or self.ignore_eos
            or self.logits_processors
        )


class Chain:
    """A llama_sampler chain, which remembers what it has drawn: one for each text."""

    def __init__(self, sampling: Sampling, vocab: Vocab):
        """Build the chain.

        Raises:
            ValueError: llama.cpp cannot parse the grammar, or the bias is for tokens that do not exist.
        """
        self._sampling, self._vocab = sampling, vocab
        self._processors = list(sampling.logits_processors)
        # a chain that begins with top-k looks at no others
        self._n_best = 0
        if not sampling.changes_logits and sampling.temperature > 0.0 and sampling.mirostat_mode == 0:
            self._n_best = max(0, sampling.top_k)
        self.is_argmax = not sampling.changes_logits and sampling.temperature == 0.0
        """Whether it draws the greatest logit of a row as it is."""
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._address = int(ctypes.cast(self._chain, ctypes.c_void_p).value or 0)
        for link in self._links():
            lib.llama_sampler_chain_add(self._chain, link)

    def _links(self) -> list[Any]:
        s, vocab = self._sampling, self._vocab
        seed = lib.LLAMA_DEFAULT_SEED if s.seed is None else s.seed & 0xFFFFFFFF
        links = []
        bias = dict(s.logit_bias) | (dict.fromkeys(vocab.eog, -math.inf) if s.ignore_eos else {})
        if bias:
            unknown = [token for token in bias if not 0 <= token < vocab.n_tokens]
            if unknown:
                raise ValueError(f"logit_bias: expected tokens in 0..{vocab.n_tokens - 1}, found {unknown[0]}")
            array = (lib.llama_logit_bias * len(bias))(*bias.items())
            links.append(lib.llama_sampler_init_logit_bias(vocab.n_tokens, len(bias), array))
        penalties = (s.repeat_penalty, s.frequency_penalty, s.presence_penalty)
        links.append(lib.llama_sampler_init_penalties(vocab.n_tokens, s.penalty_last_n, *penalties))
        if s.grammar is not None:
            grammar = lib.llama_sampler_init_grammar(vocab.pointer, s.grammar.encode(), s.grammar_root.encode())
            if not grammar:
                raise ValueError(f"llama.cpp cannot parse the grammar (its log says where):\n{s.grammar}")
            links.append(grammar)
        if s.temperature < 0.0:
            links.append(lib.llama_sampler_init_dist(seed))
        elif s.temperature == 0.0:
            links.append(lib.llama_sampler_init_greedy())
        elif s.mirostat_mode == 1:
            mirostat = (seed, s.mirostat_tau, s.mirostat_eta, _N_MIROSTAT)
            links.append(lib.llama_sampler_init_mirostat(vocab.n_tokens, *mirostat))
        elif s.mirostat_mode == 2:
            links.append(lib.llama_sampler_init_mirostat_v2(seed, s.mirostat_tau, s.mirostat_eta))
        else:
            links += [
                lib.llama_sampler_init_top_k(s.top_k),
                lib.llama_sampler_init_typical(s.typical_p, 1),
                lib.llama_sampler_init_top_p(s.top_p, 1),
                lib.llama_sampler_init_min_p(s.min_p, 1),
                lib.llama_sampler_init_temp(s.temperature),
                lib.llama_sampler_init_dist(seed),
            ]
        return links

    def draw(self, target: Target, row: int, tokens: Sequence[int]) -> int:
        """Draw the token that follows `tokens` from a row of the target's last decode (-1: of somebody else's)."""
        if self.is_argmax:
            return target.argmax(row)
        if not self._processors:
            return target.sample(self._address, row, self._n_best)
        scores = target.logits(row)
        input_ids = np.asarray(tokens, dtype=np.intc)
        for processor in self._processors:
            scores[:] = processor(input_ids, scores)
        return target.sample_from(self._address, scores)

    def __del__(self) -> None:
        chain = self.__dict__.get("_chain")
        if chain:
            lib.llama_sampler_free(chain)
