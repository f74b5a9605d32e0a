"""A target with a block for multi-token prediction, and as a reference the block driven by hand."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext

import placement
from arch_keys import N_LAYER, arch_of, keys_of
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.draft.kinds import MtpBlock, Place
from lowlevel import LowLevel
from random_arch import random_tensors, write_arch, write_random_arch


def load_with_block(path: str | Path) -> int:
    """Load a file with its block."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers, params.load_mtp = 0, True
    placement.preset(params)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model
    return model


def default_params(n_ctx: int = 256, n_batch: int = 64, n_ubatch: int = 64) -> Any:
    """Return parameters of a target's context: one thread, K/V in F32."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_ubatch
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params


def place(
    model: int, ctx: int = 0, *, n_ctx: int, n_seq: int, is_pooled: bool, has_trees: bool = True,
    n_vocab: int | None = None, **sizes: int,
) -> Place:  # fmt: skip
    """Return a loaded target for drafters whose K/V are F32. sizes: those of its context."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    placement.preset(params)
    return Place(
        model=model, ctx=ctx, model_params=params, context_params=default_params(**sizes),
        n_vocab=n_vocab or llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)), n_ctx=n_ctx,
        n_seq=n_seq, is_pooled=is_pooled, has_trees=has_trees, n_threads=1, type_k=0, type_v=0,
    )  # fmt: skip


class Pair(LowLevel):
    """A target that gives the rows that its block reads, and a drafter on the block."""

    def __init__(self, path: str | Path, *, n_seq_max: int = 1, n_ctx: int = 256, is_pooled: bool = True, **kwargs):
        self.path = str(path)
        n_layer = _core.read_target(self.path).n_layer
        boundary = n_layer + _core.read_target(self.path).nextn
        more = {"kv_unified": is_pooled} | kwargs
        super().__init__(load_with_block(path), [boundary], n_ctx=n_ctx, n_seq_max=n_seq_max, **more)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.n_ctx, self.n_seq_max, self.is_pooled = n_ctx, n_seq_max, is_pooled
        self.drafter = self.make_drafter()

    def make_drafter(self, **sizes: int) -> _core.MtpDrafter:
        """Make one more drafter."""
        sizes = {"n_ctx": self.n_ctx, "n_seq": self.n_seq_max, "is_pooled": self.is_pooled} | sizes
        block = MtpBlock(self.path)
        block.fit(self.path, block.info, None)
        return block.make(place(self.model, **sizes), None)

    def close(self) -> None:
        """Free the drafter first: it is a context of the model."""
        self.drafter.close()
        super().close()


