"""Texts as vectors: a context of its own beside the one that generates."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from ..files.model_file import file_errors

POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3}
"""Name -> llama.cpp's number."""
NO_POOLING, _RANK = 0, 4

Matrix = npt.NDArray[np.single]


class Embedder:
    """A context of a loaded model that gives hidden states instead of logits. For one thread."""

    def __init__(self, model: int, path: str, pooling: int | None, n_ubatch: int, n_threads: int):
        """Make a context of a loaded llama_model. model: its address; path: its file.

        pooling: see `POOLING`; None = the model's. n_ubatch: most tokens of a text, which is evaluated in one pass.

        Raises:
            ModelFileError: the model makes no embeddings.
            ValueError: the model ranks texts.
        """
        params = lib.llama_context_default_params()
        params.embeddings = True
        params.n_ctx = params.n_batch = params.n_ubatch = n_ubatch
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = n_threads
        params.flash_attn_type = 0
        if pooling is not None:
            params.pooling_type = pooling
        with file_errors(path):
            self._ctx = lib.llama_init_from_model(ctypes.c_void_p(model), params)
            if not self._ctx:
                raise ValueError("llama.cpp makes no context for embeddings with it")
        self.n_max = n_ubatch
        self.pooling = int(lib.llama_pooling_type(self._ctx))
        self.n_embd = int(lib.llama_model_n_embd_out(ctypes.c_void_p(model)))
        if self.pooling == _RANK:
            self.close()
            raise ValueError("--embeddings: the model ranks texts, which this server does not do")

    def embed(self, tokens: Sequence[int], normalize: int) -> Matrix:
        """Vectors of a text, float32: one, or without pooling one of each token. normalize: see `_normalized`.

        Raises:
            RuntimeError: llama.cpp could not evaluate it.
        """
        n = len(tokens)
        memory = lib.llama_get_memory(self._ctx)
        if memory:
            lib.llama_memory_clear(memory, True)
        batch = lib.llama_batch_init(n, 0, 1)
        try:
            batch.n_tokens = n
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
            if lib.llama_decode(self._ctx, batch) != 0:
                raise RuntimeError("llama.cpp could not evaluate the text")
            if self.pooling == NO_POOLING:
                pointers = [lib.llama_get_embeddings_ith(self._ctx, i) for i in range(n)]
            else:
                pointers = [lib.llama_get_embeddings_seq(self._ctx, 0)]
            rows = [np.ctypeslib.as_array(pointer, (self.n_embd,)).copy() for pointer in pointers if pointer]
        finally:
            lib.llama_batch_free(batch)
        if len(rows) < len(pointers):
            raise RuntimeError("llama.cpp gave no embeddings")
        found = np.stack(rows)
        return found if self.pooling == NO_POOLING else _normalized(found, normalize)

    def close(self) -> None:
        """Free the context; the model must still be there."""
        if self._ctx:
            lib.llama_free(self._ctx)
            self._ctx = None


def _normalized(x: Matrix, how: int) -> Matrix:
    """llama.cpp's numbers: -1 not at all, 0 the largest is 32760, 2 Euclidean, any other p the p-norm."""
    if how < 0:
        return x
    magnitude = np.abs(x.astype(np.float64))
    if how == 0:
        norm = magnitude.max(axis=1) / 32760.0
    else:
        norm = (magnitude**how).sum(axis=1) ** (1.0 / how)
    scale = np.divide(1.0, norm, out=np.zeros_like(norm), where=norm > 0.0)
    scaled: Matrix = (x * scale[:, None]).astype(np.single)
    return scaled
