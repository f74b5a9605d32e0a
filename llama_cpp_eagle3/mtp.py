"""The block for multi-token prediction (MTP, NextN) in a target's own file, as a drafter."""

from __future__ import annotations

from typing import Any

import llama_cpp.llama_cpp as lib

from ._core import LoadGuard, MtpDrafter, TargetInfo, read_target
from .errors import IncompatibleDraftError, ModelFileError
from .log import without_details

_N_SCRATCH = 32
"""Cells for drafted tokens of each sequence, as in csrc/mtp/mtp_drafter.h."""
_N_GUESSES = 8
_N_MEASURED = 7
"""Branches where there are no trees: passes of several rows are measured with them."""
_N_BATCH = 512


def why_no_block(info: TargetInfo) -> str:
    """Why a target cannot draft with a block of its own; empty if it can."""
    if info.why_no_target:
        return info.why_no_target
    if info.n_layer_nextn == 0:
        return f"the file has no block for multi-token prediction (key {info.arch}.nextn_predict_layers)"
    if info.nextn < 0:
        return f"what the block of this architecture ({info.arch}) reads cannot be read"
    if info.n_layer_nextn > 1:
        return f"it has {info.n_layer_nextn} blocks, each of which drafts one token: only a single block is supported"
    return ""


def has_block(model_path: str) -> bool:
    """Whether a target can draft with a block of its own; False for a file that cannot be read."""
    try:
        return not why_no_block(read_target(model_path))
    except ModelFileError:
        return False


def boundary_of(model_path: str, info: TargetInfo) -> int:
    """The boundary that the block reads.

    Raises:
        IncompatibleDraftError: there is no such block.
    """
    if why := why_no_block(info):
        raise IncompatibleDraftError(
            f"'{model_path}' cannot draft with a block of its own (draft_sources names 'mtp'): {why}. Leave 'mtp' out, "
            "or give a head as draft_model_path."
        )
    return info.n_layer + info.nextn


def make_drafter(
    model: Any,
    params: Any,
    path: str,
    *,
    n_ctx: int,
    n_seq: int,
    is_pooled: bool,
    has_trees: bool,
    n_threads: int | None,
    type_k: int | None,
    type_v: int | None,
) -> MtpDrafter:
    """A drafter on the block of a loaded llama_model.

    params: those of the target's context. has_trees: whether trees can be verified. n_threads: instead of the target's.

    Raises:
        IncompatibleDraftError, ModelFileError: llama.cpp cannot run the block.
    """
    own = context_params(
        params,
        n_ctx=n_ctx,
        n_seq=n_seq,
        is_pooled=is_pooled,
        n_branches=(_N_SCRATCH if has_trees else _N_MEASURED) if is_pooled else 0,
        type_k=type_k,
        type_v=type_v,
    )
    if n_threads is not None:
        own.n_threads = own.n_threads_batch = n_threads
    with LoadGuard() as guard, without_details():
        ctx = lib.llama_init_from_model(model, own)
    if not ctx:
        raise IncompatibleDraftError(
            f"'{path}': llama.cpp makes no context for the block for multi-token prediction: {guard.reason}"
        )
    return MtpDrafter(int(ctx), path, n_ctx=n_ctx, n_seq_max=n_seq, n_outputs_max=own.n_outputs_max)


def context_params(
    params: Any, *, n_ctx: int, n_seq: int, is_pooled: bool, n_branches: int, type_k: int | None, type_v: int | None
) -> Any:
    """A llama_context_params for the block, from those of its target's context.

    n_ctx: positions of the target's context, of each sequence unless they share their cells (is_pooled). n_branches:
    sequence ids for branches of trees, which only shared cells can have. type_k, type_v: ggml types of the cache;
    None: F16.
    """
    own = type(params).from_buffer_copy(params)
    own.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
    own.n_seq_max = n_seq + n_branches
    own.kv_unified = is_pooled
    own.n_ctx = n_ctx + n_seq * _N_SCRATCH if is_pooled else n_ctx * n_seq
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