class ByHand:
    """The block as llama.cpp runs it: all is evaluated anew for each answer, in one batch of one sequence."""

    def __init__(self, model: int):
        params = default_params(n_ctx=512, n_batch=512, n_ubatch=512)
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
        params.n_ctx, params.swa_full = 512, True
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.ctx = llama_cpp.llama_init_from_model(model, params)
        assert self.ctx
        llama_cpp_ext.llama_set_embeddings_nextn(self.ctx, True, True)

    def rows(self, tokens: list[int], hidden: np.ndarray, pos_first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return logits and own rows for each pair of a hidden row and the token after it."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.ctx), True)
        return self.decode(tokens, hidden, pos_first)

    def decode(self, tokens: list[int], hidden: np.ndarray, pos_first: int) -> tuple[np.ndarray, np.ndarray]:
        """Return logits and own rows after the rows that are in the cache."""
        n, n_embd = hidden.shape
        batch = llama_cpp.llama_batch_init(n, 0, 1)
        hidden = np.ascontiguousarray(hidden, dtype=np.float32)
        batch.embd = hidden.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, pos_first + i, 1, 0
            batch.logits[i] = True
        assert llama_cpp.llama_decode(self.ctx, batch) == 0
        batch.embd = None
        llama_cpp.llama_batch_free(batch)
        logits = llama_cpp.llama_get_logits(self.ctx)
        states = llama_cpp_ext.llama_get_embeddings_nextn(self.ctx)
        return (
            np.ctypeslib.as_array(logits, (n, self.n_vocab)).copy(),
            np.ctypeslib.as_array(states, (n, n_embd)).copy(),
        )

    def path(self, text: list[int], hidden: np.ndarray, drafted: list[int], pos_first: int = 0) -> np.ndarray:
        """Return logits after drafted tokens, which follow a text: its rows are paired with text[1:] and drafted[0]."""
        hidden = np.asarray(hidden, dtype=np.float32)
        tokens = [*text[1:], drafted[0]]
        for i in range(len(drafted)):
            logits, states = self.rows(tokens, hidden, pos_first)
            if i + 1 < len(drafted):
                tokens = [*tokens, drafted[i + 1]]
                hidden = np.concatenate([hidden, states[-1:]])
        return logits[-1]

    def chain(self, text: list[int], hidden: np.ndarray, id_last: int, n: int) -> tuple[list[int], list[np.ndarray]]:
        """Return a greedy chain after id_last, and the logits of its steps."""
        drafted, logits = [id_last], []
        for _ in range(n):
            logits.append(self.path(text, hidden, drafted))
            drafted.append(int(logits[-1].argmax()))
        return drafted[1:], logits

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_free(self.ctx)


class ChainByHand(ByHand):
    """Chained blocks as llama.cpp's drafter runs them, on one context: each rewrites the cells that it needs."""

    def __init__(self, model: int):
        super().__init__(model)
        self.n_blocks = llama_cpp.llama_model_n_layer_nextn(model)

    def path(self, text: list[int], hidden: np.ndarray, drafted: list[int], pos_first: int = 0) -> np.ndarray:
        """Return logits after drafted tokens: token i by block i, those after the last block by that one."""
        memory, pos = llama_cpp.llama_get_memory(self.ctx), pos_first + len(text) - 1
        hidden = np.asarray(hidden, dtype=np.float32)
        llama_cpp.llama_memory_clear(memory, True)
        for block in range(self.n_blocks):
            llama_cpp.llama_memory_seq_rm(memory, 0, 0, -1)
            llama_cpp_ext.llama_set_nextn_layer_offset(self.ctx, block)
            self.decode(text[1:], hidden[:-1], pos_first)
        rows = hidden[-1:]
        for i in range(len(drafted)):
            llama_cpp.llama_memory_seq_rm(memory, 0, pos, -1)
            llama_cpp_ext.llama_set_nextn_layer_offset(self.ctx, min(i, self.n_blocks - 1))
            logits, states = self.decode(drafted[: i + 1], rows, pos)
            rows = np.concatenate([rows, states[-1:]])
        return logits[-1]


def by_hand(model: int) -> ByHand:
    """Return the reference of a block, or of several chained ones."""
    return (ChainByHand if llama_cpp.llama_model_n_layer_nextn(model) > 1 else ByHand)(model)


def write_able(folder: Path, row: str, rest: float = 0.03) -> Path:
    """Write a target whose block is mostly right: the next token depends on the last one, and a little on the others.

    rest: size of the layers' outputs relative to the token's embedding.
    """
    path = folder / f"{row}-able.gguf"
    if path.exists():
        return path
    tensors = random_tensors(write_random_arch(folder, row))
    for name in list(tensors):
        if any(part in name for part in ("attn_output.weight", "ffn_down", "ssm_out")):
            tensors[name] = rest * tensors[name]
    tensors["token_embd.weight"] = 5.0 * tensors["token_embd.weight"]  # values of about 1
    n_embd = tensors["token_embd.weight"].shape[1]
    for i in range(N_LAYER, keys_of(row)["block_count"]):
        block = f"blk.{i}."
        tensors[f"{block}nextn.eh_proj.weight"] = np.eye(n_embd, 2 * n_embd, dtype=np.float32)
        tensors[f"{block}nextn.enorm.weight"] = np.ones(n_embd, np.float32)
        tensors[f"{block}nextn.embed_tokens.weight"] = tensors["token_embd.weight"]
        tensors[f"{block}nextn.shared_head_norm.weight"] = tensors["output_norm.weight"]
        tensors[f"{block}nextn.shared_head_head.weight"] = tensors["output.weight"]
    return write_arch(path, arch_of(row), keys_of(row), {n: t.astype(np.float32) for n, t in tensors.items()})


def split_block(folder: Path, path: Path, row: str) -> tuple[Path, Path]:
    """Write a target without its block, and the block in a file of its own, as llama.cpp's converter splits them."""
    target, block = folder / f"{row}-trunk.gguf", folder / f"mtp-{row}.gguf"
    if not target.exists():
        tensors = random_tensors(path)
        of_block = {n: t for n, t in tensors.items() if n.startswith("blk.") and int(n.split(".")[1]) >= N_LAYER}
        tables = {n: t for n, t in tensors.items() if not n.startswith("blk.")}
        keys = keys_of(row)
        trunk = {n: t for n, t in tensors.items() if n not in of_block}
        alone = keys | {"nextn_predict_layers": 0, "block_count": N_LAYER}
        for name, value in alone.items():  # tensors of layers
            if isinstance(value, list) and len(value) == keys["block_count"] and "sections" not in name:
                alone[name] = value[:N_LAYER]
        write_arch(target, arch_of(row), alone, trunk)
        write_arch(block, arch_of(row), keys, of_block | tables)
    return target, block


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax in float64."""
    e = np.exp(logits.astype(np.float64) - logits.max())
    return e / e.sum()
