"""Log-probabilities of sampled tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .sequence import TokenLogprob


def token_prob(probs: Sequence[tuple[int, float]], token: int, n_top: int) -> TokenLogprob:
    """The log-probability of a token among the candidates that the samplers left. probs: the most probable first."""
    p = next((p for other, p in probs if other == token), 1.0)
    return TokenLogprob(token, math.log(p), {other: math.log(p) for other, p in probs[:n_top]})


def token_logprob(logits: npt.NDArray[np.single], token: int, n_top: int) -> TokenLogprob:
    """The log-softmax, in float64, of a token and of the n_top most probable tokens of a row of logits."""
    x = logits.astype(np.float64)
    peak = x.max()
    x -= peak + np.log(np.exp(x - peak).sum())
    best = np.argpartition(-x, n_top)[:n_top] if 0 < n_top < len(x) else np.arange(min(n_top, len(x)))
    best = best[np.argsort(-x[best], kind="stable")]
    return TokenLogprob(token, float(x[token]), {int(i): float(x[i]) for i in best})
