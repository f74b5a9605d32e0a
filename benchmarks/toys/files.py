"""Write GGUFs of the trained drafters and their targets, at 8M parameters or at the cost of 1B.

- MiMo2: a target that computes what the bundled Llama computes (dense layers, half-rotation), with the block.
- Qwen3.5: the same once more, with recurrent layers between. Its attention norms queries and keys: heads are made
  wider, the further values of a query are the layer's input, whose norm is the same at all rows, so that the norm only
  divides by a constant; they are weighted by 0. Its recurrent layers have random weights and add little, so that a
  wrong state shows in the text and right ones leave it almost as it was.
- DFlash: the block drafter for the bundled target.

`inflate.py` explains how files grow.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from inflate import Model, Part, layer_places
from llama_cpp_eagle3 import models
from llama_cpp_eagle3_heads.convert.encoding import FILE_TYPES, type_of
from llama_cpp_eagle3_heads.convert.gguf_file import open_gguf
from llama_cpp_eagle3_heads.convert.output import OutTensor, add_keys, temporary, write
from random_model import SHAPES, Shape

Array = NDArray[np.float32]

LAYERS = (2, 5, 7)
"""Boundaries of the bundled target that its drafters read."""
_NAMES = {
    "attn.q": "attn_q", "attn.k": "attn_k", "attn.v": "attn_v", "attn.o": "attn_output", "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up", "ffn.down": "ffn_down", "attn_norm": "attn_norm", "ffn_norm": "ffn_norm",
    "attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm",
}  # fmt: skip
_WIDER = 16.0
"""Size of the further values of a query relative to its own values, as a whole."""
_SIZES = (2.0, 3.0, 3.5)
"""Root mean squares of the bundled target's hidden states at LAYERS."""
_RECURRENT = 0.02
"""Size of a recurrent layer's output relative to its input's."""


