"""Tiny random EAGLE-3 heads of every variant, in both GGUF dialects."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from .target import Target
from .vocab import add_vocab
from .weights import RandomWeights, Weights, add_tensor, interleave_rope, round_to_file, write_file


@dataclass(frozen=True)
class HeadVariant:
    """The parts and sizes of a head. `None` stands for the target's."""

    boundaries: tuple[int, ...] = (1, 2, 3)
    use_aux_hidden_state: bool = True  # False: no fc, the one row is the target's final normed state
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
    n_layer: int = 1
    n_embd: int | None = None
    n_ff: int = 96
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int | None = None  # None: n_embd / n_head
    n_rot: int | None = None  # None: head_dim; fewer is partial rotary
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None  # as in a Hugging Face config: linear, yarn, llama3
    rope_sections: tuple[int, ...] = ()  # M-RoPE; q and k are in the file as without it
    rope_interleaved: bool = False
    sliding_window: int = 0
    kv_lora_rank: int = 0  # MLA: keys of head_dim values, of which n_rot are rotated, and values of v_head_dim
    q_lora_rank: int = 0
    v_head_dim: int = 12
    mask_token: int | None = None  # P-EAGLE
    fc_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    own_embd: bool = False
    own_output: bool = True
    n_vocab_dft: int | None = 96  # None: the target's vocabulary, no d2t
    hidden_act: str = "silu"
    logit_scale: float = 1.0
    rms_eps: float = 1e-5
    context_length: int = 4096
    dialect: str = "auto"  # "auto": upstream where it can express the head, else extended; or "fork"
    ftype: str = "f32"
    seed: int = 1

    @property
    def upstream(self) -> bool:
        """Whether llama.cpp's own eagle3 graph can run this head."""
        return (
            len(self.boundaries) == 3
            and self.use_aux_hidden_state
            and not (self.fc_norm or self.norm_output or self.qk_norm or self.sliding_window)
            and not (self.fc_bias or self.attention_bias or self.mlp_bias)
            and self.n_layer == 1
            and self.hidden_act == "silu"
            and self.logit_scale == 1.0
            and not self.kv_lora_rank
            and self.mask_token is None
        )

    @property
    def attn_scale(self) -> float:
        """The factor of attention's scores."""
        scale = (self.head_dim or 0) ** -0.5
        if self.rope_scaling and self.kv_lora_rank:
            scale *= mscale(self.rope_scaling["factor"], self.rope_scaling.get("mscale_all_dim", 0.0)) ** 2
        return scale


def mscale(factor: float, weight: float) -> float:
    """Return DeepSeek's attention factor of YaRN."""
    return 0.1 * weight * math.log(factor) + 1.0


@dataclass
class Head:
    """A head on disk. `weights` are float64 with the names and the layout of a checkpoint (`layers.0.*`)."""

    path: str
    arch: str
    variant: HeadVariant  # with every None filled in but n_vocab_dft
    target: Target
    weights: Weights = field(repr=False)
    d2t: np.ndarray | None = field(repr=False)  # absolute target ids

    @property
    def n_embd_inp(self) -> int:
        """Width of one input row: all boundaries side by side."""
        return self.target.n_embd * (len(self.variant.boundaries) if self.variant.use_aux_hidden_state else 1)

    @property
    def boundaries(self) -> list[int]:
        """Boundaries that the target's tap must deliver (n_layer + 1: the stream after the final norm)."""
        return list(self.variant.boundaries) if self.variant.use_aux_hidden_state else [self.target.n_layer + 1]


_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "hidden_norm.weight": "attn_norm_2.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

_TOP_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
    "input_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "d2t": "d2t",
}


