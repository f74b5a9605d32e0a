"""A head in llama.cpp itself, as a reference."""

import ctypes
from contextlib import ExitStack

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext

from tiny import Head

ENCODE, DECODE = llama_cpp.LLAMA_PROCESS_TYPE_ENCODE, llama_cpp.LLAMA_PROCESS_TYPE_DECODE
GGML_TYPE_F32 = 0


class LlamaCppHead:
    """A head in llama.cpp itself, driven through the C API. The head must have its own embedding and lm_head."""

    def __init__(self, head: Head, stack: ExitStack):
        params = llama_cpp.llama_model_default_params()
        self.head, self.n_embd = head, head.variant.n_embd
        self.model = llama_cpp.llama_model_load_from_file(head.path.encode(), params)
        assert self.model
        stack.callback(llama_cpp.llama_model_free, self.model)
        cparams = llama_cpp.llama_context_default_params()
        cparams.n_ctx = cparams.n_batch = cparams.n_ubatch = 512
        cparams.type_k = cparams.type_v = GGML_TYPE_F32
        cparams.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # flash attention rounds K and V to F16
        cparams.n_threads = cparams.n_threads_batch = 1
        self.ctx = llama_cpp.llama_init_from_model(self.model, cparams)
        assert self.ctx
        stack.callback(llama_cpp.llama_free, self.ctx)
        llama_cpp_ext.llama_set_embeddings_nextn(self.ctx, True, True)

    def _run(self, kind, entries) -> None:
        """Evaluate entries: (token or None, row, position)."""
        batch = llama_cpp.llama_batch_ext_init(self.ctx)
        try:
            for token, row, position in entries:
                row = np.ascontiguousarray(row, dtype=np.float32)
                embd = llama_cpp.llama_embd(row.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), 1, len(row))
                if token is None:
                    i = llama_cpp.llama_batch_ext_add_embd(batch, 0, embd)
                else:
                    i = llama_cpp.llama_batch_ext_add_token(batch, 0, token)
                    assert llama_cpp.llama_batch_ext_set_embd_token(batch, i, embd)
                pos = llama_cpp.llama_pos(position)
                assert llama_cpp.llama_batch_ext_set_pos(batch, i, ctypes.byref(pos))
                assert llama_cpp.llama_batch_ext_set_output_logits(batch, i, True)
            assert llama_cpp.llama_process(self.ctx, kind, batch) == 0
        finally:
            llama_cpp.llama_batch_ext_free(batch)

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """Map target rows to rows of the head's width."""
        self._run(ENCODE, [(None, row, p) for p, row in enumerate(rows)])
        out = llama_cpp_ext.llama_get_embeddings_nextn(self.ctx)
        return np.ctypeslib.as_array(out, (len(rows), self.n_embd)).copy()

    def decode(self, tokens: list[int], hidden: np.ndarray, pos_first: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits over the draft vocabulary, and the state, of the last slot."""
        self._run(DECODE, [(t, h, pos_first + i) for i, (t, h) in enumerate(zip(tokens, hidden, strict=True))])
        i = len(tokens) - 1
        logits = llama_cpp.llama_get_logits_ith(self.ctx, i)
        logits = np.ctypeslib.as_array(logits, (self.head.target.n_vocab,)).copy()
        state = llama_cpp_ext.llama_get_embeddings_nextn_ith(self.ctx, i)
        state = np.ctypeslib.as_array(state, (self.n_embd,)).copy()
        return logits if self.head.d2t is None else logits[self.head.d2t], state


def rel_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())
