"""Tiny block drafters (GGUF architecture dflash), their targets, and llama.cpp's own graph driven by hand."""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext

from arch_keys import N_EMBD, N_VOCAB, arch_of, keys_of
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.draft.kinds.dflash import BlockDrafter
from llama_cpp_eagle3_heads.convert.output import add_keys
from lowlevel import LowLevel, load_model
from mtp import default_params, place
from random_arch import random_tensors as arch_tensors
from random_arch import write_arch, write_random_arch
from tiny.vocab import add_vocab

Keys = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Sizes and parts of a block drafter, and its target."""

    n_vocab: int = 320
    n_embd: int = 64
    boundaries: tuple[int, ...] = (1, 3)
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 96
    block_size: int = 8
    mask_token: int | None = 300
    own_tables: bool = False
    n_vocab_dft: int = 0
    """Tokens of a draft vocabulary, 0: the target's vocabulary."""
    sliding_window: int = 0
    """The window of every other layer, 0: none."""
    causal: bool | None = None
    shares_kv: bool = False
    has_post_norms: bool = False
    has_sinks: bool = False
    act: str = "silu"
    sections: tuple[int, ...] = ()
    markov_rank: int = 0
    """Rank of DSpark's heads, 0: none."""
    has_confidence: bool = False
    from_anchor: bool = False
    """Whether the first row drafts too (DSpark)."""
    selector: tuple[int, int, int, int] | None = None
    """DFlash2's rank, candidates, rows of a convolution and channels of a group of it."""
    keys: Keys = field(default_factory=dict)

    @property
    def all_keys(self) -> Keys:
        """Keys of the file, without the architecture's name before them."""
        keys: Keys = {
            "context_length": 512,
            "embedding_length": self.n_embd,
            "block_count": self.n_layer,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
            "vocab_size": self.n_vocab,
            "target_layers": list(self.boundaries),
            "block_size": self.block_size,
            "hidden_activation": self.act,
        }
        if self.sliding_window:
            keys["attention.sliding_window"] = self.sliding_window
            keys["attention.sliding_window_pattern"] = [i % 2 == 0 for i in range(self.n_layer)]
        if self.causal is not None:
            keys["attention.causal"] = self.causal
        if self.sections:
            keys["rope.dimension_sections"] = list(self.sections)
        if self.markov_rank:
            keys |= {"sample_from_anchor": self.from_anchor, "has_confidence_head": self.has_confidence}
        if self.selector:
            names = ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")
            keys |= dict(zip(names, self.selector, strict=True))
        return keys | self.keys

    @property
    def n_first(self) -> int:
        """Number of rows of a block before the first that drafts."""
        return 0 if self.from_anchor else 1

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors, rows first."""
        n_q, n_kv = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        layer = {
            "attn_norm.weight": (self.n_embd,),
            "attn_q.weight": (n_q, self.n_embd),
            "attn_k.weight": (n_kv, self.n_embd),
            "attn_v.weight": (n_kv, self.n_embd),
            "attn_output.weight": (self.n_embd, n_q),
            "attn_q_norm.weight": (self.head_dim,),
            "attn_k_norm.weight": (self.head_dim,),
            "ffn_norm.weight": (self.n_embd,),
            "ffn_gate.weight": (self.n_ff, self.n_embd),
            "ffn_up.weight": (self.n_ff, self.n_embd),
            "ffn_down.weight": (self.n_embd, self.n_ff),
        }
        if self.shares_kv:
            del layer["attn_v.weight"]
        if self.has_post_norms:
            layer |= {"post_attention_norm.weight": (self.n_embd,), "post_ffw_norm.weight": (self.n_embd,)}
            layer["layer_output_scale.weight"] = (1,)
        if self.has_sinks:
            layer["attn_sinks.weight"] = (self.n_head,)
        if self.selector:
            _, _, n_taps, n_group = self.selector
            for part in ("attn", "ffn"):
                layer[f"{part}_conv_base"] = (2, n_taps, self.n_embd)
                layer[f"{part}_conv_proj.weight"] = (2 * n_taps * self.n_embd // n_group, self.n_embd)
        shapes = {f"blk.{i}.{name}": shape for i in range(self.n_layer) for name, shape in layer.items()}
        shapes["fc.weight"] = (self.n_embd, self.n_embd * len(self.boundaries))
        shapes["enc.output_norm.weight"] = shapes["output_norm.weight"] = (self.n_embd,)
        if self.markov_rank:
            shapes["markov_w1.weight"] = (self.n_vocab, self.markov_rank)
            shapes["markov_w2.weight"] = (self.n_vocab_dft or self.n_vocab, self.markov_rank)
        if self.has_confidence:
            shapes["conf_proj.weight"] = (1, self.n_embd + self.markov_rank)
            shapes["conf_proj.bias"] = (1,)
        if self.selector:
            rank = self.selector[0]
            shapes["selector_predecessor.weight"] = shapes["selector_successor.weight"] = (self.n_vocab, rank)
            shapes["selector_hidden.weight"] = (rank, self.n_embd)
        if self.own_tables:
            shapes["token_embd.weight"] = (self.n_vocab, self.n_embd)
        if self.own_tables or self.n_vocab_dft:
            shapes["output.weight"] = (self.n_vocab_dft or self.n_vocab, self.n_embd)
        return shapes


def random_tensors(shape: Shape) -> dict[str, np.ndarray]:
    """Return random weights; two calls give the same."""
    tensors = {}
    for name, dims in shape.tensors().items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        std = {"token_embd.weight": 1.0, "output.weight": 4.0 / np.sqrt(shape.n_embd)}.get(
            name, 1.5 / np.sqrt(dims[-1]) if len(dims) > 1 else 0.1
        )
        data = rng.normal(0.0, std, dims).astype(np.float32)
        tensors[name] = data + 1.0 if "norm" in name or "scale" in name else data
    if shape.n_vocab_dft:
        rng = np.random.default_rng(1)
        tensors["d2t"] = np.sort(rng.choice(shape.n_vocab, shape.n_vocab_dft, replace=False)).astype(np.int64)
    return tensors


def write_dflash(
    path: Path, shape: Shape, tensors: dict[str, np.ndarray] | None = None, *, matrices: Any = None, **other: Any
) -> Path:
    """Write a drafter. matrices: their type. other: keys in place of the shape's; None leaves a key out."""
    writer = gguf.GGUFWriter(path, "dflash")
    keys = shape.all_keys | other
    add_keys(writer, {f"dflash.{name}": value for name, value in keys.items() if value is not None})
    add_vocab(writer, shape.n_vocab)
    if shape.mask_token is not None:
        writer.add_mask_token_id(shape.mask_token)
    for name, data in (random_tensors(shape) if tensors is None else tensors).items():
        if matrices is None or data.ndim < 2:
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, gguf.quants.quantize(data, matrices), raw_dtype=matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SHAPES: dict[str, Shape] = {
    "plain": Shape(),
    "own-tables": Shape(own_tables=True, n_head=2, n_head_kv=2, head_dim=32),
    "draft-vocab": Shape(n_vocab_dft=100),
    "window": Shape(sliding_window=12, n_layer=3),
    "causal": Shape(causal=True),
    "not-causal": Shape(causal=False, n_layer=1, n_head_kv=1),
    "shared-kv": Shape(shares_kv=True, n_head_kv=1),
    "post-norms": Shape(has_post_norms=True, act="gelu", keys={"attention.value_scale": 0.7, "embedding_scale": 3.0}),
    "sinks": Shape(has_sinks=True, keys={"attention.scale": 0.2, "rope.dimension_count": 8}),
    "m-rope": Shape(sections=(8, 0, 0, 0)),
    "dspark": Shape(markov_rank=8, has_confidence=True, from_anchor=True),
    "dspark-bonus": Shape(markov_rank=8, has_confidence=True, n_vocab_dft=100),
    "dspark-plain": Shape(markov_rank=4, from_anchor=True, causal=True),
    "dflash2": Shape(selector=(8, 4, 3, 8)),
    "dflash2-window": Shape(selector=(16, 7, 4, 16), sliding_window=12, block_size=6, own_tables=True),
    "long-block": Shape(block_size=16, boundaries=(0, 1, 2, 3)),
}
"""Shapes that together have every part that a file can have."""


