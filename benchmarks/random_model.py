"""Write targets and EAGLE-3 heads of any shape with random weights: speed does not depend on the weights' values.

    python benchmarks/random_model.py --shape Llama-3.1-8B --type Q4_0 --head-type Q8_0 FOLDER

A few random blocks of 32 values are quantized and dealt out at random, so that a file is written about as fast as the
disk allows; blocks of K-quants, IQ types and TQ2_0 are random bytes with suitable scales. Q4_K_M and Q5_K_M are mixes
of types like llama.cpp's. The heads are in llama.cpp's dialect: its own tools load the same files. This file also runs
without the package.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from llama_cpp_eagle3.files.whole_file import whole_file

_Q4_K, _Q5_K, _Q6_K = (gguf.GGMLQuantizationType[name] for name in ("Q4_K", "Q5_K", "Q6_K"))
_Q2_K, _Q3_K = gguf.GGMLQuantizationType.Q2_K, gguf.GGMLQuantizationType.Q3_K
_IQ4_NL, _IQ4_XS = gguf.GGMLQuantizationType.IQ4_NL, gguf.GGMLQuantizationType.IQ4_XS
_IQ2_XXS, _IQ2_S = gguf.GGMLQuantizationType.IQ2_XXS, gguf.GGMLQuantizationType.IQ2_S
_IQ3_XXS, _IQ3_S = gguf.GGMLQuantizationType.IQ3_XXS, gguf.GGMLQuantizationType.IQ3_S
_TQ2_0 = gguf.GGMLQuantizationType.TQ2_0
_NAMES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS", "MXFP4", "IQ2_XXS", "IQ2_S"]
_NAMES += ["IQ3_XXS", "IQ3_S", "TQ2_0"]
TYPES = {name: gguf.GGMLQuantizationType[name] for name in _NAMES}
TYPES |= {"Q2_K": _Q2_K, "Q3_K": _Q3_K, "Q4_K_M": _Q4_K, "Q5_K_M": _Q5_K, "Q6_K": _Q6_K}
# the offset of d (scale of scales) and dmin in a block, and their values for a root mean square of about 1
_SCALES = {
    _Q2_K: (80, [1 / 12, 1 / 8]),  # a value is d sc q - dmin m with 4 bits of sc and m, 2 of q
    _Q3_K: (108, [1 / 43]),  # d (sc - 32) (q - 4), with 6 bits and 3
    _Q4_K: (0, [1 / 240, 7.5 / 240]),  # as Q2_K, with 6 bits and 4
    _Q5_K: (0, [1 / 480, 15.5 / 480]),
    _IQ4_NL: (0, [1 / 68]),  # d times an entry of a table whose root mean square is 68
    _IQ2_XXS: (0, [1 / 53]),  # d (2 sc + 1) / 8 times an entry of a grid, with 4 bits of sc
    _IQ2_S: (0, [1 / 53]),
    _IQ3_XXS: (0, [1 / 140]),  # d (2 sc + 1) / 4
    _IQ3_S: (0, [1 / 157]),  # d (2 sc + 1)
    _TQ2_0: (64, [1 / 1.2]),  # d (q - 1), with 2 bits
    _IQ4_XS: (0, [1 / 68 / 18.5]),  # d (sc - 32) times an entry of that table, with 6 bits of sc
}
_N_BLOCK = 32  # values of a block
_N_BLOCKS = 4096  # different blocks in a matrix
_N_CTX = 8192
_CHAT_TOKENS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


@dataclass(frozen=True)
class Shape:
    """Sizes of a target, by default a Llama, and of a head for it."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    n_ff_dft: int
    n_vocab_dft: int
    arch: str = "llama"
    n_embd_head: int = 0
    """Width of one attention head; 0 = n_embd / n_head."""
    n_expert: int = 0
    """Experts, of which each token gets 4, with an MLP of `n_ff` each."""

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd_head or self.n_embd // self.n_head

    @property
    def boundaries(self) -> list[int]:
        """The usual three boundaries: near the beginning, in the middle, near the end."""
        return [2, self.n_layer // 2, self.n_layer - 3]


SHAPES = {
    "tiny": Shape(8, 256, 512, 8, 4, 4000, 512, 2000),
    "1B": Shape(16, 2048, 8192, 32, 8, 32000, 8192, 8000),
    "Llama-3.1-8B": Shape(32, 4096, 14336, 32, 8, 128256, 14336, 32000),
    "Qwen2.5-7B": Shape(28, 3584, 18944, 28, 4, 151936, 18944, 32000, "qwen2"),
    # Qwen2.5-14B with 4 heads of K and V instead of 8, since the 1.5B grows to at least 6 heads for each of them
    "14B": Shape(48, 5120, 13824, 40, 4, 151936, 13824, 32000, "qwen2"),
    "Qwen3.5-0.8B": Shape(24, 1024, 3584, 8, 2, 4096, 3584, 2000, "qwen35", 256),
    "Qwen3.5-4B": Shape(32, 2560, 9216, 16, 4, 248320, 9216, 32000, "qwen35", 256),
    "gpt-oss-20b": Shape(24, 2880, 2880, 64, 8, 201088, 17280, 32000, "gpt-oss", 64, 32),
    # two layers of Qwen2.5-1.5B; and the attention of large models, in four layers
    "two-layers": Shape(2, 1536, 8960, 12, 2, 2048, 512, 2000),
    "sinks": Shape(4, 2880, 704, 64, 8, 4096, 2880, 2000, "gpt-oss", 64, 8),
    "latent": Shape(4, 2048, 4096, 16, 1, 4096, 2048, 2000, "deepseek2"),
    # the same graphs at small sizes, for trials
    "tiny-qwen35": Shape(8, 256, 512, 8, 4, 4000, 512, 2000, "qwen35", 32),
    "tiny-gpt-oss": Shape(8, 256, 256, 8, 4, 4000, 512, 2000, "gpt-oss", 32, 8),
}


class _File:
    """A GGUF file whose tensors are made one by one while it is written."""

    def __init__(self, path: Path, arch: str, name: str, shape: Shape, ftype: str):
        self.writer = gguf.GGUFWriter(path, arch)
        self.shape, self.ftype = shape, TYPES[ftype]
        self.arch = arch
        self.rng = np.random.default_rng(0)
        self.tensors: list[tuple[str, tuple[int, ...], float | None]] = []
        self.writer.add_name(name)

    def add_sizes(self, n_layer: int, n_ff: int, attention: dict[str, int] | None = None) -> None:
        """Add the keys that target and head share, tokenizer included; `attention` replaces and adds some."""
        w, s = self.writer, self.shape
        w.add_block_count(n_layer)
        w.add_context_length(_N_CTX)
        w.add_embedding_length(s.n_embd)
        w.add_feed_forward_length(n_ff)
        w.add_head_count(s.n_head)
        sizes = {
            "attention.head_count_kv": s.n_head_kv,
            "attention.key_length": s.head_dim,
            "attention.value_length": s.head_dim,
            "rope.dimension_count": s.head_dim // 4 if self.arch == "qwen35" else s.head_dim,
        }
        for key, value in (sizes | (attention or {})).items():
            w.add_uint32(f"{w.arch}.{key}", value)
        w.add_rope_freq_base(10000.0)
        w.add_layer_norm_rms_eps(1e-5)
        w.add_vocab_size(s.n_vocab)
        _add_tokenizer(w, s.n_vocab)

    def matrix(self, name: str, *shape: int) -> None:
        """Plan a matrix of (n_out, n_in), or one for each expert; a product keeps the size of its input."""
        self.tensors.append((name, shape, None))

    def constant(self, name: str, *shape: int, value: float = 1.0) -> None:
        """Plan an F32 tensor of one value: a norm, a bias."""
        self.tensors.append((name, shape, value))

    def kind_of(self, name: str) -> gguf.GGMLQuantizationType:
        """Return a matrix's type: in Q4_K_M and Q5_K_M the output, and half of attn_v and ffn_down, are Q6_K."""
        if self.ftype not in (_Q4_K, _Q5_K):
            return self.ftype
        if name == "output.weight" or (name == "token_embd.weight" and self.arch == "qwen35"):
            return _Q6_K
        il, n = int(name.split(".")[1]) if name.startswith("blk.") else 0, self.shape.n_layer
        more = il < n // 8 or il >= 7 * n // 8 or (il - n // 8) % 3 == 2
        return _Q6_K if more and ("attn_v" in name or "ffn_down" in name) else self.ftype

    def attention(self, il: int, n_inp: int, n_q: int = 1) -> None:
        """Plan a layer's attention, with inputs of width n_inp and n_q times the width of the queries."""
        s, blk = self.shape, f"blk.{il}"
        n_heads, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
        self.matrix(f"{blk}.attn_q.weight", n_q * n_heads, n_inp)
        self.matrix(f"{blk}.attn_k.weight", n_kv, n_inp)
        self.matrix(f"{blk}.attn_v.weight", n_kv, n_inp)
        self.matrix(f"{blk}.attn_output.weight", s.n_embd, n_heads)

    def mlp(self, il: int, n_ff: int) -> None:
        """Plan a layer's MLP."""
        s, blk = self.shape, f"blk.{il}"
        self.matrix(f"{blk}.ffn_gate.weight", n_ff, s.n_embd)
        self.matrix(f"{blk}.ffn_up.weight", n_ff, s.n_embd)
        self.matrix(f"{blk}.ffn_down.weight", s.n_embd, n_ff)

    def block(self, il: int, n_inp: int, n_ff: int) -> None:
        """Plan a layer of a Llama."""
        self.constant(f"blk.{il}.attn_norm.weight", self.shape.n_embd)
        self.attention(il, n_inp)
        self.constant(f"blk.{il}.ffn_norm.weight", self.shape.n_embd)
        self.mlp(il, n_ff)

    def write(self, first: dict[str, npt.NDArray[np.int64]] | None = None) -> None:
        """Write the file; `first` are integer tensors that go before the others."""
        w = self.writer
        for name, ids in (first or {}).items():
            w.add_tensor_info(name, ids.shape, ids.dtype, ids.nbytes)
        for name, shape, value in self.tensors:
            kind = self.kind_of(name) if value is None else TYPES["F32"]
            size = _n_bytes(shape, kind)
            if kind in (TYPES["F32"], TYPES["F16"]):
                dtype = np.dtype(np.float32 if kind == TYPES["F32"] else np.float16)
                w.add_tensor_info(name, shape, dtype, size)
            else:
                # the shape of a quantized tensor is given in bytes
                n_rows = int(np.prod(shape[:-1]))
                w.add_tensor_info(name, (*shape[:-1], size // n_rows), np.dtype(np.uint8), size, raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        for ids in (first or {}).values():
            w.write_tensor_data(ids)
        for name, shape, value in self.tensors:
            random = value is None
            w.write_tensor_data(self._random(name, shape) if random else np.full(shape, value, dtype=np.float32))
        w.close()

    def _random(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
        kind = self.kind_of(name)
        n_block = max(_N_BLOCK, gguf.GGML_QUANT_SIZES[kind][0])
        deal = self.rng.integers(0, _N_BLOCKS, int(np.prod(shape)) // n_block, dtype=np.int32)
        dealt: npt.NDArray[np.generic] = self._blocks(shape[-1] ** -0.5, kind)[deal]
        return dealt.reshape(*shape[:-1], -1)

    def _blocks(self, scale: float, kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.generic]:
        """Return blocks whose values have about this root mean square."""
        if kind != _Q6_K and kind not in _SCALES:
            values = self.rng.normal(0.0, scale, (_N_BLOCKS, _N_BLOCK)).astype(np.float32)
            quantized: npt.NDArray[np.generic] = gguf.quants.quantize(values, kind)
            return quantized
        blocks = self.rng.integers(0, 256, (_N_BLOCKS, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        if kind in _SCALES:
            at, d = _SCALES[kind]
            blocks[:, at : at + 2 * len(d)] = (scale * np.array(d)).astype(np.float16).view(np.uint8)
        else:  # 16 scales of 8 bits, d; a value is d sc (q - 32)
            blocks[:, -18:-2] = self.rng.integers(-16, 16, (_N_BLOCKS, 16)).astype(np.int8).view(np.uint8)
            blocks[:, -2:] = np.array([scale / 170.0], np.float16).view(np.uint8)
        return blocks


def _n_bytes(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> int:
    n_block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    return int(int(np.prod(shape)) // n_block * n_bytes)


def _byte_alphabet() -> Iterator[str]:
    """Yield the printable characters that stand for the 256 bytes in GPT-2's tokenizer."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    n_other = 0
    for b in range(256):
        if b in printable:
            yield chr(b)
        else:
            yield chr(256 + n_other)
            n_other += 1


def _add_tokenizer(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Add a byte-level tokenizer: one token per byte, one merge, the tokens of chats, fillers, bos and eos."""
    tokens = [*_byte_alphabet(), "in"]
    n_text = len(tokens)
    tokens += _CHAT_TOKENS
    n_fill = n_vocab - len(tokens) - 2
    tokens += [f"<|filler_{i}|>" for i in range(n_fill)] + ["<|bos|>", "<|eos|>"]
    types = [gguf.TokenType.NORMAL] * n_text + [gguf.TokenType.CONTROL] * len(_CHAT_TOKENS)
    types += [gguf.TokenType.UNUSED] * n_fill + [gguf.TokenType.CONTROL] * 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["i n"])
    writer.add_bos_token_id(n_vocab - 2)
    writer.add_eos_token_id(n_vocab - 1)
    writer.add_add_bos_token(True)


def write_target(path: Path, shape: Shape, ftype: str) -> None:
    """Write a target with random weights."""
    file = _File(path, shape.arch, f"random {shape.arch} {ftype}", shape, ftype)
    file.add_sizes(shape.n_layer, shape.n_ff, _LATENT if shape.arch == "deepseek2" else None)
    file.matrix("token_embd.weight", shape.n_vocab, shape.n_embd)
    file.constant("output_norm.weight", shape.n_embd)
    _ARCHS[shape.arch](file)
    file.write()


def _llama(file: _File) -> None:
    s = file.shape
    file.matrix("output.weight", s.n_vocab, s.n_embd)
    for il in range(s.n_layer):
        file.block(il, s.n_embd, s.n_ff)


def _qwen35(file: _File) -> None:
    """Plan three layers with a recurrent state to one with attention; the output is the embedding table."""
    s, w = file.shape, file.writer
    # as many key heads as attention heads, and twice as many value heads, half as wide as attention heads
    n_key, n_value, d_state = s.n_head, 2 * s.n_head, s.head_dim // 2
    n_inner = n_value * d_state
    n_conv = 2 * n_key * d_state + n_inner
    sizes = {"conv_kernel": 4, "inner_size": n_inner, "state_size": d_state}
    for key, value in {**sizes, "time_step_rank": n_value, "group_count": n_key}.items():
        w.add_uint32(f"qwen35.ssm.{key}", value)
    w.add_uint32("qwen35.full_attention_interval", 4)
    n_rot = s.head_dim // 4
    w.add_array("qwen35.rope.dimension_sections", [n_rot // 2 - 2 * (n_rot // 6), n_rot // 6, n_rot // 6, 0])
    for il in range(s.n_layer):
        blk = f"blk.{il}"
        file.constant(f"{blk}.attn_norm.weight", s.n_embd)
        file.constant(f"{blk}.post_attention_norm.weight", s.n_embd)
        file.mlp(il, s.n_ff)
        if (il + 1) % 4 == 0:
            file.attention(il, s.n_embd, n_q=2)  # with a gate
            file.constant(f"{blk}.attn_q_norm.weight", s.head_dim)
            file.constant(f"{blk}.attn_k_norm.weight", s.head_dim)
            continue
        file.matrix(f"{blk}.attn_qkv.weight", n_conv, s.n_embd)
        file.matrix(f"{blk}.attn_gate.weight", n_inner, s.n_embd)
        file.constant(f"{blk}.ssm_conv1d.weight", n_conv, 4, value=0.25)
        file.constant(f"{blk}.ssm_dt.bias", n_value)
        file.constant(f"{blk}.ssm_a", n_value, value=-1.0)
        file.matrix(f"{blk}.ssm_beta.weight", n_value, s.n_embd)
        file.matrix(f"{blk}.ssm_alpha.weight", n_value, s.n_embd)
        file.constant(f"{blk}.ssm_norm.weight", d_state)
        file.matrix(f"{blk}.ssm_out.weight", s.n_embd, n_inner)


def _gpt_oss(file: _File) -> None:
    """Plan experts, attention sinks, a sliding window in every other layer, biases."""
    s, w = file.shape, file.writer
    w.add_uint32("gpt-oss.attention.sliding_window", 128)
    w.add_uint32("gpt-oss.expert_count", s.n_expert)
    w.add_uint32("gpt-oss.expert_used_count", 4)
    w.add_uint32("gpt-oss.expert_feed_forward_length", s.n_ff)
    n_heads, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    file.matrix("output.weight", s.n_vocab, s.n_embd)
    for il in range(s.n_layer):
        blk = f"blk.{il}"
        file.constant(f"{blk}.attn_norm.weight", s.n_embd)
        file.constant(f"{blk}.post_attention_norm.weight", s.n_embd)
        file.attention(il, s.n_embd)
        for name, n in (("attn_q", n_heads), ("attn_k", n_kv), ("attn_v", n_kv), ("attn_output", s.n_embd)):
            file.constant(f"{blk}.{name}.bias", n, value=0.0)
        file.constant(f"{blk}.attn_sinks.weight", s.n_head, value=0.0)
        file.matrix(f"{blk}.ffn_gate_inp.weight", s.n_expert, s.n_embd)
        file.constant(f"{blk}.ffn_gate_inp.bias", s.n_expert, value=0.0)
        for name, n_out, n_in in (("gate", s.n_ff, s.n_embd), ("up", s.n_ff, s.n_embd), ("down", s.n_embd, s.n_ff)):
            file.matrix(f"{blk}.ffn_{name}_exps.weight", s.n_expert, n_out, n_in)
            file.constant(f"{blk}.ffn_{name}_exps.bias", s.n_expert, n_out, value=0.0)


def _deepseek2(file: _File) -> None:
    """Plan multi-head latent attention, no experts."""
    s, w = file.shape, file.writer
    for key, value in {"leading_dense_block_count": s.n_layer, "expert_shared_count": 0}.items():
        w.add_uint32(f"deepseek2.{key}", value)
    w.add_uint32("deepseek2.expert_feed_forward_length", s.n_ff)
    file.matrix("output.weight", s.n_vocab, s.n_embd)
    for il in range(s.n_layer):
        file.constant(f"blk.{il}.attn_norm.weight", s.n_embd)
        _latent_attention(file, il, s.n_embd)
        file.constant(f"blk.{il}.ffn_norm.weight", s.n_embd)
        file.mlp(il, s.n_ff)


_ARCHS = {"llama": _llama, "qwen35": _qwen35, "gpt-oss": _gpt_oss, "deepseek2": _deepseek2}


HEADS = ("eagle3", "p-eagle", "mla")


def write_head(path: Path, shape: Shape, ftype: str, kind: str = "eagle3") -> None:
    """Write a head with random weights for a target of that shape, in llama.cpp's dialect of EAGLE-3.

    kind: one of HEADS; "p-eagle" is the same layer drafting all tokens in one pass, "mla" has DeepSeek's attention.
    """
    file = _File(path, "eagle3" if kind == "eagle3" else "eagle3-ext", f"random {kind} head {ftype}", shape, ftype)
    file.writer.arch = "eagle3"  # the prefix of the keys
    file.add_sizes(1, shape.n_ff_dft, _LATENT if kind == "mla" else None)
    file.writer.add_array("eagle3.target_layers", shape.boundaries)
    file.writer.add_uint32("eagle3.target_hidden_size", shape.n_embd)
    file.matrix("fc.weight", shape.n_embd, 3 * shape.n_embd)
    file.constant("blk.0.attn_norm_2.weight", shape.n_embd)
    file.constant("blk.0.attn_norm.weight", shape.n_embd)
    file.constant("blk.0.ffn_norm.weight", shape.n_embd)
    file.mlp(0, shape.n_ff_dft)
    if kind == "mla":
        _latent_attention(file, 0, 2 * shape.n_embd)
    else:
        file.attention(0, 2 * shape.n_embd)
    if kind == "p-eagle":
        file.writer.add_uint32("eagle3.mask_token_id", 0)
        file.constant("mask_hidden", 3 * shape.n_embd)
    file.constant("output_norm.weight", shape.n_embd)
    file.matrix("output.weight", shape.n_vocab_dft, shape.n_embd)
    stride = shape.n_vocab // shape.n_vocab_dft
    file.write({"d2t": np.arange(shape.n_vocab_dft, dtype=np.int64) * stride})


# DeepSeek's sizes
_LATENT = {
    "attention.head_count_kv": 1,
    "attention.key_length": 512 + 64,
    "attention.value_length": 512,
    "attention.kv_lora_rank": 512,
    "attention.q_lora_rank": 1536,
    "attention.key_length_mla": 128 + 64,
    "attention.value_length_mla": 128,
    "rope.dimension_count": 64,
}


def _latent_attention(file: _File, il: int, n_inp: int) -> None:
    """Plan a layer's multi-head latent attention, with inputs of width n_inp and the heads of the shape."""
    s, sizes, blk = file.shape, {key.rpartition(".")[2]: n for key, n in _LATENT.items()}, f"blk.{il}"
    kv_lora, q_lora, n_rot = sizes["kv_lora_rank"], sizes["q_lora_rank"], sizes["dimension_count"]
    n_value, n_nope = sizes["value_length_mla"], sizes["key_length_mla"] - n_rot
    file.constant(f"{blk}.attn_q_a_norm.weight", q_lora)
    file.constant(f"{blk}.attn_kv_a_norm.weight", kv_lora)
    file.matrix(f"{blk}.attn_q_a.weight", q_lora, n_inp)
    file.matrix(f"{blk}.attn_q_b.weight", s.n_head * (n_nope + n_rot), q_lora)
    file.matrix(f"{blk}.attn_kv_a_mqa.weight", kv_lora + n_rot, n_inp)
    file.matrix(f"{blk}.attn_k_b.weight", s.n_head, kv_lora, n_nope)
    file.matrix(f"{blk}.attn_v_b.weight", s.n_head, n_value, kv_lora)
    file.matrix(f"{blk}.attn_output.weight", s.n_embd, s.n_head * n_value)


def random_pair(folder: Path, shape: str = "1B", ftype: str = "Q4_0", head_type: str = "Q8_0") -> tuple[Path, Path]:
    """Write a target and a head to `folder`; existing files are used again."""
    folder.mkdir(parents=True, exist_ok=True)
    target, head = folder / f"random-{shape}-{ftype}.gguf", folder / f"random-{shape}-eagle3-{head_type}.gguf"
    for path, write, kind in ((target, write_target, ftype), (head, write_head, head_type)):
        if not path.exists():
            with whole_file(path) as part:
                write(part, SHAPES[shape], kind)
    return target, head


def main() -> None:
    """Write a pair and print its paths."""
    parser = argparse.ArgumentParser(description="Write a target and an EAGLE-3 head with random weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1B")
    parser.add_argument("--type", choices=TYPES, default="Q4_0", help="of the target's matrices")
    parser.add_argument("--head-type", choices=TYPES, default="Q8_0", help="of the head's matrices")
    args = parser.parse_args()
    for path in random_pair(args.folder, args.shape, args.type, args.head_type):
        print(path)


if __name__ == "__main__":
    main()