def halves(weight: Array, n_head: int) -> Array:
    """Reorder the rows of q or k from llama.cpp's neighbouring pairs to halves."""
    n_out, n_in = weight.shape
    return weight.reshape(n_head, n_out // n_head // 2, 2, n_in).swapaxes(1, 2).reshape(n_out, n_in)


class Toy(Model):
    """The bundled target and one drafter, with the names of tensors that files have."""

    def __init__(self, shape: Shape, more: dict[str, Array], outtype: str = "q4_0"):
        """shape: that of the files. more: the drafter's tensors. outtype: the type of matrices."""
        super().__init__(models.bundled_pair()[0], shape, outtype, shape.n_ff, shape.n_vocab)
        self.more = dict(more)
        self.tensors |= dict.fromkeys(self.more)

    def small(self, name: str) -> Array:
        """Return a tensor of the small model; queries and keys as halves."""
        if name in self.more:
            return self.more[name]
        values = super().small(name)
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            return halves(values, self.n_head if "attn_q" in name else self.n_head_kv)
        return values

    def matrix(self, name: str, n_out: int, n_in: int, values: Callable[[], Array]) -> OutTensor:
        """Return a matrix that `values` makes; llama-quantize has a better type than Q4_0 for the output."""
        outtype = "q6_k" if (name, self.outtype) == ("output.weight", "q4_0") else self.outtype
        return OutTensor(name, (n_out, n_in), type_of((n_out, n_in), outtype), values)

    def vector(self, name: str, values: Array | Sequence[float]) -> OutTensor:
        """Return a vector unchanged."""
        data = np.asarray(values, dtype=np.float32)
        return OutTensor(name, data.shape, GgmlType.F32, lambda: data)

    def zeros(self, name: str) -> OutTensor:
        """Return a norm whose weights are zero."""
        return self.vector(name, np.zeros(self.shape.n_embd))

    def tables(self) -> Iterator[OutTensor]:
        """Yield the target's embedding, last norm and output matrix."""
        s = self.shape

        def embeddings() -> Array:
            part = Part(np.arange(self.n_tokens), np.arange(self.n_embd), np.ones(s.n_embd, dtype=bool), silent=False)
            large = self.grown("token_embd.weight", s.n_vocab, s.n_embd, part)
            large[: self.n_tokens, self.n_embd] = self.constant
            return large

        yield self.matrix("token_embd.weight", s.n_vocab, s.n_embd, embeddings)
        yield self.norm("output_norm.weight", last=True)
        yield self.logits("token_embd.weight")

    @staticmethod
    def renamed(tensor: OutTensor, name: str) -> OutTensor:
        """Return a tensor under another name."""
        return OutTensor(name, tensor.shape, tensor.kind, tensor.values)

    def save(self, path: Path, arch: str, keys: dict[str, object], tensors: Iterator[OutTensor]) -> None:
        """Write a file with the bundled tokenizer."""
        s, n_added = self.shape, self.shape.n_vocab - self.n_tokens
        sizes: dict[str, object] = {
            "context_length": 512,
            "embedding_length": s.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": s.n_head,
            "attention.head_count_kv": s.n_head_kv,
            "attention.key_length": s.head_dim,
            "attention.value_length": s.head_dim,
            "rope.dimension_count": self.head_dim,
            "rope.freq_base": 10000.0,
            "attention.layer_norm_rms_epsilon": self.new_eps,
            "vocab_size": s.n_vocab,
        }
        with temporary(path, os.fspath(self.path)) as part:
            writer = gguf.GGUFWriter(part, arch)
            writer.add_name(f"{self.keys['general.name'].value}, as {arch}")
            writer.add_file_type(FILE_TYPES[self.outtype])
            for key, entry in self.keys.items():
                if key.startswith("tokenizer."):
                    value = entry.value
                    if key.endswith((".tokens", ".token_type")):
                        of_added = [f"<|filler_{i}|>" for i in range(n_added)], [int(gguf.TokenType.UNUSED)] * n_added
                        value = [*value, *of_added[key.endswith("type")]]
                    writer.add_key_value(key, value, entry.kind, entry.sub_kind)
            named = {
                key[1:] if key.startswith("/") else f"{arch}.{key}": value for key, value in (sizes | keys).items()
            }
            add_keys(writer, named)
            write(writer, list(tensors), progress=False)


class WithBlock(Toy):
    """A target with its block. Added tokens are made improbable by the output matrix, not by the last norm: blocks read
    states after it too, and norm them again."""

    def norm(self, name: str, last: bool = False) -> OutTensor:
        """Return a norm; `last` is the one before the logits."""
        tensor = super().norm(name)

        def values() -> Array:
            weight = tensor.values()
            weight[self.n_embd] = (self.n_embd / self.shape.n_embd) ** 0.5 if last else 0.0
            return weight

        return OutTensor(tensor.name, tensor.shape, tensor.kind, values)

    def logits(self, source: str) -> OutTensor:
        """Return the output matrix."""
        tensor = super().logits(source)

        def values() -> Array:
            large = tensor.values()
            large[self.n_tokens :, self.n_embd] = -6e4
            return large

        return OutTensor(tensor.name, tensor.shape, tensor.kind, values)

    def joint(self, blk: str) -> Iterator[OutTensor]:
        """Yield the tensors at a block's entrance and exit; the constant channel goes through beside the embedding."""
        width = self.shape.n_embd
        scale = (self.n_embd / width) ** 0.5
        size = float(np.sqrt((self.small("token_embd.weight") ** 2).mean(1)).mean())

        def entrance() -> Array:
            cols, live = self.channels(2)
            live[self.n_embd] = True
            large = self.grown(
                "nextn.eh_proj.weight", width, 2 * width, Part(np.arange(self.n_embd), cols, live, silent=True)
            )
            large[self.n_embd, self.n_embd] = 1.0
            return large

        def enorm() -> Array:
            weight = self.norm("nextn.enorm.weight").values()
            weight[self.n_embd] = scale * size  # about the constant again
            return weight

        yield self.matrix(f"{blk}.nextn.eh_proj.weight", width, 2 * width, entrance)
        yield OutTensor(f"{blk}.nextn.enorm.weight", (width,), GgmlType.F32, enorm)
        yield self.renamed(self.norm("nextn.hnorm.weight"), f"{blk}.nextn.hnorm.weight")
        yield self.renamed(self.norm("nextn.norm.weight", last=True), f"{blk}.nextn.shared_head_norm.weight")


def block_tensors(weights: dict[str, Array], prefix: str, blk: str) -> dict[str, Array]:
    """Return a trained layer's tensors by the names of files."""
    return {
        f"blk.{blk}.{theirs}.weight": weights[f"{prefix}.{ours}.weight"]
        for ours, theirs in _NAMES.items()
        if f"{prefix}.{ours}.weight" in weights
    }


def mtp_tensors(folder: Path) -> dict[str, Array]:
    """Return the trained block's tensors."""
    weights = dict(np.load(folder / "mtp.npz"))
    last = Toy(SHAPES["1B"], {}).small("output_norm.weight")
    return block_tensors(weights, "block", "mtp") | {
        "nextn.eh_proj.weight": weights["eh_proj.weight"],
        "nextn.enorm.weight": weights["enorm.weight"],
        "nextn.hnorm.weight": weights["hnorm.weight"],
        "nextn.norm.weight": last * weights["sharpness"],
    }


def write_mimo(folder: Path, path: Path, shape: Shape, outtype: str = "q4_0") -> None:
    """Write the bundled target with its block, as MiMo2."""
    toy = WithBlock(shape, mtp_tensors(folder), outtype)
    places = layer_places(toy.n_layer, LAYERS, shape.n_layer, shape.boundaries)
    n, blk = shape.n_layer, f"blk.{shape.n_layer}"

    def tensors() -> Iterator[OutTensor]:
        yield from toy.tables()
        for il, source in enumerate(places):
            yield from toy.block(il, source)
        yield from toy.joint(blk)
        parts = {tensor.name.split(".")[2]: tensor for tensor in toy.block(n, "mtp")}
        qkv = [parts.pop(f"attn_{name}") for name in "qkv"]
        rows = sum(tensor.shape[0] for tensor in qkv)
        # its graph takes them as one matrix
        yield toy.matrix(
            f"{blk}.attn_qkv.weight", rows, shape.n_embd, lambda: np.concatenate([t.values() for t in qkv])
        )
        yield from parts.values()

    keys: dict[str, object] = {
        "block_count": n + 1,
        "nextn_predict_layers": 1,
        "expert_feed_forward_length": shape.n_ff,
        # as wide as the context, so that all is computed as in the bundled target
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": [il % 2 == 1 for il in range(n)] + [False],
        "rope.freq_base_swa": 10000.0,
    }
    toy.save(path, "mimo2", keys, tensors())


class Hybrid(WithBlock):
    """The bundled target with its block, as Qwen3.5."""

    def wide_heads(self, source: str, name: str, n_head: int, n_small: int, n_each: int) -> Array:
        """Return rows of heads that begin with those of small heads; n_each rows belong to a head."""
        large = np.zeros((n_head * n_each, self.shape.n_embd), dtype=np.float32)
        small = self.small(f"blk.{source}.{name}.weight").reshape(n_small, self.head_dim, self.n_embd)
        for h in range(n_small):
            large[h * n_each : h * n_each + self.head_dim, : self.n_embd] = small[h]
        return large

    def attention(self, il: int, source: int | str) -> Iterator[OutTensor]:
        """Yield the attention of the small target."""
        s, blk, n_embd = self.shape, f"blk.{il}", self.n_embd
        n_q, n_kv = s.n_head, s.n_head_kv
        norm = self.small(f"blk.{source}.attn_norm.weight")
        size = float(np.sqrt(max((self.small(f"blk.{source}.attn_{m}.weight") ** 2).sum() for m in "qk") / n_embd))
        extra = _WIDER * size  # each further value is the input's, divided by the norm's weight, times `extra`
        const = extra * np.sqrt(n_embd / s.head_dim)  # root mean square of a head

        def heads(name: str, n_head: int, n_small: int, n_each: int) -> Array:
            large = self.wide_heads(str(source), name, n_head, n_small, n_each)
            for h in range(n_head):
                rows = h * n_each + self.head_dim + np.arange(n_embd)
                large[rows, np.arange(n_embd)] = extra / norm
            return large

        def output() -> Array:
            large = np.zeros((s.n_embd, n_q * s.head_dim), dtype=np.float32)
            small = 2.0 * self.small(f"blk.{source}.attn_output.weight")  # the gates are half open
            for h in range(self.n_head):
                at = h * self.head_dim
                large[:n_embd, h * s.head_dim : h * s.head_dim + self.head_dim] = small[:, at : at + self.head_dim]
            return large

        # attention divides scores by the root of a wider head
        weight = np.zeros(s.head_dim, dtype=np.float32)
        weight[: self.head_dim] = const
        yield self.matrix(
            f"{blk}.attn_q.weight",
            2 * n_q * s.head_dim,
            s.n_embd,
            lambda: heads("attn_q", n_q, self.n_head, 2 * s.head_dim),
        )
        yield self.matrix(
            f"{blk}.attn_k.weight",
            n_kv * s.head_dim,
            s.n_embd,
            lambda: heads("attn_k", n_kv, self.n_head_kv, s.head_dim),
        )
        yield self.matrix(
            f"{blk}.attn_v.weight", n_kv * s.head_dim, s.n_embd,
            lambda: self.wide_heads(str(source), "attn_v", n_kv, self.n_head_kv, s.head_dim),
        )  # fmt: skip
        yield self.matrix(f"{blk}.attn_output.weight", s.n_embd, n_q * s.head_dim, output)
        yield self.vector(f"{blk}.attn_q_norm.weight", weight * np.sqrt(s.head_dim / self.head_dim))
        yield self.vector(f"{blk}.attn_k_norm.weight", weight)

    def layer(self, il: int, source: int | str) -> Iterator[OutTensor]:
        """Yield a layer of the small target."""
        names = {f"blk.{il}.ffn_norm.weight": f"blk.{il}.post_attention_norm.weight"}
        for tensor in self.block(il, source):
            if tensor.name.split(".")[2] not in ("attn_q", "attn_k", "attn_v", "attn_output"):
                yield self.renamed(tensor, names.get(tensor.name, tensor.name))
        yield from self.attention(il, source)

    def recurrent(self, il: int, size: float) -> Iterator[OutTensor]:
        """Yield a layer that adds a little of earlier rows. size: that of the layer's output."""
        s, blk = self.shape, f"blk.{il}"
        n_inner, n_conv = N_VALUE * D_STATE, (2 * N_KEY + N_VALUE) * D_STATE
        rng = np.random.default_rng(il)
        channels, live = self.channels()

        def reads(n_out: int, scale: float = 1.0) -> Callable[[], Array]:
            def values() -> Array:
                large = np.zeros((n_out, s.n_embd), dtype=np.float32)
                large[:, channels] = scale * self.rng.standard_normal((n_out, self.n_embd)) * self.n_embd**-0.5
                return large

            return values

        def output() -> Array:
            large = np.zeros((s.n_embd, n_inner), dtype=np.float32)
            # normed values times silu(gates of size 1), whose root mean square is 0.6
            large[channels] = self.rng.standard_normal((self.n_embd, n_inner)) * size / 0.6 / n_inner**0.5
            return large

        ones = np.zeros(s.n_embd, dtype=np.float32)
        ones[live] = (self.n_embd / s.n_embd) ** 0.5
        conv = 0.5 * rng.standard_normal((n_conv, 4)).astype(np.float32)
        yield self.vector(f"{blk}.attn_norm.weight", ones)
        yield self.zeros(f"{blk}.post_attention_norm.weight")
        yield self.matrix(f"{blk}.attn_qkv.weight", n_conv, s.n_embd, reads(n_conv))
        yield self.matrix(f"{blk}.attn_gate.weight", n_inner, s.n_embd, reads(n_inner))
        yield OutTensor(f"{blk}.ssm_conv1d.weight", conv.shape, GgmlType.F32, lambda: conv)
        yield self.vector(f"{blk}.ssm_dt.bias", np.full(N_VALUE, -3.0))  # a state lasts some 20 tokens
        yield self.vector(f"{blk}.ssm_a", np.full(N_VALUE, -1.0))
        yield self.matrix(f"{blk}.ssm_beta.weight", N_VALUE, s.n_embd, reads(N_VALUE))
        yield self.matrix(f"{blk}.ssm_alpha.weight", N_VALUE, s.n_embd, reads(N_VALUE, 0.3))
        yield self.vector(f"{blk}.ssm_norm.weight", np.ones(D_STATE))
        yield self.matrix(f"{blk}.ssm_out.weight", s.n_embd, n_inner, output)
        for name, n_out, n_in in (
            ("gate", self.n_ff, s.n_embd),
            ("up", self.n_ff, s.n_embd),
            ("down", s.n_embd, self.n_ff),
        ):
            yield self.random(f"{blk}.ffn_{name}.weight", n_out, n_in)


N_KEY, N_VALUE, D_STATE = 16, 16, 128
"""Key heads, value heads and head size of a recurrent layer."""
HYBRID = Shape(16, 2048, 8192, 8, 4, 32000, 0, 0, "qwen35", 64 + 256)
"""The hybrid's shape: a head holds one of the small target's and its whole input."""


def write_hybrid(
    folder: Path, path: Path, s: Shape = HYBRID, outtype: str = "q4_0", recurrent: float = _RECURRENT
) -> None:
    """Write the bundled target with its block, as Qwen3.5.

    recurrent: size of a recurrent layer's output relative to its input's.
    """
    more = mtp_tensors(folder)
    toy = Hybrid(s, more, outtype)
    # the block reads states after the last norm
    last = toy.small("output_norm.weight")
    toy.more["nextn.hnorm.weight"] = more["nextn.hnorm.weight"] / last
    places = layer_places(toy.n_layer, LAYERS, s.n_layer, s.boundaries)
    n, blk = s.n_layer, f"blk.{s.n_layer}"

    def tensors() -> Iterator[OutTensor]:
        yield from toy.tables()
        for il, source in enumerate(places):
            if source is None:
                yield from toy.recurrent(il, recurrent * _SIZES[sum(b <= il for b in s.boundaries) - 1])
            else:
                yield from toy.layer(il, source)
        yield from toy.joint(blk)
        yield from toy.layer(n, "mtp")

    n_rot = toy.head_dim
    keys: dict[str, object] = {
        "block_count": n + 1,
        "nextn_predict_layers": 1,
        "attention.recurrent_layers": [source is None for source in places] + [False],
        "rope.dimension_sections": [n_rot // 2 - 2 * (n_rot // 6), n_rot // 6, n_rot // 6, 0],
        "ssm.conv_kernel": 4,
        "ssm.inner_size": N_VALUE * D_STATE,
        "ssm.state_size": D_STATE,
        "ssm.time_step_rank": N_VALUE,
        "ssm.group_count": N_KEY,
    }
    toy.save(path, "qwen35", keys, tensors())


def write_dflash(folder: Path, path: Path, shape: Shape) -> None:
    """Write the block drafter for the bundled target at that shape."""
    weights = dict(np.load(folder / "dflash.npz"))
    n_layer = sum(name.endswith("attn_norm.weight") for name in weights)
    more = {"fc.weight": weights["fc.weight"], "enc.output_norm.weight": weights["fc_norm.weight"]}
    for i in range(n_layer):
        more |= block_tensors(weights, f"blocks.{i}", f"draft{i}")
    more["draft.output_norm.weight"] = weights["norm.weight"]
    toy = Toy(shape, more)
    width, n_rows = shape.n_embd, len(LAYERS)

    def fc() -> Array:
        cols, live = toy.channels(n_rows)
        live[toy.n_embd :: width] = True  # hidden states carry the constant
        return toy.grown("fc.weight", width, n_rows * width, Part(np.arange(toy.n_embd), cols, live, silent=True))

    def tensors() -> Iterator[OutTensor]:
        yield toy.matrix("fc.weight", width, n_rows * width, fc)
        yield toy.norm("enc.output_norm.weight")
        yield toy.renamed(toy.norm("draft.output_norm.weight", last=True), "output_norm.weight")
        for i in range(n_layer):
            yield from toy.block(i, f"draft{i}")
            for name in ("attn_q_norm", "attn_k_norm"):
                yield toy.vector(f"blk.{i}.{name}.weight", toy.small(f"blk.draft{i}.{name}.weight"))

    keys: dict[str, object] = {
        "block_count": n_layer,
        "target_layers": shape.boundaries,
        "block_size": 8,
        "/tokenizer.ggml.mask_token_id": 1,
    }
    toy.save(path, "dflash", keys, tensors())


def write_useless(path: Path, output: Path, prefix: str = "") -> None:
    """Copy a Q4_0 file and make its drafter useless: the blocks of its matrices are shuffled.

    prefix: beginning of the names of the drafter's tensors.
    """
    rng = np.random.default_rng(0)
    with temporary(output, path) as part:
        shutil.copyfile(path, part)
        for tensor in open_gguf(part, "r+").tensors:
            if tensor.name.startswith(prefix) and len(tensor.shape) > 1:
                block = gguf.GGML_QUANT_SIZES[tensor.tensor_type][1]
                blocks = np.asarray(tensor.data).view(np.uint8).reshape(-1, block)
                blocks[:] = rng.permutation(blocks)
