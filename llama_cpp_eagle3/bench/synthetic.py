"""Acceptance by fixed odds instead of verification: speed at real shapes with weights that know nothing.

As in vLLM (`synthetic_acceptance_rates`) and llama.cpp (`--spec-synth-rates`): rate i is the chance that the first
i + 1 drafted tokens are all accepted, whatever they are. The target's pass and the sampler run as ever, only what they
say is replaced. In a tree, the likeliest successor of the last accepted token is the one that has the chance; deeper
than the rates go nothing is accepted.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Sequence
from typing import Any

from .. import Eagle3Llama


def conditional(rates: Sequence[float]) -> list[float]:
    """The chance of each token to be accepted, given that those before it were.

    Raises:
        ValueError: not a list of chances that never rise.
    """
    rises = any(b > a for a, b in itertools.pairwise(rates))
    if not rates or rises or not all(0.0 <= rate <= 1.0 for rate in rates):
        raise ValueError(f"expected chances between 0 and 1 that never rise, found {list(rates)}")
    before = [1.0, *rates[:-1]]
    return [rate / last if last > 0 else 0.0 for rate, last in zip(rates, before, strict=True)]


def rates_of(text: str) -> list[float]:
    """The argument of --synthetic-acceptance."""
    try:
        rates = [float(part) for part in text.split(",")]
        conditional(rates)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None
    return rates


class SyntheticLlama(Eagle3Llama):
    """An `Eagle3Llama` whose drafts are accepted by fixed odds. What it generates means nothing."""

    def __init__(self, model_path: str, rates: Sequence[float], **options: Any):
        """Load; the arguments are those of `Eagle3Llama`, and the rates."""
        self._chances = conditional(rates)
        self._dice = random.Random(0)
        super().__init__(model_path, **options)

    def _make_draw(self, *args: Any) -> Any:
        draw = super()._make_draw(*args)

        def decide(row: int) -> int:
            token = draw(row)  # takes the time that it takes
            return token if self._round is None else self._decide(row, token)

        return decide

    def _decide(self, row: int, token: int) -> int:
        draft = self._round.draft  # type: ignore[union-attr]
        children = draft.children(row - 1)
        if not children:
            return token
        depth = len(self._round.path) - 1  # type: ignore[union-attr]
        best = max(children, key=lambda i: draft.probs[i]) if draft.probs else children[0]
        if depth < len(self._chances) and self._dice.random() < self._chances[depth]:
            return int(draft.tokens[best])
        guesses = {draft.tokens[i] for i in children}
        while token in guesses:
            token = (token + 1) % self._n_vocab
        return token
