"""Tiny random targets: llama, qwen2, qwen3 and gemma3."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from .vocab import add_vocab
from .weights import RandomWeights, Weights, add_tensor, interleave_rope, round_to_file, write_file


@dataclass
class Target:
    """A target on disk. `weights` are float64 in the layout and with the names of Hugging Face checkpoints."""

    path: str
    arch: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_vocab: int
    rope_theta: float
    rms_eps: float
    tied: bool
    ftype: str
    weights: Weights = field(repr=False)

    @property
    def token_bos(self) -> int:
        """Id of the token that begins a text."""
        return self.n_vocab - 2

    @property
    def token_eos(self) -> int:
        """Id of the token that ends a text."""
        return self.n_vocab - 1

    @property
    def hf_config(self) -> dict:
        """Return keyword arguments of the matching transformers config (LlamaConfig, Qwen2Config, Qwen3Config)."""
        return {
            "vocab_size": self.n_vocab,
            "hidden_size": self.n_embd,
            "intermediate_size": self.n_ff,
            "num_hidden_layers": self.n_layer,
            "num_attention_heads": self.n_head,
            "num_key_value_heads": self.n_head_kv,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": self.tied,
            "bos_token_id": self.token_bos,
            "eos_token_id": self.token_eos,
        }


_GGUF_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}

# Gemma 3 also has norms after attention and MLP, and so the norm before the MLP has another name.
_GGUF_NAMES_GEMMA3 = _GGUF_NAMES | {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}


def _random_layer(rand: RandomWeights, t: Target) -> Weights:
    n_q, n_kv = t.n_head * t.head_dim, t.n_head_kv * t.head_dim
    layer = {
        "input_layernorm.weight": rand.norm(t.n_embd),
        "self_attn.q_proj.weight": rand.matrix(n_q, t.n_embd, 1.5),
        "self_attn.k_proj.weight": rand.matrix(n_kv, t.n_embd, 1.5),
        "self_attn.v_proj.weight": rand.matrix(n_kv, t.n_embd),
        "self_attn.o_proj.weight": rand.matrix(t.n_embd, n_q, 1.5),
        "post_attention_layernorm.weight": rand.norm(t.n_embd),
        "mlp.gate_proj.weight": rand.matrix(t.n_ff, t.n_embd, 1.5),
        "mlp.up_proj.weight": rand.matrix(t.n_ff, t.n_embd),
        "mlp.down_proj.weight": rand.matrix(t.n_embd, t.n_ff, 1.5),
    }
    if t.arch == "qwen2":
        for name, n in (("q", n_q), ("k", n_kv), ("v", n_kv)):
            layer[f"self_attn.{name}_proj.bias"] = rand.bias(n)
    if t.arch in ("qwen3", "gemma3"):
        layer["self_attn.q_norm.weight"] = rand.norm(t.head_dim)
        layer["self_attn.k_norm.weight"] = rand.norm(t.head_dim)
    if t.arch == "gemma3":
        layer["pre_feedforward_layernorm.weight"] = rand.norm(t.n_embd)
        layer["post_feedforward_layernorm.weight"] = rand.norm(t.n_embd)
    return layer


def _random_weights(t: Target, seed: int, eos_scale: float) -> Weights:
    rand = RandomWeights(seed)
    # if the output matrix is the embedding, large embeddings would make the model repeat its last token for ever
    size_embd = (0.04 if t.arch == "gemma3" else 0.3) if t.tied else 1.0
    weights: Weights = {"model.embed_tokens.weight": rand.rng.normal(0.0, size_embd, (t.n_vocab, t.n_embd))}
    for il in range(t.n_layer):
        weights |= {f"model.layers.{il}.{k}": v for k, v in _random_layer(rand, t).items()}
    weights["model.norm.weight"] = rand.norm(t.n_embd)
    if t.tied:
        weights["model.norm.weight"] *= 4.0 / (size_embd * np.sqrt(t.n_embd))
        weights["model.embed_tokens.weight"][t.token_eos] *= eos_scale
    else:
        weights["lm_head.weight"] = rand.matrix(t.n_vocab, t.n_embd, 4.0)
        weights["lm_head.weight"][t.token_eos] *= eos_scale
    return weights


def write_target(
    path: str | Path,
    arch: str = "llama",
    *,
    n_layer: int = 4,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int | None = None,
    n_ff: int = 96,
    n_vocab: int = 320,
    seed: int = 0,
    ftype: str = "f32",
    tied: bool = False,
    rope_theta: float = 10000.0,
    rms_eps: float = 1e-5,
    context_length: int = 4096,
    eos_scale: float = 0.0,
    weights: Weights | None = None,
) -> Target:
    """Write a target to `path`.

    With `eos_scale` 0 it never ends a greedy text; `weights` replaces random ones of these names.
    """
    if arch not in ("llama", "qwen2", "qwen3", "gemma3"):
        raise ValueError(f"no tiny target of architecture {arch!r}")
    target = Target(
        path=str(path),
        arch=arch,
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim or n_embd // n_head,
        n_ff=n_ff,
        n_vocab=n_vocab,
        rope_theta=rope_theta,
        rms_eps=rms_eps,
        tied=tied,
        ftype=ftype,
        weights={},
    )
    target.weights = round_to_file(_random_weights(target, seed, eos_scale) | (weights or {}), ftype)
    _write(target, context_length)
    return target


def _write(t: Target, context_length: int) -> None:
    writer = gguf.GGUFWriter(t.path, t.arch)
    writer.add_name(f"tiny random {t.arch}")
    writer.add_block_count(t.n_layer)
    writer.add_context_length(context_length)
    writer.add_embedding_length(t.n_embd)
    writer.add_feed_forward_length(t.n_ff)
    writer.add_head_count(t.n_head)
    writer.add_head_count_kv(t.n_head_kv)
    writer.add_key_length(t.head_dim)
    writer.add_value_length(t.head_dim)
    writer.add_rope_dimension_count(t.head_dim)
    writer.add_rope_freq_base(t.rope_theta)
    writer.add_layer_norm_rms_eps(t.rms_eps)
    writer.add_vocab_size(t.n_vocab)
    add_vocab(writer, t.n_vocab)
    names = _GGUF_NAMES_GEMMA3 if t.arch == "gemma3" else _GGUF_NAMES
    for name, array in t.weights.items():
        add_tensor(writer, _gguf_name(name, names), _gguf_layout(t, name, array), t.ftype)
    write_file(writer)


def _gguf_name(name: str, names: dict[str, str]) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    _, _, il, rest = name.split(".", 3)
    return f"blk.{il}.{names[rest]}"


def _gguf_layout(t: Target, name: str, array: np.ndarray) -> np.ndarray:
    """Return an array in the file's layout: only the llama graph rotates interleaved pairs, the others halves."""
    if t.arch == "llama" and ".q_proj." in name:
        return interleave_rope(array, t.n_head, t.head_dim)
    if t.arch == "llama" and ".k_proj." in name:
        return interleave_rope(array, t.n_head_kv, t.head_dim)
    return array