class ByHand:
    """Blocks as llama.cpp runs them: all rows are processed anew for each answer, as common/speculative.cpp does."""

    def __init__(self, path: Path | str, shape: Shape, ctx_other: Any = None):
        self.shape = shape
        self.model = load_model(str(path), {})
        params = default_params(n_ctx=512, n_batch=256, n_ubatch=256)
        params.swa_full, params.ctx_other = True, ctx_other
        self.ctx = llama_cpp.llama_init_from_model(self.model, params)
        assert self.ctx
        llama_cpp.llama_set_causal_attn(self.ctx, bool(shape.causal))
        llama_cpp_ext.llama_set_embeddings_nextn(self.ctx, True, shape.selector is None)
        self.n_pos = 4 if shape.sections else 1

    def inject(self, rows: np.ndarray, pos_first: int = 0) -> None:
        """Process the target's rows."""
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        n = len(rows)
        batch = llama_cpp.llama_batch_init(4 * n, 0, 1)
        batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        token, batch.token = batch.token, None
        batch.n_tokens = n
        for i in range(n):
            for j in range(self.n_pos):
                batch.pos[j * n + i] = pos_first + i if j < 3 else 0
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, False
        assert llama_cpp.llama_decode(self.ctx, batch) == 0
        batch.embd, batch.token = None, token
        llama_cpp.llama_batch_free(batch)

    def block(self, rows: np.ndarray, id_last: int, n: int, pos_first: int = 0) -> np.ndarray:
        """Return the logits of a block of n tokens, the first of which is id_last, after these rows."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.ctx), True)
        self.inject(rows, pos_first)
        batch = llama_cpp.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i in range(n):
            batch.token[i] = id_last if i == 0 else self.shape.mask_token
            batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = pos_first + len(rows) + i, 1, 0
            batch.logits[i] = True
        assert llama_cpp.llama_decode(self.ctx, batch) == 0
        llama_cpp.llama_batch_free(batch)
        if self.shape.selector or self.shape.has_confidence:
            more = llama_cpp_ext.llama_get_embeddings_nextn(self.ctx)
            self.nextn = np.ctypeslib.as_array(more, (n, self.shape.n_embd)).copy()
        logits = llama_cpp.llama_get_logits(self.ctx)
        return np.ctypeslib.as_array(logits, (n, self.shape.n_vocab)).copy()

    def drafted(self, rows: np.ndarray, id_last: int, n: int, pos_first: int = 0) -> list[int]:
        """Return the n tokens that llama.cpp drafts."""
        first = self.shape.n_first
        logits = self.block(rows, id_last, first + n, pos_first)
        if self.shape.selector is None:
            return logits[first:].argmax(-1).tolist()
        tokens, best, k = [], 0, self.shape.selector[1]
        for row in self.nextn[first:]:
            best = int(row[k + best * k :][:k].argmax())
            tokens.append(int(row[best]))
        return tokens

    def close(self) -> None:
        """Free context and model."""
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)


def shape_of(name: str, **other: Any) -> Shape:
    """Return one of SHAPES with other fields."""
    return replace(SHAPES[name], **other)


class Pair(LowLevel):
    """A target that gives the rows that a block drafter reads, and the drafter."""

    def __init__(
        self, target: Any, path: Path, *, n_seq_max: int = 1, n_ctx: int = 256, is_pooled: bool = True, **kwargs
    ):
        self.file = _core.read_dflash(str(path))
        more = {"kv_unified": is_pooled} | kwargs
        super().__init__(target.path, self.file.boundaries, n_ctx=n_ctx, n_seq_max=n_seq_max, **more)
        self.n_ctx, self.n_seq_max, self.is_pooled = n_ctx, n_seq_max, is_pooled
        self.drafter = self.make_drafter()

    def make_drafter(self) -> _core.DflashDrafter:
        """Make one more drafter."""
        where = place(self.model, self.ctx, n_ctx=self.n_ctx, n_seq=self.n_seq_max, is_pooled=self.is_pooled)
        return BlockDrafter(self.file.path).make(where, None)

    def close(self) -> None:
        """Free the drafter first: it uses the target's tables."""
        self.drafter.close()
        super().close()


