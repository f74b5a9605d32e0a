"""The loss of a head on a sample: training-time test against the target's probabilities."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .eagle import Head
from .rows import Sample

STEP_WEIGHT = 0.8
"""Step i counts this to the power of i, as in EAGLE-3."""


class Teacher:
    """The target's probabilities over the draft vocabulary."""

    def __init__(self, d2t: Tensor, n_vocab: int) -> None:
        self.t2d = torch.full((n_vocab,), -1, dtype=torch.long, device=d2t.device)
        self.t2d[d2t] = torch.arange(len(d2t), device=d2t.device)

    def __call__(self, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """(draft ids, probabilities that sum to 1, weight) of the rows from n_first on.

        The weight is 0 where the best token cannot be drafted.
        """
        ids = self.t2d[torch.from_numpy(sample.top_ids).to(self.t2d.device).long()]
        p = torch.from_numpy(sample.top_p).to(ids.device).float() * (ids >= 0)
        weight = (ids[:, 0] >= 0).float()
        return ids.clamp_min(0), p / p.sum(-1, keepdim=True).clamp_min(1e-6), weight


@dataclass
class Loss:
    """What a head gets wrong on samples."""

    total: float = 0.0
    n_rows: float = 0.0
    right: list[float] = field(default_factory=list)
    """Rows whose best token was right, per step."""
    n_right: list[float] = field(default_factory=list)

    def add(self, other: Loss) -> None:
        """Add another's rows."""
        self.total, self.n_rows = self.total + other.total, self.n_rows + other.n_rows
        n = len(other.right)
        self.right = [a + b for a, b in zip(self.right or [0.0] * n, other.right, strict=True)]
        self.n_right = [a + b for a, b in zip(self.n_right or [0.0] * n, other.n_right, strict=True)]

    @classmethod
    def sum(cls, parts: Iterable[Loss]) -> Loss:
        """Of several."""
        whole = cls()
        for part in parts:
            if part.right:
                whole.add(part)
        return whole

    @property
    def mean(self) -> float:
        """Per row."""
        return self.total / max(1.0, self.n_rows)

    @property
    def accuracy(self) -> list[float]:
        """Share of rows right, per step."""
        return [round(a / max(1.0, n), 4) for a, n in zip(self.right, self.n_right, strict=True)]


def inputs(head: Head, sample: Sample) -> tuple[Tensor, Tensor]:
    """Tokens and rows as a batch of one."""
    device = head.device
    tokens = torch.from_numpy(sample.tokens.astype(np.int64)).to(device)[None]
    return tokens, torch.from_numpy(sample.rows).to(device).float()[None]


def sample_anchors(sample: Sample, n_steps: int, n_anchors: int, rng: np.random.Generator) -> Tensor:
    """Rows of the answer that later steps start from, at random; each has n_steps rows behind it."""
    first, last = sample.n_first, len(sample.tokens) - n_steps - 1
    n = max(0, last - first)
    return torch.from_numpy(np.sort(first + rng.choice(n, size=min(n, n_anchors), replace=False)))


def ttt_loss(head: Head, teacher: Teacher, sample: Sample, n_steps: int, anchors: Tensor) -> tuple[Tensor, Loss]:
    """Training-time test: n_steps draft steps, each on the states of the one before.

    Returns:
        The mean over the answer's rows of the soft cross entropy, weighted 0.8^i at step i; and its figures.
    """
    tokens, rows = inputs(head, sample)
    ids, p, weight = teacher(sample)
    loss, figures = torch.zeros((), device=rows.device), Loss()
    for i, (at, logits) in enumerate(head.steps(tokens, rows, n_steps, anchors.to(rows.device), first=sample.n_first)):
        at = at - sample.n_first  # rows before have no probabilities
        log_q = logits[0].float().log_softmax(-1)
        each = -(p[at] * log_q.gather(1, ids[at])).sum(-1) * weight[at]
        loss = loss + STEP_WEIGHT**i * each.mean()
        best = head.d2t[log_q.detach().argmax(-1)]
        target = torch.from_numpy(sample.top_ids[:, 0]).to(rows.device)[at]
        figures.right.append(float((best == target).float().sum()))
        figures.n_right.append(float(len(at)))
    figures.total, figures.n_rows = float(loss.detach()) * figures.n_right[0], figures.n_right[0]
    return loss, figures
