"""The block for multi-token prediction (MTP, NextN) of a target, in its file or in one of its own, as a drafter."""

from __future__ import annotations

from typing import Any

import llama_cpp.llama_cpp as lib

from ._core import LoadGuard, MtpDrafter, TargetInfo, check_header, find_vocab_difference, read_target
from .draft_context import context_params, n_branches
from .errors import IncompatibleDraftError, ModelFileError
from .log import without_details


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


def check_block(model_path: str, target: TargetInfo, path: str) -> TargetInfo:
    """Read the header of a block in a file of its own, and compare it with its target's.

    Raises:
        ModelFileError: the file cannot be read or is not what it should be.
        IncompatibleDraftError: it belongs to another target, or cannot draft here.
    """
    info = read_target(path)
    check_header(path, {})
    facts = {
        "architecture": (target.arch, info.arch),
        "number of layers": (target.n_layer, info.n_layer),
        "width": (target.n_embd, info.n_embd),
        "number of tokens": (target.n_vocab, info.n_vocab),
    }
    for name, (of_target, of_block) in facts.items():
        if of_target != of_block:
            raise IncompatibleDraftError(
                f"the block for multi-token prediction '{path}' belongs to another target than '{model_path}': the "
                f"{name} is {of_block}, of the target {of_target}"
            )
    if difference := find_vocab_difference(model_path, path).decode(errors="replace"):
        raise IncompatibleDraftError(
            f"the block for multi-token prediction '{path}' has other tokens than the target '{model_path}': "
            f"{difference}"
        )
    if why := why_no_block(info):
        raise IncompatibleDraftError(f"the block for multi-token prediction '{path}' cannot draft: {why}")
    return info


def make_drafter(
    model: Any,
    params: Any,
    path: str,
    *,
    owns_model: bool = False,
    n_ctx: int,
    n_seq: int,
    is_pooled: bool,
    has_trees: bool,
    n_threads: int | None,
    type_k: int | None,
    type_v: int | None,
) -> MtpDrafter:
    """A drafter on the block of a loaded llama_model.

    params: those of the target's context. owns_model: the drafter takes the model over, also if this raises. has_trees:
    whether trees can be verified. n_threads: instead of the target's.

    Raises:
        IncompatibleDraftError, ModelFileError: llama.cpp cannot run the block.
    """
    own = context_params(
        params,
        n_ctx=n_ctx,
        n_seq=n_seq,
        is_pooled=is_pooled,
        n_branches=n_branches(is_pooled=is_pooled, has_trees=has_trees),
        type_k=type_k,
        type_v=type_v,
    )
    own.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
    if n_threads is not None:
        own.n_threads = own.n_threads_batch = n_threads
    with LoadGuard() as guard, without_details():
        ctx = lib.llama_init_from_model(model, own)
    if not ctx:
        if owns_model:
            lib.llama_model_free(model)
        raise IncompatibleDraftError(
            f"'{path}': llama.cpp makes no context for the block for multi-token prediction: {guard.reason}"
        )
    own_model = int(model) if owns_model else 0
    return MtpDrafter(int(ctx), path, model=own_model, n_ctx=n_ctx, n_seq_max=n_seq, n_outputs_max=own.n_outputs_max)
