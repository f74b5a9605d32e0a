"""A trained head as a Hugging Face checkpoint, and heads to start from."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from llama_cpp_eagle3.files.whole_file import whole_file, write_whole

from ..convert.boundaries import IDS_KEY
from ..convert.mla import Mla
from .eagle import Head
from .head_config import HeadConfig

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "hidden_norm": "hidden_norm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.q_a": "self_attn.q_a_proj",
    "attn.q_a_norm": "self_attn.q_a_layernorm",
    "attn.q_b": "self_attn.q_b_proj",
    "attn.kv_a": "self_attn.kv_a_proj_with_mqa",
    "attn.kv_a_norm": "self_attn.kv_a_layernorm",
    "attn.kv_b": "self_attn.kv_b_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
"""Modules of `HeadLayer` -> those of a checkpoint's layer."""

FORMS = ("eagle", "speculators")
"""Forms of a checkpoint: SpecForge's, which SGLang and vLLM load; and speculators', which names the target for vLLM."""


def checkpoint_name(name: str) -> str:
    """A `Head` parameter's name in a checkpoint, as `convert` reads it."""
    module, _, kind = name.rpartition(".")
    if module.startswith("layers."):
        _, number, part = module.split(".", 2)
        return f"layers.{number}.{_LAYER_NAMES[part]}.{kind}"
    return name.replace("input_norm.0", "input_norm")


def biased_modules(cfg: HeadConfig, has: Callable[[str], bool]) -> frozenset[str]:
    """Modules of a head with a bias, by `has` of its name in a checkpoint."""
    layers = [f"layers.{number}.{part}" for number in range(cfg.n_layer) for part in _LAYER_NAMES]
    return frozenset(name for name in ("fc", *layers) if has(checkpoint_name(f"{name}.bias")))


def check_form(cfg: HeadConfig, form: str) -> None:
    """Raise ValueError if a form of checkpoint cannot hold such heads."""
    lacking = ["multi-head latent attention"] if cfg.mla else []
    lacking += [] if cfg.has_fc else ["no fc"]
    if form == "speculators" and lacking:
        raise ValueError(
            f"--export-form speculators: this head has {' and '.join(lacking)}, which no head of vLLM's speculators "
            "has: choose the form eagle"
        )


