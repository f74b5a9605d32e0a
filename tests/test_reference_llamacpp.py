"""The NumPy reference against llama.cpp: its targets, and its own eagle3 graph for the heads that it can run."""

import ctypes
from contextlib import ExitStack

import llama_cpp
import numpy as np
import pytest
from llama_cpp import llama_cpp_ext
from reference import ReferenceHead, run_target
from tiny import Head, write_head, write_perfect_pair, write_target

ENCODE, DECODE = llama_cpp.LLAMA_PROCESS_TYPE_ENCODE, llama_cpp.LLAMA_PROCESS_TYPE_DECODE
GGML_TYPE_F32 = 0


class LlamaCppHead:
    """A head in llama.cpp itself, driven by hand through the C API. It must have its own embedding and lm_head."""

    def __init__(self, head: Head, stack: ExitStack):
        params = llama_cpp.llama_model_default_params()
        self.head, self.n_embd = head, head.variant.n_embd
        self.model = llama_cpp.llama_model_load_from_file(head.path.encode(), params)
        assert self.model
        stack.callback(llama_cpp.llama_model_free, self.model)
        cparams = llama_cpp.llama_context_default_params()
        cparams.n_ctx = cparams.n_batch = cparams.n_ubatch = 512
        cparams.type_k = cparams.type_v = GGML_TYPE_F32
        cparams.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds K and V to F16
        cparams.n_threads = cparams.n_threads_batch = 1
        self.ctx = llama_cpp.llama_init_from_model(self.model, cparams)
        assert self.ctx
        stack.callback(llama_cpp.llama_free, self.ctx)
        llama_cpp_ext.llama_set_embeddings_nextn(self.ctx, True, True)

    def _run(self, kind, entries) -> None:
        """entries: (token or None, row, position)."""
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
        """Target rows to rows of the head's width."""
        self._run(ENCODE, [(None, row, p) for p, row in enumerate(rows)])
        out = llama_cpp_ext.llama_get_embeddings_nextn(self.ctx)
        return np.ctypeslib.as_array(out, (len(rows), self.n_embd)).copy()

    def decode(self, tokens: list[int], hidden: np.ndarray, pos_first: int) -> tuple[np.ndarray, np.ndarray]:
        """Logits over the draft vocabulary, and the state, of the last slot."""
        self._run(DECODE, [(t, h, pos_first + i) for i, (t, h) in enumerate(zip(tokens, hidden, strict=True))])
        i = len(tokens) - 1
        logits = llama_cpp.llama_get_logits_ith(self.ctx, i)
        logits = np.ctypeslib.as_array(logits, (self.head.target.n_vocab,)).copy()
        state = llama_cpp_ext.llama_get_embeddings_nextn_ith(self.ctx, i)
        state = np.ctypeslib.as_array(state, (self.n_embd,)).copy()
        return logits if self.head.d2t is None else logits[self.head.d2t], state


def rel_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


VARIANTS = {
    "plain": {},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "full_vocab": {"n_vocab_dft": None},
    "head_dim": {"head_dim": 24},
    "partial_rotary": {"n_rot": 8},
    "rope_theta": {"rope_theta": 500000.0},
    "rope_linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "rope_yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    "rope_llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "other_hidden_size": {"n_embd": 96},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_reference_head_is_what_llama_cpp_computes(name, tmp_path):
    target = write_target(tmp_path / "target.gguf")
    head = write_head(tmp_path / "head.gguf", target, own_embd=True, **VARIANTS[name])
    assert head.arch == "eagle3"
    rng = np.random.default_rng(7)
    n = 40
    rows = rng.normal(0.0, 2.0, (n, head.n_embd_inp))
    tokens = [int(t) for t in rng.integers(0, target.n_vocab, n + 1)]
    reference = ReferenceHead(head)
    reference.process(rows, tokens[:n], 0)
    want = reference.propose(tokens[n], 6)

    with ExitStack() as stack:
        llama = LlamaCppHead(head, stack)
        logits, state = llama.decode(tokens[1:], llama.encode(rows), 0)
        for step in range(6):
            assert rel_error(logits, want.logits[step]) < 1e-4
            assert rel_error(state, want.states[step]) < 1e-4
            best = int(np.argmax(logits))
            token = best if head.d2t is None else int(head.d2t[best])
            assert token == want.ids[step]
            logits, state = llama.decode([token], state[None], n + step)


@pytest.mark.parametrize("tied", [False, True], ids=["own_output", "tied"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_reference_target_is_what_llama_cpp_computes(arch, tied, tmp_path):
    target = write_target(tmp_path / "target.gguf", arch, tied=tied)
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, 300, 60)]
    llm = llama_cpp.Llama(
        target.path, n_ctx=256, logits_all=True, type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32, verbose=False
    )
    llm.eval(tokens)
    assert rel_error(llm.scores[: len(tokens)], run_target(target, tokens).logits) < 1e-4


@pytest.mark.parametrize("kind", ["row", "token"])
def test_perfect_pair_is_perfect(kind, tmp_path):
    target, head = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf", kind=kind)
    tokens = [5]
    while len(tokens) < 40:
        tokens.append(int(run_target(target, tokens).logits[-1].argmax()))
    rows = run_target(target, tokens).rows(head.boundaries)
    reference = ReferenceHead(head)
    for n in range(1, 30):
        reference.process(rows[n - 1 : n], tokens[n - 1 : n], n - 1)
        assert reference.propose(tokens[n], 8).ids == tokens[n + 1 : n + 9]
