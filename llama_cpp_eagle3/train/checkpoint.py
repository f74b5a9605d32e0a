"""A trained head as a Hugging Face checkpoint, and heads to start from."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from ..convert.boundaries import IDS_KEY
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

FORMS = ("eagle", "speculators")
"""SpecForge's, which SGLang and vLLM load; and speculators', which vLLM serves with the target that it names."""


def speculators_config(head: Head, verifier: str, n_max: int = 4) -> dict[str, Any]:
    """config.json as speculators writes it. Everything is said: what is missing has other defaults in each reader.

    verifier: the target's name or folder.
    """
    cfg = head.cfg
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": len(head.d2t),
        "target_hidden_size": None,  # as wide as the head
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": head.norms.fc_norm,
        "norm_output": head.norms.norm_output,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(cfg.boundaries),  # these are boundaries here
        "torch_dtype": "float32",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": n_max,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "transformer_layer_config": _layer_config(head),
    }


def _layer_config(head: Head) -> dict[str, Any]:
    cfg = head.cfg
    return {
        "model_type": "llama",
        "hidden_size": cfg.n_embd,
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
        "attention_bias": False,
        "mlp_bias": False,
    }


def config_of(head: Head) -> dict[str, Any]:
    """config.json as SpecForge writes it, which SGLang and vLLM load."""
    cfg = head.cfg
    return {
        **_layer_config(head),
        "architectures": ["LlamaForCausalLMEagle3"],
        "target_hidden_size": cfg.n_embd,
        "draft_vocab_size": len(head.d2t),
        "tie_word_embeddings": False,
        "norm_before_residual": False,
        "fc_norm": head.norms.fc_norm,
        "norm_output": head.norms.norm_output,
        "torch_dtype": "float32",
        **_layer_ids(cfg.boundaries, cfg.n_layer),
    }


def _layer_ids(boundaries: Sequence[int], n_layer: int) -> dict[str, Any]:
    """What EAGLE's form says of them: nothing, if they are those that all readers mean by that.

    Otherwise readers differ (`convert.boundaries`). Boundaries as they are at the top are understood by vLLM, llama.cpp
    and us, inside `eagle_config` by SGLang, but for ids that begin with 1, which SGLang takes for layers' outputs.
    """
    eagle: dict[str, Any] = {"use_aux_hidden_state": True}
    if tuple(boundaries) == (2, n_layer // 2, n_layer - 3):
        return {"eagle_config": eagle}
    ids = {IDS_KEY: list(boundaries)}
    return {**ids, "eagle_config": eagle if boundaries[0] == 1 else {**eagle, **ids}}


def export(head: Head, folder: Path, form: str = "eagle", verifier: str = "") -> None:
    """Write config.json and model.safetensors.

    Args:
        head: the head.
        folder: where.
        form: one of FORMS.
        verifier: name of the target, which speculators' form has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Any] = {}
    state = head.state_dict() | {"fc.weight": head.fc_weight}
    for name, theirs in (_NAMES | {f"fc_norm.{i}": f"fc_norm.{i}" for i in range(len(head.fc_norm))}).items():
        if form == "speculators":
            theirs = theirs.replace("midlayer", "layers.0")
        tensors[f"{theirs}.weight"] = state[f"{name}.weight"].float().cpu().numpy()
    d2t = head.d2t.cpu().numpy().astype(np.int64)
    tensors["d2t"] = d2t - np.arange(len(d2t))
    t2d = np.zeros(head.cfg.n_vocab, dtype=bool)
    t2d[d2t] = True
    tensors["t2d"] = t2d
    with whole_file(folder / "model.safetensors") as part:
        save_file(tensors, part)
    with whole_file(folder / "config.json") as part:
        config = config_of(head) if form == "eagle" else speculators_config(head, verifier)
        part.write_text(json.dumps(config, indent=2) + "\n")


def draft_vocabulary(counts: np.ndarray[Any, Any], n_draft: int) -> Tensor:
    """The most frequent n_draft tokens, ascending; ties go to low ids, which byte-level BPE gives to frequent ones."""
    best = np.argsort(-counts, kind="stable")[:n_draft]
    return torch.from_numpy(np.sort(best).astype(np.int64))
