"""Contexts of llama.cpp that draft: of the target's own block (mtp), or of a small model (simple)."""

from __future__ import annotations

from typing import Any

import llama_cpp.llama_cpp as lib

N_SCRATCH = 32
"""Cells for drafted tokens of each sequence, as in csrc/context/context_drafter.h."""
_N_GUESSES = 8
_N_MEASURED = 7
"""Branches where there are no trees: passes of several rows are measured with them."""
_N_BATCH = 512


def n_branches(*, is_pooled: bool, has_trees: bool) -> int:
    """Sequence ids for branches of trees, which only shared cells can have. has_trees: they can be verified."""
    return (N_SCRATCH if has_trees else _N_MEASURED) if is_pooled else 0


def context_params(
    params: Any, *, n_ctx: int, n_seq: int, is_pooled: bool, n_branches: int, type_k: int | None, type_v: int | None
) -> Any:
    """A llama_context_params for drafts, from those of their target's context.

    n_ctx: positions of the target's context, of each sequence unless they share their cells (is_pooled). n_branches:
    sequence ids beyond n_seq. type_k, type_v: ggml types of the cache; None: F16.
    """
    own = type(params).from_buffer_copy(params)
    own.n_seq_max = n_seq + n_branches
    own.kv_unified = is_pooled
    own.n_ctx = n_ctx + n_seq * N_SCRATCH if is_pooled else n_ctx * n_seq
    own.n_batch = max(min(params.n_batch, _N_BATCH), own.n_seq_max)
    own.n_ubatch = max(min(params.n_ubatch, own.n_batch), own.n_seq_max)
    own.n_outputs_max = max(own.n_seq_max, _N_GUESSES)
    own.n_outputs_max_per_seq = 1
    own.n_rs_seq = 0
    own.swa_full = True  # it goes back with every draft
    own.embeddings = False
    own.cb_eval, own.cb_eval_user_data = lib.ggml_backend_sched_eval_callback(), None
    own.type_k = lib.GGML_TYPE_F16 if type_k is None else type_k
    own.type_v = lib.GGML_TYPE_F16 if type_v is None else type_v
    return own
