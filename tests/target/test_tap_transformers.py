"""The tap's rows are the hidden states that Hugging Face transformers computes from the same random weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from lowlevel import LowLevel
from tiny import Target, write_target

N_TOKENS = 48


def hidden_states(model: Target, tokens: list[int]) -> np.ndarray:
    """Return (n_tokens, n_layer + 2, n_embd): a row for each boundary and one after the final norm, in float64."""
    config = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[model.arch](**model.hf_config)
    config._attn_implementation = "eager"
    reference = {"llama": transformers.LlamaForCausalLM, "qwen3": transformers.Qwen3ForCausalLM}[model.arch](config)
    reference = reference.double().eval()
    reference.load_state_dict({name: torch.from_numpy(array).double() for name, array in model.weights.items()})

    # transformers gives the last layer's output only after the norm
    last: list[torch.Tensor] = []
    reference.model.norm.register_forward_pre_hook(lambda _, args: last.append(args[0]))
    with torch.no_grad():
        states = reference(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    return torch.stack([*states[:-1], last[0], states[-1]], dim=2)[0].numpy()


@pytest.mark.parametrize("kind", ["native", "callback"])
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize("n_ubatch", [16, 64])
def test_rows_equal_transformers(tmp_path, arch, kind, n_ubatch):
    model = write_target(tmp_path / "target.gguf", arch, n_layer=5, head_dim=32, rope_theta=50000.0)
    tokens = np.random.default_rng(1).integers(0, 300, N_TOKENS).tolist()
    expected = hidden_states(model, tokens)
    boundaries = list(range(5)) if kind == "native" else list(range(7))
    with LowLevel(model.path, boundaries, kind, n_ubatch=n_ubatch) as low:
        low.target.decode(tokens, 0)
        rows = low.tap.rows
    for i, b in enumerate(boundaries):
        scale = np.abs(expected[:, b]).max()
        np.testing.assert_allclose(rows[:, i], expected[:, b], rtol=1e-4, atol=1e-5 * scale, err_msg=f"boundary {b}")