def _random_weights(v: HeadVariant, target: Target) -> Weights:
    rand = RandomWeights(v.seed)
    n_embd, n_aux = v.n_embd or 0, len(v.boundaries)
    n_vocab_dft = v.n_vocab_dft or target.n_vocab
    weights: Weights = {}
    if v.own_embd:
        weights["embed_tokens.weight"] = rand.rng.normal(0.0, 1.0, (target.n_vocab, n_embd))
    if v.use_aux_hidden_state:
        weights["fc.weight"] = rand.matrix(n_embd, n_aux * target.n_embd)
        if v.fc_bias:
            weights["fc.bias"] = rand.bias(n_embd)
    if v.norm_before_fc:
        weights["input_norm.weight"] = rand.norm(n_aux * target.n_embd)
    if v.fc_norm:
        weights |= {f"fc_norm.{k}.weight": rand.norm(target.n_embd) for k in range(n_aux)}
    for il in range(v.n_layer):
        weights |= {f"layers.{il}.{k}": w for k, w in _random_layer(rand, v, il).items()}
    if v.mask_token is not None:
        n_feat = target.n_embd * (n_aux if v.use_aux_hidden_state else 1)
        weights["mask_hidden"] = rand.rng.normal(0.0, 2.0, (1, 1, n_feat))
    weights["norm.weight"] = rand.norm(n_embd)
    if v.own_output:
        weights["lm_head.weight"] = rand.matrix(n_vocab_dft, n_embd, 4.0)
    if v.n_vocab_dft is not None:
        ids = np.sort(rand.rng.choice(target.n_vocab, n_vocab_dft, replace=False))
        weights["d2t"] = (ids - np.arange(n_vocab_dft)).astype(np.int64)
    return weights


def _mla_shapes(v: HeadVariant, n_inp: int) -> dict[str, tuple[int, int, float]]:
    """Return the shapes of DeepSeek's attention."""
    n_rot, n_q = v.n_rot or 0, v.n_head * (v.head_dim or 0)
    n_kv = v.n_head * ((v.head_dim or 0) - n_rot + v.v_head_dim)
    shapes = {
        "kv_a": (v.kv_lora_rank + n_rot, n_inp, 1.5),
        "kv_b": (n_kv, v.kv_lora_rank, 1.5),
        "o": (v.n_embd or 0, v.n_head * v.v_head_dim, 1.5),
    }
    if not v.q_lora_rank:
        return shapes | {"q": (n_q, n_inp, 1.5)}
    return shapes | {"q_a": (v.q_lora_rank, n_inp, 1.5), "q_b": (n_q, v.q_lora_rank, 1.5)}


def _random_layer(rand: RandomWeights, v: HeadVariant, il: int) -> Weights:
    n_embd, head_dim = v.n_embd or 0, v.head_dim or 0
    n_q, n_kv = v.n_head * head_dim, v.n_head_kv * head_dim
    n_inp = 2 * n_embd if il == 0 else n_embd
    shapes = {"q": (n_q, n_inp, 1.5), "k": (n_kv, n_inp, 1.5), "v": (n_kv, n_inp, 1.0), "o": (n_embd, n_q, 1.5)}
    if v.kv_lora_rank:
        shapes = _mla_shapes(v, n_inp)
    layer = {f"self_attn.{x}_proj.weight": rand.matrix(*shape) for x, shape in shapes.items()}
    if v.kv_lora_rank:
        layer["self_attn.kv_a_proj_with_mqa.weight"] = layer.pop("self_attn.kv_a_proj.weight")
        layer["self_attn.kv_a_layernorm.weight"] = rand.norm(v.kv_lora_rank)
    if v.q_lora_rank:
        layer["self_attn.q_a_layernorm.weight"] = rand.norm(v.q_lora_rank)
    layer["mlp.gate_proj.weight"] = rand.matrix(v.n_ff, n_embd, 1.5)
    layer["mlp.up_proj.weight"] = rand.matrix(v.n_ff, n_embd)
    layer["mlp.down_proj.weight"] = rand.matrix(n_embd, v.n_ff, 1.5)
    layer["input_layernorm.weight"] = rand.norm(n_embd)
    layer["post_attention_layernorm.weight"] = rand.norm(n_embd)
    if il == 0:
        layer["hidden_norm.weight"] = rand.norm(n_embd)
    if v.attention_bias:
        layer |= {f"self_attn.{x}_proj.bias": rand.bias(shape[0]) for x, shape in shapes.items()}
    if v.mlp_bias:
        layer |= {f"mlp.{x}_proj.bias": rand.bias(v.n_ff) for x in ("gate", "up")}
        layer["mlp.down_proj.bias"] = rand.bias(n_embd)
    if v.qk_norm:
        layer["self_attn.q_norm.weight"] = rand.norm(head_dim)
        layer["self_attn.k_norm.weight"] = rand.norm(head_dim)
    return layer


