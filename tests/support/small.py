"""A target with a small model that drafts for it, and as a reference the small model driven by hand."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import numpy as np

import placement
from arch_keys import arch_of, keys_of
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.draft.kinds.simple import SmallModel
from mtp import default_params, place
from random_arch import random_tensors, write_arch, write_random_arch


def load_model(path: str | Path) -> int:
    """Load a model on the CPU, or where `placement` says."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    placement.preset(params)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model
    return model


def make_drafter(
    path: str | Path, *, n_ctx: int = 256, n_seq_max: int = 1, is_pooled: bool = True, n_ubatch: int = 64,
    n_vocab: int | None = None, has_trees: bool = True,
) -> _core.SimpleDrafter:  # fmt: skip
    """Make a drafter whose K/V are F32. n_vocab: tokens of its target, in place of its own number."""
    model = load_model(path)
    where = place(
        model, n_ctx=n_ctx, n_seq=n_seq_max, is_pooled=is_pooled, has_trees=has_trees, n_ubatch=n_ubatch,
        n_vocab=n_vocab,
    )  # fmt: skip
    try:
        return SmallModel(str(path)).make(where, None)
    finally:
        llama_cpp.llama_model_free(model)


class ByHand:
    """The small model as llama.cpp runs it: all is evaluated anew for each answer, in one sequence."""

    def __init__(self, path: str | Path, n_ctx: int = 512):
        self.model = load_model(path)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        params = default_params(n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=512)
        params.swa_full = True
        self.ctx = llama_cpp.llama_init_from_model(self.model, params)
        assert self.ctx

    def logits(self, tokens: list[int], pos_first: int = 0) -> np.ndarray:
        """Return the model's logits after each token."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.ctx), True)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, pos_first + i, 1, 0
            batch.logits[i] = True
        assert llama_cpp.llama_decode(self.ctx, batch) == 0
        llama_cpp.llama_batch_free(batch)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.ctx), (len(tokens), self.n_vocab)).copy()

    def chain(self, text: list[int], n: int) -> tuple[list[int], list[np.ndarray]]:
        """Return a greedy continuation, and the logits of its steps."""
        drafted: list[int] = []
        logits = []
        for _ in range(n):
            logits.append(self.logits([*text, *drafted])[-1])
            drafted.append(int(logits[-1].argmax()))
        return drafted, logits

    def close(self) -> None:
        """Free the context and the model."""
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)


def write_small_pair(folder: Path, row: str = "llama", row_small: str = "llama", rest: float = 0.03) -> list[str]:
    """Write a target and a small model that is mostly right: in both the next token depends mainly on the last one.

    Tensors of the same name are the same in all random models: tables are shared. rest: size of the layers' outputs
    relative to the token's embedding; the small model's layers are different. Returns both paths.
    """
    paths = []
    for seed, kind in enumerate((row, row_small)):
        path = folder / f"{'small' if seed else 'target'}-{kind}-able.gguf"
        paths.append(str(path))
        if path.exists():
            continue
        tensors = random_tensors(write_random_arch(folder, kind))
        rng = np.random.default_rng(seed)
        for name, data in list(tensors.items()):
            if any(part in name for part in ("attn_output.weight", "ffn_down", "ssm_out", "shortconv.out_proj")):
                tensors[name] = rest * rng.permutation(data.reshape(-1)).reshape(data.shape)
        tensors["token_embd.weight"] = 5.0 * tensors["token_embd.weight"]
        write_arch(path, arch_of(kind), keys_of(kind), {n: t.astype(np.float32) for n, t in tensors.items()})
    return paths
