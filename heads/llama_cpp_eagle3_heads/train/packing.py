"""Pack several texts one after the other, so that a head's matrices multiply the rows of all of them at once."""

# mypy: disable-error-code="no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from .rows import Sample


@dataclass(frozen=True)
class PackedTexts:
    """The tokens and rows of several texts (sequence packing); attention stays within each text."""

    tokens: Tensor
    """The tokens of all texts, (n_tokens,)."""
    rows: Tensor
    """Hidden states of the target, (n_tokens, n_feat)."""
    lengths: Sequence[int]
    """Tokens of each text."""
    firsts: Sequence[int]
    """For each text, the first row that step 0 predicts a token from; the rows before it give keys and values alone."""
    anchors: Sequence[Tensor]
    """For each text, the rows that later steps start from, ascending."""

    @property
    def starts(self) -> list[int]:
        """The index in `tokens` at which each text begins."""
        return [0, *accumulate(self.lengths)][:-1]

    @property
    def n_rows(self) -> list[int]:
        """Rows of each text in step 0: all but the last one, whose next token is not known."""
        return [length - 1 for length in self.lengths]

    @property
    def text_ids(self) -> Tensor:
        """The number of each token's text, (n_tokens,)."""
        lengths = torch.tensor(self.lengths, device=self.tokens.device)
        return torch.arange(len(self.lengths), device=self.tokens.device).repeat_interleave(lengths)


def pack(samples: Sequence[Sample], anchors: Sequence[Tensor], device: torch.device) -> PackedTexts:
    """Pack the texts of samples.

    Args:
        samples: At least one.
        anchors: For each sample, the rows that later steps start from.
        device: The head's device.
    """
    tokens = np.concatenate([sample.tokens for sample in samples]).astype(np.int64)
    rows = np.concatenate([sample.rows for sample in samples])
    return PackedTexts(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(rows).to(device).float(),
        [len(sample.tokens) for sample in samples],
        [sample.n_first for sample in samples],
        [at.to(device) for at in anchors],
    )