def write_head(path: str | Path, target: Target, *, weights: Weights | None = None, **variant: Any) -> Head:
    """Write a random head for `target`.

    `variant` are fields of HeadVariant; `weights` replaces random ones of these names. Nothing is checked, so that a
    head can be wrong on purpose.
    """
    v = HeadVariant(**variant)
    n_embd = v.n_embd or target.n_embd
    head_dim = v.head_dim or n_embd // v.n_head
    v = replace(v, n_embd=n_embd, head_dim=head_dim, n_rot=v.n_rot or head_dim)
    # a key has this name if only one dialect has it: the others are "extended"
    if v.dialect == "auto":
        v = replace(v, dialect="upstream" if v.upstream else "extended")
    rounded = round_to_file(_random_weights(v, target) | (weights or {}), v.ftype)
    d2t = rounded["d2t"] + np.arange(len(rounded["d2t"])) if "d2t" in rounded else None
    head = Head(str(path), "eagle3-ext" if v.dialect == "extended" else "eagle3", v, target, rounded, d2t)
    _write(head)
    return head


def _write(head: Head) -> None:
    v = head.variant
    writer = gguf.GGUFWriter(head.path, head.arch)
    writer.add_name("tiny random EAGLE-3 head")
    _write_keys(writer, head)
    if head.target.arch != "vlm":  # this architecture has tokens of its own
        add_vocab(writer, head.target.n_vocab)
    for name, array in head.weights.items():
        if name == "d2t" and v.dialect != "fork":
            array = head.d2t
        if ".kv_b_proj." in name:
            # in halves of each head, ready for products in the latent space: keys are transposed
            prefix = f"blk.{name.split('.')[1]}.attn"
            heads = array.reshape(v.n_head, -1, v.kv_lora_rank)
            n_nope = heads.shape[1] - v.v_head_dim
            add_tensor(writer, f"{prefix}_k_b.weight", heads[:, :n_nope].transpose(0, 2, 1), v.ftype)
            add_tensor(writer, f"{prefix}_v_b.weight", heads[:, n_nope:], v.ftype)
            continue
        add_tensor(writer, _gguf_name(name, v.dialect), _gguf_layout(v, name, array), v.ftype)
    if v.rope_scaling and v.rope_scaling["rope_type"] == "llama3":
        add_tensor(writer, "rope_freqs.weight", _llama3_factors(v), "f32")
    write_file(writer)


def _write_keys(writer: gguf.GGUFWriter, head: Head) -> None:
    v = head.variant
    if v.use_aux_hidden_state:
        writer.add_array("eagle3.extract_layers" if v.dialect == "fork" else "eagle3.target_layers", list(v.boundaries))
    else:
        writer.add_bool("eagle3.use_aux_hidden_state", False)
    writer.add_uint32("eagle3.target_hidden_size", head.target.n_embd)
    for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        if getattr(v, key):
            writer.add_bool(f"eagle3.{key}", True)
    if v.hidden_act != "silu":
        writer.add_string("eagle3.hidden_act", v.hidden_act)
    if v.logit_scale != 1.0:
        writer.add_float32("eagle3.logit_scale", v.logit_scale)
    if v.sliding_window:
        writer.add_uint32("eagle3.attention.sliding_window", v.sliding_window)
    sizes = {
        "block_count": v.n_layer,
        "context_length": v.context_length,
        "embedding_length": v.n_embd,
        "feed_forward_length": v.n_ff,
        "vocab_size": head.target.n_vocab,
        "attention.head_count": v.n_head,
        "attention.head_count_kv": v.n_head_kv,
        "attention.key_length": v.head_dim,
        "attention.value_length": v.head_dim,
        "rope.dimension_count": v.n_rot,
    }
    if v.kv_lora_rank:
        sizes |= {
            "attention.head_count_kv": 1,
            "attention.key_length": v.kv_lora_rank + (v.n_rot or 0),
            "attention.value_length": v.kv_lora_rank,
            "attention.kv_lora_rank": v.kv_lora_rank,
            "attention.key_length_mla": v.head_dim,
            "attention.value_length_mla": v.v_head_dim,
        }
        writer.add_float32("eagle3.attention.scale", v.attn_scale)
    if v.q_lora_rank:
        sizes["attention.q_lora_rank"] = v.q_lora_rank
    if v.mask_token is not None:
        sizes["mask_token_id"] = v.mask_token
    for key, value in sizes.items():
        writer.add_uint32(f"eagle3.{key}", int(value or 0))
    writer.add_float32("eagle3.attention.layer_norm_rms_epsilon", v.rms_eps)
    writer.add_float32("eagle3.rope.freq_base", v.rope_theta)
    if v.rope_sections:
        writer.add_array("eagle3.rope.dimension_sections", list(v.rope_sections))
        writer.add_bool("eagle3.rope.mrope_interleaved", v.rope_interleaved)
    _write_rope_scaling(writer, v.rope_scaling)


