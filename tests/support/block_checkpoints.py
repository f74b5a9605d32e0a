"""Block drafters as checkpoints, in the forms that their trainers publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints import write_safetensors
from dflash import Shape, random_tensors

N_LAYER_TGT = 4
"""Of the targets that they say they were trained for."""

# as the published model code names them (dflash/model.py, deepspec/modeling/dspark, speculators/models)
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
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
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
    """Random weights by the checkpoint's names."""
    found = {}
    for name, data in random_tensors(shape).items():
        if name == "d2t":
            found["d2t"] = data - np.arange(len(data))
            found["t2d"] = np.isin(np.arange(shape.n_vocab), data)
        elif name.startswith("blk."):
            _, il, rest = name.split(".", 2)
            found[f"layers.{il}.{LAYER[rest]}"] = data
        else:
            found[TOP[name]] = data
    return found


def layers_config(shape: Shape) -> dict[str, Any]:
    """What is said of layers in all forms."""
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
    """config.json of z-lab's DFlash and DFlash2."""
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
    """config.json of deepseek-ai's DSpark."""
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


def speculators(shape: Shape) -> dict[str, Any]:
    """config.json of speculators' two kinds."""
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
    """Write the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", weights, dtype)
    return folder