def speculators_config(head: Head, verifier: str, n_max: int = 4) -> dict[str, Any]:
    """config.json as speculators writes it. All keys are written: missing ones have other defaults in each reader.

    verifier: the target's name or folder.
    """
    cfg = head.cfg
    return {
        "speculators_model_type": "peagle" if cfg.is_parallel else "eagle3",
        "architectures": ["PEagleSpeculator" if cfg.is_parallel else "Eagle3Speculator"],
        "draft_vocab_size": len(head.d2t),
        "target_hidden_size": None if cfg.n_embd_tgt == cfg.n_embd else cfg.n_embd_tgt,
        **_switches(cfg),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(cfg.boundaries),  # these are boundaries here
        "torch_dtype": "float32",
        "speculators_config": {
            "algorithm": "peagle" if cfg.is_parallel else "eagle3",
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


def _switches(cfg: HeadConfig) -> dict[str, Any]:
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    scale = {} if cfg.logit_scale == 1 else {"logit_scale": cfg.logit_scale}
    parallel = {"parallel_drafting": True, "mask_token_id": cfg.mask_token} if cfg.is_parallel else {}
    return {**{name: getattr(cfg, name) for name in names}, **scale, **parallel}


def _layer_config(head: Head) -> dict[str, Any]:
    cfg = head.cfg
    config = {
        "model_type": "deepseek_v3" if cfg.mla else "qwen3" if cfg.qk_norm else "llama",
        "hidden_size": cfg.n_embd,
        "intermediate_size": cfg.n_ff,
        "num_hidden_layers": cfg.n_layer,
        "num_attention_heads": cfg.n_head,
        "num_key_value_heads": cfg.n_head_kv,
        **({} if cfg.mla else {"head_dim": cfg.n_embd_head}),
        "hidden_act": cfg.hidden_act,
        "rms_norm_eps": cfg.rms_eps,
        "max_position_embeddings": cfg.n_ctx,
        "vocab_size": cfg.n_vocab,
        "attention_bias": "layers.0.attn.q" in cfg.biases,
        "mlp_bias": "layers.0.ffn.gate" in cfg.biases,
        **cfg.rotation.hf_config(),
    }
    if cfg.mla:
        config |= _latent_config(cfg, cfg.mla, config.get("rope_scaling", {}))
    elif cfg.rotation.n_rot != cfg.n_embd_head:
        config["partial_rotary_factor"] = cfg.rotation.n_rot / cfg.n_embd_head
    if cfg.sliding_window:
        config |= {"sliding_window": cfg.sliding_window, "use_sliding_window": True}
        config["layer_types"] = ["sliding_attention"] * cfg.n_layer
    return config


def _latent_config(cfg: HeadConfig, mla: Mla, scaling: dict[str, Any]) -> dict[str, Any]:
    """Keys of DeepSeek's attention; mscale_all_dim of its YaRN is a further factor of the scores."""
    config: dict[str, Any] = {
        "q_lora_rank": mla.q_lora_rank or None,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.n_nope,
        "qk_rope_head_dim": mla.n_rot,
        "v_head_dim": mla.n_value,
    }
    if cfg.scale is None:
        return config
    log_factor = 0.1 * math.log(cfg.rotation.factor)
    sharper = math.sqrt(cfg.scale * math.sqrt(cfg.n_embd_head))  # 1 + mscale_all_dim * log_factor
    scaling = scaling | {
        "mscale": (scaling["attention_factor"] * sharper - 1) / log_factor,
        "mscale_all_dim": (sharper - 1) / log_factor,
    }
    return config | {"rope_scaling": scaling}


def config_of(head: Head) -> dict[str, Any]:
    """config.json as SpecForge writes it, which SGLang and vLLM load."""
    cfg = head.cfg
    return {
        **_layer_config(head),
        "architectures": [_architecture(cfg)],
        "target_hidden_size": cfg.n_embd_tgt,
        "draft_vocab_size": len(head.d2t),
        "tie_word_embeddings": False,
        **_switches(cfg),
        "torch_dtype": "float32",
        **_layer_ids(cfg),
    }


def _architecture(cfg: HeadConfig) -> str:
    if cfg.mla:
        return "Eagle3DeepseekV2ForCausalLM"
    return "PEagleDraftModel" if cfg.is_parallel else "LlamaForCausalLMEagle3"


def _layer_ids(cfg: HeadConfig) -> dict[str, Any]:
    """The keys of boundaries in EAGLE's form: none for the default ones.

    Otherwise readers differ (`convert.boundaries`). Boundaries as they are at the top are understood by vLLM, llama.cpp
    and us, inside `eagle_config` by SGLang, except ids that begin with 1, which SGLang takes for layers' outputs.
    """
    eagle: dict[str, Any] = {"use_aux_hidden_state": cfg.has_fc}
    boundaries, n_layer = cfg.boundaries, cfg.n_layer_tgt
    if not cfg.has_fc or boundaries == (2, n_layer // 2, n_layer - 3):
        return {"eagle_config": eagle}
    ids = {IDS_KEY: list(boundaries)}
    return {**ids, "eagle_config": eagle if boundaries[0] == 1 else {**eagle, **ids}}


def export(head: Head, folder: Path, form: str = "eagle", verifier: str = "") -> None:
    """Write config.json and model.safetensors.

    Args:
        head: the head.
        folder: where.
        form: one of FORMS.
        verifier: name of the target for that form.
    """
    check_form(head.cfg, form)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Any] = {}
    for name, values in head.state_dict().items():
        if name in ("d2t", "row_scale") or (name == "lm_head.weight" and not head.cfg.own_output):
            continue
        unscaled = {"fc.weight": head.fc_weight} if name == "fc.weight" else {}
        if name == "mask_hidden":
            unscaled[name] = head.mask_row.detach()[None, None]
        theirs = checkpoint_name(name)
        if form == "eagle" and head.cfg.n_layer == 1:
            theirs = theirs.replace("layers.0.", "midlayer.")
        tensors[theirs] = unscaled.get(name, values).float().cpu().numpy()
    if head.cfg.own_embd:
        tensors["embed_tokens.weight"] = head.tok_embd.float().cpu().numpy()
    if head.cfg.has_d2t:
        d2t = head.d2t.cpu().numpy().astype(np.int64)
        tensors["d2t"] = d2t - np.arange(len(d2t))
        t2d = np.zeros(head.cfg.n_vocab, dtype=bool)
        t2d[d2t] = True
        tensors["t2d"] = t2d
    with whole_file(folder / "model.safetensors") as part:
        save_file(tensors, part)
    config = config_of(head) if form == "eagle" else speculators_config(head, verifier)
    write_whole(folder / "config.json", json.dumps(config, indent=2) + "\n")


def draft_vocabulary(counts: np.ndarray[Any, Any], n_draft: int) -> Tensor:
    """The most frequent n_draft tokens, ascending; ties go to low ids, which byte-level BPE gives to frequent ones."""
    best = np.argsort(-counts, kind="stable")[:n_draft]
    return torch.from_numpy(np.sort(best).astype(np.int64))
