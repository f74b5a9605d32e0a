"""Tensors of block drafters: their names in checkpoints of several families, in a GGUF, and their shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .checkpoint import Checkpoint

VOCABULARIES = ("d2t", "t2d")
TABLES = ("embed_tokens.weight", "lm_head.weight")

_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.sinks": "attn_sinks.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}
# Gemma's layers also norm the output of each part, so the name of Qwen3's second norm means another norm
_GEMMA_NAMES = _LAYER_NAMES | {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
}
_TOP_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}
# names of some families -> Qwen3's
_ALIASES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^encoder\.fc\.", "fc."),
        (r"^encoder\.output_norm_enc\.", "hidden_norm."),
        (r"^confidence_proj\.", "confidence_head.proj."),
        (r"_codebook\.weight$", "_codebook"),
        (r"\.self_attn\.(?:attention_sink_bias|sinks)(?:\.weight)?$", ".self_attn.sinks"),
        (r"\.layer_scalar\.weight$", ".layer_scalar"),
        # LFM2's
        (r"\.operator_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
        (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
        (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
        (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
        # Ling's
        (r"\.attention\.dense\.", ".self_attn.o_proj."),
        (r"\.attention\.query_layernorm\.", ".self_attn.q_norm."),
        (r"\.attention\.key_layernorm\.", ".self_attn.k_norm."),
        (r"\.attention\.([qkvo])_proj\.", r".self_attn.\1_proj."),
    )
)


def with_own_names(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under Qwen3's names."""
    tensors, original = {}, {}
    for name, tensor in checkpoint.tensors.items():
        own = name
        for pattern, replacement in _ALIASES:
            own = pattern.sub(replacement, own)
        tensors[own], original[own] = tensor, checkpoint.original[name]
    return Checkpoint(checkpoint.path, checkpoint.config, tensors, original, checkpoint.mask_row, checkpoint.notes)


def has_gemma_layers(names: Iterable[str]) -> bool:
    """Whether the layers are Gemma's."""
    return any(name.endswith(".pre_feedforward_layernorm.weight") for name in names)


def gguf_name(name: str, is_gemma: bool) -> str | None:
    """Name in the file of a tensor; None: llama.cpp's graph has no such tensor."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    layer = re.match(r"layers\.(\d+)\.(.+)$", name)
    own = None if layer is None else (_GEMMA_NAMES if is_gemma else _LAYER_NAMES).get(layer[2])
    return None if layer is None or own is None else f"blk.{layer[1]}.{own}"


def expected_shapes(
    checkpoint: Checkpoint, kind: str, keys: dict[str, Any], n_vocab: int, n_rows: int, *, confidence_with_markov: bool
) -> dict[str, tuple[int, ...]]:
    """Shapes by the checkpoint's names.

    keys: of the file. n_vocab: tokens of the checkpoint. n_rows: tokens that it drafts.
    """
    tensors = checkpoint.tensors
    n_embd, head_dim, n_ff = keys["embedding_length"], keys["attention.key_length"], keys["feed_forward_length"]
    n_q, n_kv = keys["attention.head_count"] * head_dim, keys["attention.head_count_kv"] * head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (n_embd,),
        "self_attn.q_proj.weight": (n_q, n_embd),
        "self_attn.k_proj.weight": (n_kv, n_embd),
        "self_attn.v_proj.weight": (n_kv, n_embd),
        "self_attn.o_proj.weight": (n_embd, n_q),
        "self_attn.q_norm.weight": (head_dim,),
        "self_attn.k_norm.weight": (head_dim,),
        "post_attention_layernorm.weight": (n_embd,),
        "mlp.gate_proj.weight": (n_ff, n_embd),
        "mlp.up_proj.weight": (n_ff, n_embd),
        "mlp.down_proj.weight": (n_embd, n_ff),
    }
    if has_gemma_layers(tensors):
        layer["pre_feedforward_layernorm.weight"] = layer["post_feedforward_layernorm.weight"] = (n_embd,)
        if "layers.0.self_attn.v_proj.weight" not in tensors:  # values are the keys, normed without weights
            del layer["self_attn.v_proj.weight"]
    for name, shape in (("layer_scalar", (1,)), ("self_attn.sinks", (keys["attention.head_count"],))):
        if f"layers.0.{name}" in tensors:
            layer[name] = shape
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (n_embd, n_embd * len(keys["target_layers"])),
        "hidden_norm.weight": (n_embd,),
        "norm.weight": (n_embd,),
    }
    rank = 0
    if kind == "dflash2":
        n_taps, n_group = keys["conv_kernel_size"], keys["conv_group_size"]
        for part in ("attention_conv", "mlp_conv"):
            layer[f"{part}.base_kernel"] = (2, n_taps, n_embd)
            layer[f"{part}.kernel_projection.weight"] = (2 * n_taps * n_embd // n_group, n_embd)
        for name in ("predecessor", "successor"):
            shapes[f"candidate_selector.{name}_codebook"] = (n_vocab, keys["selector_rank"])
        shapes["candidate_selector.hidden_projection.weight"] = (keys["selector_rank"], n_embd)
    if kind == "dspark":
        rank = tensors["markov_head.markov_w1.weight"].shape[-1]
        shapes["markov_head.markov_w1.weight"] = (n_vocab, rank)
        shapes["markov_head.markov_w2.weight"] = (n_rows, rank)
    if "confidence_head.proj.weight" in tensors:
        shapes["confidence_head.proj.weight"] = (1, n_embd + (rank if confidence_with_markov else 0))
        if "confidence_head.proj.bias" in tensors:
            shapes["confidence_head.proj.bias"] = (1,)
    shapes |= {f"layers.{i}.{name}": shape for i in range(keys["block_count"]) for name, shape in layer.items()}
    rows = {"embed_tokens.weight": n_vocab, "lm_head.weight": n_rows}
    return shapes | {name: (rows[name], n_embd) for name in TABLES if name in tensors}
