"""Muon takes the right parameters, and makes the right step of a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from llama_cpp_eagle3_heads.train.optimizer import Optimizer  # noqa: E402


def _parameters() -> dict[str, Any]:
    torch.manual_seed(1)
    shapes = {"layers.0.attn.q.weight": (24, 16), "lm_head.weight": (24, 16), "norm.weight": (16,)}
    parameters = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    parameters["tok_embd.weight"] = torch.nn.Parameter(torch.randn(24, 16), requires_grad=False)
    return parameters


@pytest.mark.parametrize("muon", [False, True], ids=("adamw", "muon"))
def test_one_step(muon: bool) -> None:
    """AdamW's first step has the sign of each gradient; Muon's has singular values that are nearly equal."""
    parameters = _parameters()
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = Optimizer(parameters.items(), 0.01, muon=muon, weight_decay=0.0, weight_decay_muon=0.0)
    gradients = {name: torch.randn_like(p) for name, p in parameters.items() if p.requires_grad}
    for name, gradient in gradients.items():
        parameters[name].grad = gradient.clone()
    optimizer.step(0.02)
    steps = {name: (p.detach() - before[name]).double().numpy() for name, p in parameters.items()}
    assert not steps["tok_embd.weight"].any()
    for name, gradient in gradients.items():
        if muon and name.startswith("layers"):
            size = 0.02 * 0.2 * np.sqrt(24)  # match_rms_adamw's factor
            values = np.linalg.svd(steps[name], compute_uv=False) / size
            assert 0.6 < values.min() <= values.max() < 1.3
            assert values.max() / values.min() < np.divide(*np.linalg.svd(gradient.numpy(), compute_uv=False)[[0, -1]])
            assert (steps[name] * gradient.numpy()).sum() < 0
        else:
            np.testing.assert_allclose(steps[name], -0.02 * np.sign(gradient.numpy()), rtol=1e-4)
        assert parameters[name].grad is None
