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
from .head_config import HeadConfig

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
    "input_norm.0": "input_norm",
    "attn.q_norm": "midlayer.self_attn.q_norm",
    "attn.k_norm": "midlayer.self_attn.k_norm",
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
        "target_hidden_size": None if cfg.n_embd_tgt == cfg.n_embd else cfg.n_embd_tgt,
        **_switches(cfg),
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


def _switches(cfg: HeadConfig) -> dict[str, Any]:
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    scale = {} if cfg.logit_scale == 1 else {"logit_scale": cfg.logit_scale}
    return {**{name: getattr(cfg, name) for name in names}, **scale}


def _layer_config(head: Head) -> dict[str, Any]:
    cfg = head.cfg
    config = {
        "model_type": "qwen3" if cfg.qk_norm else "llama",
        "hidden_size": cfg.n_embd,
        "intermediate_size": cfg.n_ff,
        "num_hidden_layers": 1,
        "num_attention_heads": cfg.n_head,
        "num_key_value_heads": cfg.n_head_kv,
        "head_dim": cfg.n_embd_head,
        "hidden_act": cfg.hidden_act,
        "rms_norm_eps": cfg.rms_eps,
        "max_position_embeddings": cfg.n_ctx,
        "vocab_size": cfg.n_vocab,
        "attention_bias": "attn.q" in cfg.biases,
        "mlp_bias": "ffn.gate" in cfg.biases,
        **cfg.rotation.hf_config(),
    }
    if cfg.rotation.n_rot != cfg.n_embd_head:
        config["partial_rotary_factor"] = cfg.rotation.n_rot / cfg.n_embd_head
    if cfg.sliding_window:
        config |= {"sliding_window": cfg.sliding_window, "use_sliding_window": True}
        config["layer_types"] = ["sliding_attention"]
    return config


def config_of(head: Head) -> dict[str, Any]:
    """config.json as SpecForge writes it, which SGLang and vLLM load."""
    cfg = head.cfg
    return {
        **_layer_config(head),
        "architectures": ["LlamaForCausalLMEagle3"],
        "target_hidden_size": cfg.n_embd_tgt,
        "draft_vocab_size": len(head.d2t),
        "tie_word_embeddings": False,
        **_switches(cfg),
        "torch_dtype": "float32",
        **_layer_ids(cfg.boundaries, cfg.n_layer_tgt),
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
    for name, values in state.items():
        module, _, kind = name.rpartition(".")
        if name in ("d2t", "row_scale") or (module == "lm_head" and not head.cfg.own_output):
            continue
        theirs = _NAMES.get(module, module)
        if form == "speculators":
            theirs = theirs.replace("midlayer", "layers.0")
        tensors[f"{theirs}.{kind}"] = values.float().cpu().numpy()
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
    with whole_file(folder / "config.json") as part:
        config = config_of(head) if form == "eagle" else speculators_config(head, verifier)
        part.write_text(json.dumps(config, indent=2) + "\n")


def draft_vocabulary(counts: np.ndarray[Any, Any], n_draft: int) -> Tensor:
    """The most frequent n_draft tokens, ascending; ties go to low ids, which byte-level BPE gives to frequent ones."""
    best = np.argsort(-counts, kind="stable")[:n_draft]
    return torch.from_numpy(np.sort(best).astype(np.int64))
