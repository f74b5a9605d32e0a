"""Block drafters as checkpoints, in the forms that their trainers publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints import write_safetensors
from dflash import Shape, random_tensors

N_LAYER_TGT = 4
"""Layers of the targets that the checkpoints name."""

# names as in the published model code (dflash/model.py, deepspec/modeling/dspark, speculators/models)
LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_sinks.weight": "self_attn.attention_sink_bias",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}
GEMMA_LAYER = LAYER | {
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "layer_output_scale.weight": "layer_scalar",
}
TOP = {
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
}
SELECTOR = ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")


def weights_of(shape: Shape) -> dict[str, np.ndarray]:
    """Return random weights by the checkpoint's names."""
    found = {}
    layer = GEMMA_LAYER if shape.has_post_norms else LAYER
    for name, data in random_tensors(shape).items():
        if name == "d2t":
            found["d2t"] = data - np.arange(len(data))
            found["t2d"] = np.isin(np.arange(shape.n_vocab), data)
        elif name.startswith("blk."):
            _, il, rest = name.split(".", 2)
            found[f"layers.{il}.{layer[rest]}"] = data
        else:
            found[TOP[name]] = data
    return found


def layers_config(shape: Shape) -> dict[str, Any]:
    """Return the keys for layers that all forms share."""
    return {
        "model_type": "qwen3",
        "hidden_size": shape.n_embd,
        "num_hidden_layers": shape.n_layer,
        "num_attention_heads": shape.n_head,
        "num_key_value_heads": shape.n_head_kv,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.n_ff,
        "vocab_size": shape.n_vocab,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": shape.act,
        "max_position_embeddings": 512,
        "attention_bias": False,
        "tie_word_embeddings": False,
    }


def zlab(shape: Shape) -> dict[str, Any]:
    """Return config.json of z-lab's DFlash and DFlash2."""
    config = layers_config(shape) | {"architectures": ["DFlash2DraftModel" if shape.selector else "DFlashDraftModel"]}
    ids = [b - 1 for b in shape.boundaries]
    config |= {"block_size": shape.block_size, "num_target_layers": N_LAYER_TGT}
    config["dflash_config"] = {"mask_token_id": shape.mask_token, "target_layer_ids": ids}
    if shape.selector:
        config["dflash_config"] |= dict(zip(SELECTOR, shape.selector, strict=True))
    if shape.sliding_window:
        kinds = ["full_attention", "sliding_attention"]
        config |= {"use_sliding_window": True, "sliding_window": shape.sliding_window}
        config["layer_types"] = [kinds[i % 2 == 0] for i in range(shape.n_layer)]
    return config


def deepspec(shape: Shape) -> dict[str, Any]:
    """Return config.json of deepseek-ai's DSpark."""
    return layers_config(shape) | {
        "architectures": ["Qwen3DSparkModel"],
        "num_target_layers": N_LAYER_TGT,
        "block_size": shape.block_size,
        "mask_token_id": shape.mask_token,
        "target_layer_ids": [b - 1 for b in shape.boundaries],
        "num_anchors": 512,
        "enable_confidence_head": shape.has_confidence,
        "confidence_head_with_markov": True,
        "markov_rank": shape.markov_rank,
        "markov_head_type": "vanilla",
    }


def gemma(shape: Shape) -> dict[str, Any]:
    """Return config.json of DeepSpec's DSpark with Gemma 4's layers: a copy of the target's, both kinds of heads."""
    config = deepspec(shape) | {"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"}
    del config["rope_theta"], config["hidden_act"]
    return config | {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_k_eq_v": True,
        "head_dim": 8,
        "global_head_dim": shape.head_dim,
        "num_key_value_heads": 4,
        "num_global_key_value_heads": shape.n_head_kv,
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 512,
        "layer_types": ["full_attention"] * shape.n_layer,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    }


def neighbours(shape: Shape, weights: dict[str, np.ndarray], n_rot: int) -> dict[str, np.ndarray]:
    """Return the same drafter for a rotation of neighbouring channels (rope_is_neox_style false)."""

    def turned(x: np.ndarray) -> np.ndarray:
        heads = x.reshape(-1, shape.head_dim, *x.shape[1:])
        pairs = heads[:, :n_rot].reshape(len(heads), 2, n_rot // 2, *x.shape[1:]).swapaxes(1, 2)
        return np.concatenate([pairs.reshape(len(heads), n_rot, *x.shape[1:]), heads[:, n_rot:]], 1).reshape(x.shape)

    parts = ("q_proj", "k_proj", "q_norm", "k_norm")
    return {n: turned(w) if any(f"self_attn.{p}." in n for p in parts) else w for n, w in weights.items()}


def speculators(shape: Shape) -> dict[str, Any]:
    """Return config.json of speculators' two kinds."""
    kind = "dspark" if shape.markov_rank else "dflash"
    return {
        "architectures": ["DSparkSpeculator" if shape.markov_rank else "DFlashSpeculator"],
        "speculators_model_type": kind,
        "transformer_layer_config": layers_config(shape),
        "draft_vocab_size": shape.n_vocab_dft or shape.n_vocab,
        "block_size": shape.block_size,
        "aux_hidden_state_layer_ids": list(shape.boundaries),
        "mask_token_id": shape.mask_token,
        "sample_from_anchor": shape.from_anchor,
        "markov_rank": shape.markov_rank,
    } | ({} if shape.markov_rank else {"markov_rank": None})


def write_block(folder: Path, config: dict[str, Any], weights: dict[str, np.ndarray], *, dtype: str = "f32") -> Path:
    """Write the checkpoint's folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", weights, dtype)
    return folder