def _write_rope_scaling(writer: gguf.GGUFWriter, scaling: dict[str, Any] | None) -> None:
    # llama3 needs only the tensor rope_freqs
    if scaling is None or scaling["rope_type"] == "llama3":
        return
    writer.add_string("eagle3.rope.scaling.type", scaling["rope_type"])
    writer.add_float32("eagle3.rope.scaling.factor", scaling["factor"])
    if "original_max_position_embeddings" in scaling:
        writer.add_uint32("eagle3.rope.scaling.original_context_length", scaling["original_max_position_embeddings"])
    if "mscale_all_dim" in scaling:
        # ggml itself multiplies by the default
        wanted = mscale(scaling["factor"], scaling["mscale"]) / mscale(scaling["factor"], scaling["mscale_all_dim"])
        writer.add_float32("eagle3.rope.scaling.attn_factor", wanted / mscale(scaling["factor"], 1.0))
    for key in ("beta_fast", "beta_slow"):
        if key in scaling:
            writer.add_float32(f"eagle3.rope.scaling.yarn_{key}", scaling[key])


def _llama3_factors(v: HeadVariant) -> np.ndarray:
    """Return the divisor of each rotation frequency: 1 for short waves, `factor` for long ones, a blend between."""
    s, n_rot = v.rope_scaling or {}, v.n_rot or 0
    n_ctx, factor = s["original_max_position_embeddings"], s["factor"]
    out = []
    for i in range(n_rot // 2):
        n_turns = n_ctx * v.rope_theta ** (-2 * i / n_rot) / (2 * math.pi)
        share = (n_turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        share = min(max(share, 0.0), 1.0)
        out.append(1.0 / (share + (1.0 - share) / factor))
    return np.array(out)


def _gguf_name(name: str, dialect: str) -> str:
    if not name.startswith("layers."):
        return _TOP_NAMES.get(name, name)
    _, il, rest = name.split(".", 2)
    if dialect == "fork" and rest == "hidden_norm.weight":
        return f"blk.{il}.hidden_norm.weight"
    if rest in _LAYER_NAMES:
        return f"blk.{il}.{_LAYER_NAMES[rest]}"
    stem, suffix = rest.rsplit(".", 1)
    return f"blk.{il}.{_LAYER_NAMES[stem]}.{suffix}"


def _gguf_layout(v: HeadVariant, name: str, array: np.ndarray) -> np.ndarray:
    """Return an array in the file's layout: q and k, weights and biases, are in the order of interleaved rotation."""
    n_rot = v.n_rot or 0
    if name == "mask_hidden":
        return array.reshape(-1)
    if v.kv_lora_rank:
        return array  # DeepSeek's rotation is already of neighbours
    if ".q_proj." in name:
        return interleave_rope(array, v.n_head, n_rot)
    if ".k_proj." in name:
        return interleave_rope(array, v.n_head_kv, n_rot)
    if ".q_norm." in name or ".k_norm." in name:
        return interleave_rope(array, 1, n_rot)
    return array
