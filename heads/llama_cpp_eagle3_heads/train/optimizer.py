"""AdamW, or Muon for the matrices of layers and AdamW for the rest."""

# mypy: disable-error-code="misc, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_NOT_OF_LAYERS = ("embd", "lm_head")
"""Matrices with a row for each token, which Muon's authors leave to AdamW."""


class Optimizer:
    """AdamW, or Muon for the layers' matrices and AdamW for all else.

    Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024) needs fewer texts for the same
    loss than AdamW alone. The time of its step grows with the cube of the width, so that large batches suit it.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        lr: float,
        *,
        muon: bool,
        weight_decay: float = 0.01,
        weight_decay_muon: float = 0.01,
    ) -> None:
        """Make the optimizer of a module.

        Args:
            parameters: The module's parameters with their names; those that do not learn are left out.
            lr: The learning rate of the first step.
            muon: Whether Muon trains the layers' matrices.
            weight_decay: Weight decay of AdamW's matrices.
            weight_decay_muon: Weight decay of Muon's matrices.
        """
        learning = [(name, p) for name, p in parameters if p.requires_grad]
        matrices = [p for name, p in learning if p.dim() == 2 and not any(word in name for word in _NOT_OF_LAYERS)]
        orthogonal = {id(p) for p in matrices} if muon else set()
        others = [p for _, p in learning if id(p) not in orthogonal]
        groups = [
            {"params": [p for p in others if p.dim() == 2], "weight_decay": weight_decay},
            {"params": [p for p in others if p.dim() != 2], "weight_decay": 0.0},
        ]
        self.parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)]
        if orthogonal:
            # match_rms_adamw scales Muon's update to AdamW's, so that one learning rate serves both
            self.parts.append(
                torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay_muon, adjust_lr_fn="match_rms_adamw")
            )

    def step(self, lr: float) -> None:
        """Apply the gradients at this learning rate, and clear them."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = lr
            part.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the states of AdamW and, if there is one, of Muon."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restore :meth:`state_dict`."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
