"""Checkpoints of other kinds: the error names the kind, whether it runs here, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from block_checkpoints import layers_config, weights_of, write_block
from checkpoints import write_safetensors
from dflash import Shape
from llama_cpp_eagle3 import ModelFileError
from llama_cpp_eagle3_heads.convert import convert, inspect
from tiny import Target, write_target

HEAD = {
    "fc.weight": (64, 192),
    "midlayer.self_attn.q_proj.weight": (64, 128),
    "midlayer.post_attention_layernorm.weight": (64,),
    "midlayer.hidden_norm.weight": (64,),
}
KINDS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], str]] = {
    "experts": (
        {"architectures": ["GptOssForCausalLMEagle3"]},
        HEAD | {"midlayer.mlp.experts.gate_up_proj": (4, 64, 64), "midlayer.mlp.router.weight": (4, 64)},
        "experts .*MoE.*cannot be run here",
    ),
    "experts of Qwen3": (
        {"architectures": ["Qwen3MoeForCausalLMEagle3"]},
        HEAD | {"midlayer.mlp.gate.weight": (4, 64), "midlayer.mlp.experts.0.up_proj.weight": (32, 64)},
        "experts .*MoE",
    ),
    "an MTP block": (
        {"architectures": ["Qwen3_5MTPDraftModel"], "mtp_config": {"share_lm_head": True}},
        {"mtp.fc.weight": (64, 128), "mtp.layers.0.self_attn.q_proj.weight": (64, 64)},
        "multi-token prediction .*MTP.*convert_hf_to_gguf.py",
    ),
    "an MTP block of DeepSeek": (
        {"architectures": ["DeepseekV3ForCausalLM"]},
        {"model.layers.61.eh_proj.weight": (64, 128), "model.layers.61.enorm.weight": (64,)},
        "multi-token prediction",
    ),
    "Medusa": ({"medusa_num_heads": 2}, {"0.0.linear.weight": (64, 64), "1.0.linear.weight": (64, 64)}, "Medusa heads"),
    "an MLP speculator": (
        {"architectures": ["MLPSpeculatorPreTrainedModel"]},
        {"speculator.emb.0.weight": (320, 64), "speculator.head.0.weight": (320, 64)},
        "an MLP speculator",
    ),
    "LoRA": ({}, {"base_model.model.layers.0.q_proj.lora_A.weight": (8, 64)}, "a LoRA adapter.*lora_path"),
    "an assistant": (
        {"architectures": ["Gemma4AssistantForCausalLM"]},
        {"model.layers.0.self_attn.q_proj.weight": (64, 64)},
        "Gemma 4's assistant.*convert_hf_to_gguf.py",
    ),
    "DeepSeek-V4's DSpark": (
        {"architectures": ["DeepseekV4ForCausalLM"], "dspark_block_size": 5},
        {"mtp.0.main_proj.weight": (64, 64), "mtp.0.hc_attn_fn": (4, 64)},
        "DeepSeek-V4's layers",
    ),
    "a model": (
        {"architectures": ["Qwen3ForCausalLM"]},
        {f"model.layers.{i}.self_attn.q_proj.weight": (64, 64) for i in range(8)},
        "a whole model.*convert_hf_to_gguf.py.*draft_model_path",
    ),
    "EAGLE-2": (
        {"architectures": ["LlamaForCausalLM"]},
        {
            "fc.weight": (64, 128),
            "layers.0.self_attn.q_proj.weight": (64, 64),
            "layers.0.post_attention_layernorm.weight": (64,),
        },
        "EAGLE-1 and 2",
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return write_target(tmp_path_factory.mktemp("kinds") / "target.gguf", n_layer=8)


@pytest.mark.parametrize("name", KINDS)
def test_the_error_names_the_kind(name: str, target: Target, tmp_path: Path) -> None:
    config, shapes, found = KINDS[name]
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64, "vocab_size": 320} | config))
    write_safetensors(tmp_path / "model.safetensors", {n: np.zeros(s, np.float32) for n, s in shapes.items()}, "f32")
    with pytest.raises(ModelFileError, match=found) as e:
        convert(tmp_path, target.path, tmp_path / "out.gguf")
    with pytest.raises(ModelFileError) as again:
        inspect(tmp_path, target.path)
    assert str(again.value) == str(e.value)


@pytest.mark.parametrize("by", ["config", "tensors"])
def test_latent_attention_of_a_block_drafter(by: str, target: Target, tmp_path: Path) -> None:
    """Kimi K3's latent attention is named, also if its config counts the layers that it reads."""
    shape = Shape(boundaries=(2, 4, 6), n_layer=3, markov_rank=8, from_anchor=True)
    config = layers_config(shape) | {
        "architectures": ["K3DSparkModel"], "model_type": "k3_dspark", "num_target_layers": 3,
        "target_num_hidden_layers": 8, "target_layer_ids": [1, 3, 5], "block_size": 8, "mask_token_id": 300,
        "markov_rank": 8,
    }  # fmt: skip
    weights = weights_of(shape)
    if by == "config":
        config |= {"kv_lora_rank": 32}
    else:
        weights["layers.0.self_attn.kv_a_proj_with_mqa.weight"] = np.zeros((40, 64), np.float32)
    with pytest.raises(ModelFileError, match=r"latent attention \(MLA"):
        convert(write_block(tmp_path / "x", config, weights), target.path, tmp_path / "out.gguf")
