"""Plain llama_cpp's text after a prompt: the one reference for every text of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
import pytest

from llama_cpp_eagle3.engine import Rng, Sampling
from loading import load_dice, take

N_CTX = 768
ROUNDING = 5e-4
"""Logits of batches of different shapes differ by less than this."""


@dataclass(frozen=True)
class Draw:
    """The way in which tokens are drawn, in options that the engine and llama_cpp share."""

    temperature: float = 0.0
    top_k: int = 40
    repeat_penalty: float = 1.0
    mirostat_mode: int = 0
    seed: int = 1
    ignore_eos: bool = False
    rng: Rng = "gumbel"

    def sampling(self, processors: Sequence[Any] = ()) -> Sampling:
        """Return the engine's options."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            repeat_penalty=self.repeat_penalty,
            mirostat_mode=self.mirostat_mode,
            seed=self.seed,
            rng=self.rng,
            ignore_eos=self.ignore_eos,
            logits_processors=list(processors),
        )

    def options(self) -> dict[str, Any]:
        """Return the options of `Llama.generate`, except seed, ignore_eos and rng."""
        return {
            "temp": self.temperature,
            "top_k": self.top_k,
            "repeat_penalty": self.repeat_penalty,
            "mirostat_mode": self.mirostat_mode,
        }


class Reference:
    """Plain decoding of a target, which remembers earlier texts."""

    def __init__(self, target: Any, **options: Any):
        self.plain = load_dice(target, n_ctx=N_CTX, n_batch=N_CTX, **options)
        self.eog = [t for t in range(self.plain.n_vocab()) if llama_cpp.llama_vocab_is_eog(self._vocab(), t)]
        self.n_ties = 0
        self._texts: dict[tuple[tuple[int, ...], Draw], list[int]] = {}

    def _vocab(self) -> Any:
        return llama_cpp.llama_model_get_vocab(self.plain.model)

    def text(self, prompt: Sequence[int], draw: Draw, n: int) -> list[int]:
        """Return the first n tokens after a prompt, end-of-generation tokens included."""
        key = (tuple(prompt), draw)
        known = self._texts.get(key, [])
        if len(known) < n:
            n_more = min(max(n, 32, 2 * len(known)), N_CTX - len(prompt))
            known = self._texts[key] = self._take(prompt, draw, n_more)
        return known[:n]

    def _take(
        self, prompt: Sequence[int], draw: Draw, n: int, processor: Callable[..., Any] | None = None
    ) -> list[int]:
        def no_end(ids: Any, scores: Any) -> Any:
            scores[self.eog] = -np.inf
            return scores

        processors = [p for p in (processor, no_end if draw.ignore_eos else None) if p is not None]
        options = {"logits_processor": llama_cpp.LogitsProcessorList(processors)} if processors else {}
        self.plain.reset()
        self.plain.set_seed(draw.seed)
        self.plain.rng = draw.rng
        return take(self.plain, prompt, n, **draw.options(), **options)

    def check(self, prompt: Sequence[int], draw: Draw, found: list[int]) -> list[int]:
        """Fail unless plain decoding gives these tokens; return them and one more, or fewer after a tie."""
        expected = self.text(prompt, draw, len(found) + 1)
        if expected[: len(found)] == found:
            return expected
        i = next(i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b)
        if not self._is_close(prompt, draw, i, found[i]):
            pytest.fail(f"token {i} of {found} is not {expected[i]}, after {list(prompt)} with {draw}")
        self.n_ties += 1
        if draw.temperature > 0.0:
            return expected[:i]  # the texts part here, and the sampler's random numbers are unknown
        return [*found[: i + 1], *self.check([*prompt, *found[: i + 1]], draw, found[i + 1 :])]

    def _is_close(self, prompt: Sequence[int], draw: Draw, i: int, token: int) -> bool:
        """Whether token i is possible if the logits are off by no more than rounding."""
        rng = np.random.default_rng(0)

        def nudge(ids: Any, scores: Any) -> Any:
            if len(ids) == len(prompt) + i:
                scores += rng.uniform(-ROUNDING, ROUNDING, scores.shape).astype(np.float32)
            return scores

        return any(self._take(prompt, draw, i + 1, nudge)[i] == token for _ in range(40))