@dataclass(frozen=True)
class Able:
    """A target whose next token is mostly `step` tokens after the last, and a block drafter that knows it."""

    target: Path
    drafter: Path


def write_able(folder: Path, row: str = "llama", rest: float = 0.4, block_size: int = 7) -> Able:
    """Write such a pair. row: one of arch_keys.py. rest: size of the layers' outputs relative to the token's embedding.

    Tokens are waves: the step to the next one is a rotation of the embedding, which an attention head can compute. Head
    h of the drafter's one layer attends to the block's first row from h + 1 rows after it, and to masks from other
    rows; 6 rows later it would be wrong.
    """
    step, n_embd, n_heads = 7, N_EMBD, block_size - 1
    paths = Able(folder / f"{row}-able.gguf", folder / f"{row}-dflash-{block_size}.gguf")
    rng = np.random.default_rng(5)
    waves = 2.0 * np.pi * rng.choice(np.arange(1, N_VOCAB // 2), n_embd // 2 - 1, replace=False) / N_VOCAB
    angles = np.outer(np.arange(N_VOCAB), waves)
    flags = np.tile([1.0, 0.0], (N_VOCAB, 1))  # a token; a mask
    embd = np.concatenate([np.cos(angles), np.sin(angles), flags], axis=1).astype(np.float32)
    output = np.roll(embd, step, axis=0)  # row of token t + step: the embedding of t
    output[:, -2:] = 0.0
    if not paths.target.exists():
        tensors = arch_tensors(write_random_arch(folder, row))
        for name in list(tensors):
            if any(part in name for part in ("attn_output.weight", "ffn_down", "ssm_out")):
                tensors[name] = rest * tensors[name]
        tensors |= {"token_embd.weight": embd, "output.weight": output}
        tensors["output_norm.weight"] = np.ones(n_embd, np.float32)
        write_arch(paths.target, arch_of(row), keys_of(row), {n: t.astype(np.float32) for n, t in tensors.items()})
    if paths.drafter.exists():
        return paths
    mask = N_VOCAB - 3
    shape = Shape(
        n_vocab=N_VOCAB, n_embd=n_embd, boundaries=(1, 2), n_layer=1, n_head=n_heads, n_head_kv=1, head_dim=n_embd,
        block_size=block_size, mask_token=mask, own_tables=True,
    )  # fmt: skip
    tensors = {name: np.zeros(dims, np.float32) for name, dims in shape.tensors().items()}
    for name in tensors:
        if "norm" in name:
            tensors[name] += 1.0
    embd[mask] = [*[0.0] * (n_embd - 1), 1.0]
    fast, still = n_embd // 2, n_embd // 2 - 1  # half a head: a pair that turns by 1 each row, one that hardly turns
    q, k = np.zeros((n_heads, n_embd, n_embd)), np.zeros((n_embd, n_embd))
    k[0, -2], k[still, -1] = 1.0, 1.0
    out = np.zeros((n_embd, n_heads, n_embd))
    for h in range(n_heads):
        # the first row's score exceeds the masks' 0.8 at the row h + 1 rows after it, and is less elsewhere
        q[h, [0, fast, still], -1] = np.cos(h + 1), -np.sin(h + 1), 0.8
        turn = step * h * waves
        half = len(waves)
        out[:half, h, :half] = out[half : 2 * half, h, half : 2 * half] = np.diag(np.cos(turn))
        out[:half, h, half : 2 * half], out[half : 2 * half, h, :half] = -np.diag(np.sin(turn)), np.diag(np.sin(turn))
    tensors |= {
        "token_embd.weight": embd,
        "output.weight": output,
        "blk.0.attn_q.weight": q.reshape(-1, n_embd),
        "blk.0.attn_k.weight": k,
        "blk.0.attn_v.weight": np.eye(n_embd),
        "blk.0.attn_output.weight": out.reshape(n_embd, -1),
        "blk.0.attn_q_norm.weight": np.full(n_embd, 8.0),
    }
    write_dflash(paths.drafter, shape, {name: t.astype(np.float32) for name, t in tensors.items()})
    return paths
