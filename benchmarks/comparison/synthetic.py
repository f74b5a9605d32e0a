"""Accept drafted tokens by fixed odds instead of verification: speed at real shapes with random weights.

As in vLLM (`synthetic_acceptance_rates`) and llama.cpp (`--spec-synth-rates`): rate i is the chance that the first
i + 1 drafted tokens are all accepted, whatever they are. The target's pass and the sampler run as ever, but their
tokens are replaced. In a tree, the likeliest successor of the last accepted token has the chance; below the depth
of the last rate no token is accepted.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Sequence

from llama_cpp_eagle3.engine import ScheduledSequence


def conditional(rates: Sequence[float]) -> list[float]:
    """Return the chance of each token to be accepted, given that the tokens before it were.

    Raises:
        ValueError: not a list of chances that never rise.
    """
    rises = any(b > a for a, b in itertools.pairwise(rates))
    if not rates or rises or not all(0.0 <= rate <= 1.0 for rate in rates):
        raise ValueError(f"expected chances between 0 and 1 that never rise, found {list(rates)}")
    before = [1.0, *rates[:-1]]
    return [rate / last if last > 0 else 0.0 for rate, last in zip(rates, before, strict=True)]


def rates_of(text: str) -> list[float]:
    """Parse the argument of --synthetic-acceptance."""
    try:
        rates = [float(part) for part in text.split(",")]
        conditional(rates)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None
    return rates


class SyntheticAcceptance:
    """A hook for `Stepper.on_sample` that accepts drafts by fixed odds. The generated text means nothing."""

    def __init__(self, rates: Sequence[float], n_vocab: int):
        """rates: as in the module's docstring. n_vocab: the target's vocabulary."""
        self._chances = conditional(rates)
        self._dice = random.Random(0)
        self._n_vocab = n_vocab

    def __call__(self, part: ScheduledSequence, token: int) -> int:
        """Return the token to continue with, in place of the drawn one."""
        draft = part.draft
        children = draft.children(part.node)
        if not children:
            return token
        depth = len(part.sampled)
        best = max(children, key=lambda i: draft.probs[i]) if draft.probs else children[0]
        if depth < len(self._chances) and self._dice.random() < self._chances[depth]:
            return int(draft.tokens[best])
        guesses = {draft.tokens[i] for i in children}
        while token in guesses:
            token = (token + 1) % self._n_vocab
        return token
