"""The loss of a head on a sample: training-time test against the target's probabilities."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from .eagle import Head
from .packing import pack
from .rows import Sample

STEP_WEIGHT = 0.8
"""Step i counts this to the power of i, as in EAGLE-3."""


class Teacher:
    """The target's probabilities over the draft vocabulary."""

    def __init__(self, d2t: Tensor, n_vocab: int) -> None:
        self.t2d = torch.full((n_vocab,), -1, dtype=torch.long, device=d2t.device)
        self.t2d[d2t] = torch.arange(len(d2t), device=d2t.device)

    def __call__(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (draft ids, probabilities that sum to 1, best token, weight) of the packed rows of samples.

        Ids and probabilities have shape (n_tokens, TOP_K), the others (n_tokens,). The weight is 0 where the best token
        cannot be drafted, and for rows that predict tokens of the prompt, whose probabilities are not known.
        """
        device = self.t2d.device

        def packed(name: str) -> Tensor:
            parts = [np.pad(getattr(s, name), ((len(s.tokens) - len(s.top_ids), 0), (0, 0))) for s in samples]
            return torch.from_numpy(np.concatenate(parts)).to(device)

        top_ids, top_p = packed("top_ids").long(), packed("top_p").float()
        ids = self.t2d[top_ids]
        p = top_p * (ids >= 0)
        weight = ((ids[:, 0] >= 0) & (top_p[:, 0] > 0)).float()
        return ids.clamp_min(0), p / p.sum(-1, keepdim=True).clamp_min(1e-6), top_ids[:, 0], weight


@dataclass
class Loss:
    """The loss of a head on samples, and how many rows it gets right."""

    total: float = 0.0
    n_rows: float = 0.0
    right: list[float] = field(default_factory=list)
    """Rows whose best token was right, per step."""
    n_right: list[float] = field(default_factory=list)

    def add(self, other: Loss) -> None:
        """Add another's rows."""
        self.total, self.n_rows = self.total + other.total, self.n_rows + other.n_rows
        self.right = [a + b for a, b in zip_longest(self.right, other.right, fillvalue=0.0)]
        self.n_right = [a + b for a, b in zip_longest(self.n_right, other.n_right, fillvalue=0.0)]

    @classmethod
    def sum(cls, parts: Iterable[Loss]) -> Loss:
        """Add up several."""
        whole = cls()
        for part in parts:
            whole.add(part)
        return whole

    @property
    def mean(self) -> float:
        """The loss per row, in nats."""
        return self.total / max(1.0, self.n_rows)

    @property
    def accuracy(self) -> list[float]:
        """The share of rows whose best token was right, per step."""
        return [round(a / max(1.0, n), 4) for a, n in zip(self.right, self.n_right, strict=True)]


def sample_anchors(sample: Sample, n_steps: int, n_anchors: int, rng: np.random.Generator) -> Tensor:
    """Draw the rows of the answer that later steps start from, ascending; each has n_steps rows after it."""
    first, last = sample.n_first, len(sample.tokens) - n_steps - 1
    n = max(0, last - first)
    return torch.from_numpy(np.sort(first + rng.choice(n, size=min(n, n_anchors), replace=False)))


def ttt_loss(
    head: Head, teacher: Teacher, samples: Sequence[Sample], n_steps: int, anchors: Sequence[Tensor]
) -> tuple[Tensor, Loss]:
    """Compute the loss of the training-time test: n_steps draft steps, each on the states of the step before.

    anchors: for each sample, the rows that later steps start from.

    Returns:
        The mean over texts of the mean over the answer's rows of the soft cross entropy, weighted by STEP_WEIGHT^i at
        step i, and 0 after a chain's first wrong token, since nothing after that is accepted (DFlash, arXiv
        2607.01893); and the figures of all rows.
    """
    texts = pack(samples, anchors, head.device)
    ids, p, best, weight = teacher(samples)
    text_ids = texts.text_ids
    steps = list(head.steps(texts, n_steps))
    indices = [index for index, _ in steps]
    at = torch.cat(indices)
    log_q = head.logits(torch.cat([normed for _, normed in steps], dim=1))[0].float().log_softmax(-1)
    right = (head.d2t[log_q.detach().argmax(-1)] == best[at]).float().split([len(index) for index in indices])
    each = -(p[at] * log_q.gather(1, ids[at])).sum(-1) * weight[at] * _reached(indices, right)
    n_rows = [text_ids[index].bincount(minlength=len(samples)) for index in indices]  # per step and text
    share = torch.cat([STEP_WEIGHT**i / n_rows[i][text_ids[index]] for i, index in enumerate(indices)])
    of_text = torch.zeros(len(samples), device=share.device).index_add(0, text_ids[at], each * share)
    figures = Loss(
        float((of_text.detach() * n_rows[0]).sum()),
        float(n_rows[0].sum()),
        [float(hits.sum()) for hits in right],
        [float(len(hits)) for hits in right],
    )
    return of_text.mean(), figures


def _reached(indices: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """1 for rows whose chain has no wrong token before them, else 0, of all steps one after the other.

    indices: of each step the indices of the tokens that its rows predict, as `Head.steps` yields them; right: whether
    they do. The rows of a later step are those of the step before, the rows of step 1 some of step 0.
    """
    of_token = torch.zeros(int(indices[0].max()) + 1, device=right[0].device).index_put((indices[0],), right[0])
    reached, chain = [torch.ones_like(right[0])], None
    for i, index in enumerate(indices[1:], 1):
        chain = of_token[index - 1] if chain is None else chain * right[i - 1]
        reached.append(chain)
    return torch.cat(reached)
