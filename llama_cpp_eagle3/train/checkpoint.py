"""A trained head as a Hugging Face checkpoint, and heads to start from."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from ..whole_file import whole_file
from .eagle import Head

_NAMES = {
    "fc": "fc",
    "attn_norm": "midlayer.input_layernorm",
    "hidden_norm": "midlayer.hidden_norm",
    "attn.q": "midlayer.self_attn.q_proj",
    "attn.k": "midlayer.self_attn.k_proj",
    "attn.v": "midlayer.self_attn.v_proj",
    "attn.o": "midlayer.self_attn.o_proj",
    "ffn_norm": "midlayer.post_attention_layernorm",
    "ffn.gate": "midlayer.mlp.gate_proj",
    "ffn.up": "midlayer.mlp.up_proj",
    "ffn.down": "midlayer.mlp.down_proj",
    "norm": "norm",
    "lm_head": "lm_head",
}
"""Modules of `Head` -> tensors of EAGLE's checkpoints."""


def config_of(head: Head) -> dict[str, Any]:
    """config.json as SpecForge writes it, which SGLang and vLLM load."""
    cfg = head.cfg
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": cfg.n_embd,
        "target_hidden_size": cfg.n_embd,
        "intermediate_size": head.n_ff,
        "num_hidden_layers": 1,
        "num_attention_heads": cfg.n_head,
        "num_key_value_heads": cfg.n_head_kv,
        "head_dim": cfg.n_embd_head,
        "hidden_act": "silu",
        "rms_norm_eps": cfg.rms_eps,
        "rope_theta": cfg.rope_base,
        "max_position_embeddings": cfg.n_ctx,
        "vocab_size": cfg.n_vocab,
        "draft_vocab_size": len(head.d2t),
        "attention_bias": False,
        "tie_word_embeddings": False,
        "fc_norm": head.norms.fc_norm,
        "norm_output": head.norms.norm_output,
        "torch_dtype": "float32",
        "eagle_config": {
            # SGLang and vLLM count a layer's output as the layer, we count layers before the state
            "eagle_aux_hidden_state_layer_ids": [b - 1 for b in cfg.boundaries],
            "use_aux_hidden_state": True,
        },
    }


def export(head: Head, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Any] = {}
    state = head.state_dict()
    for name, theirs in (_NAMES | {f"fc_norm.{i}": f"fc_norm.{i}" for i in range(len(head.fc_norm))}).items():
        tensors[f"{theirs}.weight"] = state[f"{name}.weight"].float().cpu().numpy()
    d2t = head.d2t.cpu().numpy().astype(np.int64)
    tensors["d2t"] = d2t - np.arange(len(d2t))
    t2d = np.zeros(head.cfg.n_vocab, dtype=bool)
    t2d[d2t] = True
    tensors["t2d"] = t2d
    with whole_file(folder / "model.safetensors") as part:
        save_file(tensors, part)
    with whole_file(folder / "config.json") as part:
        part.write_text(json.dumps(config_of(head), indent=2) + "\n")


def draft_vocabulary(counts: np.ndarray[Any, Any], n_draft: int) -> Tensor:
    """The most frequent n_draft tokens, ascending; ties go to low ids, which byte-level BPE gives to frequent ones."""
    best = np.argsort(-counts, kind="stable")[:n_draft]
    return torch.from_numpy(np.sort(best).astype(np.int64))
