"""A llama_sampler chain, built from `Sampling`'s options, and what it has drawn."""

from __future__ import annotations

import ctypes
import logging
import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from .._core import (
    GrammarDrafter,
    GrammarLookahead,
    GumbelNoise,
    Target,
    grammar_is_waiting,
    grammar_sampler,
    sampler_accept,
)
from ..errors import Eagle3Error
from .forbidden import Forbidden
from .sampling import SAMPLERS, Sampling
from .vocab import Vocab

_log = logging.getLogger("llama_cpp_eagle3")
_SEED_RANDOM = int(lib.LLAMA_DEFAULT_SEED)
_SIGMA = 2.5
"""Standard deviation of a row's logits, about: any value from 1.5 to 3.5 is better for drafts than no cut."""
_N_TRIGGER = 16
"""Tokens that a lazy grammar's trigger has at most, about."""
_N_MIROSTAT = 100  # llama_cpp's choice of mirostat's m


class GrammarError(ValueError):
    """A grammar cannot be used."""


class SamplerChain:
    """A llama_sampler chain, which remembers what it has drawn: each text has its own."""

    def __init__(
        self,
        sampling: Sampling,
        vocab: Vocab,
        n_ctx: int,
        stop_tokens: Collection[int] = (),
        like: SamplerChain | None = None,
    ):
        """Build the chain for texts in a context of n_ctx tokens.

        stop_tokens: tokens that end the text, beside the model's own. like: a chain with the same grammar, of which
        nothing was drawn yet: its grammar is not read again, and what a grammar may take is for both together.

        Raises:
            ValueError: the grammar cannot be used, or an option names tokens that do not exist.
        """
        sampling = sampling.within(n_ctx, vocab.n_tokens)
        for option, sampler in sampling.ignored.items():
            _warn_ignored(option, "mirostat is on" if sampling.mirostat_mode else f"samplers lacks {sampler!r}")
        self._sampling, self._vocab = sampling, vocab
        self._seed = _SEED_RANDOM if sampling.seed is None else int(sampling.seed) & 0xFFFFFFFF
        self._there = SAMPLERS if sampling.samplers is None else sampling.samplers
        self._active = self._active_samplers()
        self._processors = list(sampling.logits_processors)
        self._forbidden = Forbidden(sampling, vocab, stop_tokens)
        self.noise: GumbelNoise | None = None
        """The noise that it draws with, if drafters can compute it."""
        self._grammar: Any = None
        self._grammar_address = 0
        self._gbnf_address = 0  # of the grammar itself, inside the link that applies it
        self._rules_address = 0
        self._forces: GrammarDrafter | None = None
        self._n_read = 0  # generated tokens that it knows of
        self.probs: list[tuple[int, float]] = []
        """The candidates of the last draw, the most probable first, with `keeps_probs`."""
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._address = _address(self._chain)
        biases = sampling.biases(vocab)
        if sampling.has_rules and sampling.samplers is not None:
            self._grammar = self._grammar_link(like)
            self._grammar_address = _address(self._grammar)
            if sampling.reasoning is not None:  # tokens that a spent budget forces are not refused draws
                lib.llama_sampler_chain_add(self._chain, self._budget_link())
        links = [self._bias_link(biases)] if biases else []
        for link in links + (self._links(like) if sampling.samplers is None else self._ordered_links()):
            lib.llama_sampler_chain_add(self._chain, link)
        takes_greatest = self._takes_greatest()
        self.is_argmax = takes_greatest and not biases and not sampling.keeps_probs and not self._forbidden
        """Whether it draws the greatest logit of a row, without changing logits."""
        self._n_best = 1 if takes_greatest else sampling.top_k if self._begins_with_top_k() else 0
        """It reads only so many of the best logits of a row, those that biases lower included; 0: it reads more."""
        if self._n_best:
            self._n_best = 0 if any(bias > 0.0 for bias in biases.values()) else self._n_best + len(biases)

    @property
    def _n_after_grammar(self) -> int:
        """How many of the best tokens that the grammar allows are used for the draw; 0: all."""
        s = self._sampling
        if s.samplers is not None or s.temperature < 0.0:  # llama-server's grammar checks the token that was drawn
            return 0
        if s.temperature == 0.0:
            return 1
        return max(0, s.top_k) if s.mirostat_mode == 0 else 0

    def _begins_with_top_k(self) -> bool:
        s = self._sampling
        if s.looks_back or s.mirostat_mode != 0 or s.top_k <= 0:
            return False
        if s.samplers is None:
            return s.temperature > 0.0
        return self._active[:1] == ("top_k",)

    def _takes_greatest(self) -> bool:
        """Whether the temperature leaves only the greatest logit; a range of temperatures never does."""
        s = self._sampling
        if s.looks_back:
            return False
        if s.samplers is None:
            return s.temperature == 0.0
        is_cold = s.mirostat_mode == 0 and s.temperature <= 0.0 and s.dynatemp_range <= 0.0
        # these may remove the greatest logit
        others = {"dry", "typ_p", "xtc", "infill", "adaptive_p"}
        return is_cold and "temperature" in s.samplers and others.isdisjoint(self._active)

    def lookahead(self) -> GrammarLookahead | None:
        """A view of what the grammar allows next, for the drafts of this step; None: anything."""
        if not self.may_force:
            return None
        return GrammarLookahead(self._rules_address, redraws=self._grammar is not None)

    @property
    def may_force(self) -> bool:
        """Whether there is a grammar that applies now, so that it may force tokens."""
        return bool(self._gbnf_address) and not grammar_is_waiting(self._gbnf_address)

    def forced(self, tokens: Sequence[int], n_generated: int, n_max: int) -> list[tuple[int, float]]:
        """What the grammar forces after a text, or nearly so: at most n_max tokens, each with its probability.

        n_generated: as many of the text's tokens, at its end, were generated.
        """
        if not self._gbnf_address:
            return []
        n_new, self._n_read = n_generated - self._n_read, n_generated
        if not self.may_force:
            return []
        if self._forces is None:
            self._forces = GrammarDrafter(_address(self._vocab.pointer), self._gbnf_address)
            if self._sampling.grammar_lazy:  # what was written before is not the grammar's
                n_new = min(n_new, _N_TRIGGER)
        if n_new < 0:  # the text went back
            self._forces.reset()
        self._forces.read(tokens[max(0, len(tokens) - n_new) :] if n_new > 0 else ())
        return self._forces.propose(n_max)

    def _active_samplers(self) -> tuple[str, ...]:
        """llama-server's samplers that have an effect, in their order."""
        s = self._sampling
        penalties = s.repeat_penalty != 1.0 or s.frequency_penalty != 0.0 or s.presence_penalty != 0.0
        active = {
            "penalties": s.repeat_last_n != 0 and penalties,
            "dry": s.dry_multiplier != 0.0 and s.dry_base >= 1.0 and s.dry_penalty_last_n != 0,
            "top_n_sigma": s.top_n_sigma > 0.0,
            "top_k": s.top_k > 0,
            "typ_p": s.typical_p < 1.0,
            "top_p": s.top_p < 1.0,
            "min_p": s.min_p > 0.0,
            "xtc": s.xtc_probability > 0.0 and s.xtc_threshold <= 0.5,
            "temperature": s.temperature != 1.0 or s.dynatemp_range > 0.0,
        }
        return tuple(name for name in s.samplers or () if active.get(name, True))

    def _bias_link(self, biases: Mapping[int, float]) -> Any:
        n_vocab = self._vocab.n_tokens
        for token, bias in biases.items():
            if not 0 <= token < n_vocab or math.isnan(bias):
                raise ValueError(f"logit_bias: expected numbers for tokens in 0..{n_vocab - 1}, found {token}: {bias}")
        array = (lib.llama_logit_bias * len(biases))(*biases.items())
        return lib.llama_sampler_init_logit_bias(n_vocab, len(biases), array)

    def _grammar_link(self, like: SamplerChain | None) -> Any:
        """The link of the grammar and the reasoning; both have accepted the end of the prompt."""
        s = self._sampling
        vocab = _address(self._vocab.pointer)
        grammar = 0
        try:
            if s.grammar is not None:
                grammar = self._gbnf_address = self._read_grammar(s.grammar) if like is None else like.copy_of_grammar()
            if s.reasoning is not None:
                # imported here: the module is large, and few requests need it
                from .._chat import reasoning_sampler

                r = s.reasoning
                budget = min(r.budget, 2**31 - 1) if r.budget >= 0 else 2**31 - 1
                grammar = reasoning_sampler(
                    vocab, grammar, s.grammar_lazy, r.start, r.ends, r.forced, budget, s.grammar_prefill
                )
        except BaseException:
            lib.llama_sampler_free(_pointer(grammar))
            raise
        self._rules_address = grammar
        return _pointer(grammar)

    def _read_grammar(self, text: str) -> int:
        """The address of a sampler of a grammar, which has accepted the end of the prompt."""
        s = self._sampling
        triggers, tokens = (s.grammar_triggers, s.grammar_trigger_tokens), self._vocab.token_tree()
        try:
            grammar = grammar_sampler(
                tokens, text, s.grammar_root, s.grammar_lazy, *triggers, n_best=self._n_after_grammar
            )
        except ValueError as e:
            raise GrammarError(str(e)) from None
        try:
            for token in () if s.grammar_lazy else s.grammar_prefill:
                sampler_accept(grammar, token)
        except BaseException as e:
            lib.llama_sampler_free(_pointer(grammar))
            if isinstance(e, Eagle3Error):
                raise ValueError(f"the grammar does not begin with the end of the prompt: {e}") from None
            raise
        return grammar

    def copy_of_grammar(self) -> int:
        """The address of a copy of the grammar's sampler, for another text."""
        return _address(lib.llama_sampler_clone(_pointer(self._gbnf_address)))

    def _budget_link(self) -> Any:
        """The link of the reasoning's budget, which comes before all others."""
        from .._chat import reasoning_budget_sampler

        return _pointer(reasoning_budget_sampler(self._grammar_address))

    def _penalties_link(self) -> Any:
        s = self._sampling
        penalties = (s.repeat_penalty, s.frequency_penalty, s.presence_penalty)
        return lib.llama_sampler_init_penalties(self._vocab.n_tokens, s.repeat_last_n, *penalties)

    def _draw_link(self) -> Any:
        """The link that draws from the probabilities of the candidates that are left."""
        s = self._sampling
        if s.rng == "llama":
            return lib.llama_sampler_init_dist(self._seed)
        seed = secrets.randbits(32) if self._seed == _SEED_RANDOM else self._seed
        if s.samplers is None and s.temperature < 0.0:
            noise = GumbelNoise(seed, biases=s.biases(self._vocab))
        else:
            temperature = s.temperature if "temperature" in self._there else 1.0
            if s.samplers is not None and s.dynatemp_range > 0.0 and "temperature" in self._there:
                low, high = (max(0.0, temperature + sign * s.dynatemp_range) for sign in (-1, 1))
                temperature = (low + high) / 2.0  # the real one depends on the row
            if temperature <= 0.0:  # the draw has one candidate, so drafters need no noise
                return _pointer(GumbelNoise(seed).sampler())
            noise = GumbelNoise(
                seed,
                temperature=temperature,
                top_k=s.top_k if "top_k" in self._there else 0,
                top_p=s.top_p if "top_p" in self._there else 1.0,
                min_p=self._min_p(),
                biases=s.biases(self._vocab),
            )
        self.noise = noise
        return _pointer(noise.sampler())

    def _min_p(self) -> float:
        """The min-p for drafters. Top-n-sigma becomes one by `_SIGMA`: a drafter does not know the target's logits."""
        s = self._sampling
        min_p = s.min_p if "min_p" in self._there else 0.0
        if s.samplers is None or "top_n_sigma" not in s.samplers or s.top_n_sigma <= 0.0:
            return min_p
        return max(min_p, math.exp(-_SIGMA * s.top_n_sigma))

    def _mirostat_link(self) -> Any:
        s, n_vocab = self._sampling, self._vocab.n_tokens
        if s.mirostat_mode == 1:
            return lib.llama_sampler_init_mirostat(n_vocab, self._seed, s.mirostat_tau, s.mirostat_eta, _N_MIROSTAT)
        return lib.llama_sampler_init_mirostat_v2(self._seed, s.mirostat_tau, s.mirostat_eta)

    def _links(self, like: SamplerChain | None) -> list[Any]:
        """The links of llama_cpp's chain."""
        s = self._sampling
        links = [self._penalties_link()]
        if s.has_rules:
            links.append(self._grammar_link(like))
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
        """The links of llama-server's chain, except those that do nothing."""
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
        links = [make[name]() for name in self._active if name in make]
        if "adaptive_p" in s.samplers:  # it draws itself
            links.append(lib.llama_sampler_init_adaptive_p(s.adaptive_target, s.adaptive_decay, self._seed))
        else:
            links.append(self._draw_link())
        return links

    def see(self, prompt: Sequence[int]) -> None:
        """Let llama-server's samplers accept the prompt, for their penalties."""
        s = self._sampling
        if s.samplers is None:
            return
        lengths = {"penalties": s.repeat_last_n, "dry": s.dry_penalty_last_n}
        n = max((n for name, n in lengths.items() if name in self._active), default=0)
        for token in prompt[max(0, len(prompt) - n) :] if n > 0 else ():
            if token >= 0:  # negative ones are an image's
                lib.llama_sampler_accept(self._chain, token)
        if self.noise is not None:
            self.noise.position = 0

    def draw(self, target: Target, row: int, tokens: Sequence[int], n_generated: int = 0) -> int:
        """Draw the token that follows `tokens` from a row of the target's last decode (-1: not the engine's).

        n_generated: how many of them are not the prompt's.
        """
        if self.is_argmax:
            return target.argmax(row)
        forbidden = self._forbidden.after(tokens, n_generated) if self._forbidden else ()
        is_changed = bool(forbidden) or self._forbidden.is_always
        if not self._processors and not self._sampling.keeps_probs and not is_changed:
            return target.sample(self._address, row, self._n_best, self._grammar_address)
        scores = target.logits(row)
        if is_changed:
            self._forbidden.lower(scores, forbidden)
        input_ids = np.asarray(tokens, dtype=np.intc)
        for processor in self._processors:
            scores[:] = processor(input_ids, scores)
        token = target.sample_from(self._address, scores, self._grammar_address)
        if is_changed and not self._processors:  # these have the last word
            self._forbidden.check(token, forbidden)
        if self._sampling.keeps_probs:
            self.probs = target.sampled_probs() or [(token, 1.0)]  # a greedy draw computes no probabilities
        return token

    def __del__(self) -> None:
        for name in ("_chain", "_grammar"):  # first the chain, as its links may use the grammar
            sampler = self.__dict__.get(name)
            if sampler:
                lib.llama_sampler_free(sampler)


@cache  # once
def _warn_ignored(option: str, why: str) -> None:
    _log.warning("%s has no effect: %s", option, why)


def _address(sampler: Any) -> int:
    return int(ctypes.cast(sampler, ctypes.c_void_p).value or 0)


def _pointer(address: int) -> Any:
    return ctypes.cast(address, lib.llama_sampler_p_ctypes)
