"""A small model of the target's vocabulary as a drafter (llama.cpp's draft-simple)."""

from __future__ import annotations

from typing import Any

import llama_cpp.llama_cpp as lib

from ._core import LoadGuard, SimpleDrafter, TargetInfo, check_header, find_vocab_difference, read_target
from .draft_context import context_params, n_branches
from .errors import IncompatibleDraftError, ModelFileError
from .log import without_details

_NO_MODELS = {
    "dflash": "a block drafter (DFlash)",
    "dspark": "a block drafter (DSpark)",
    "gemma4-assistant": "an assistant that shares the target's K/V",
}


def check_model(model_path: str, path: str) -> TargetInfo:
    """Read the header of a small model that shall draft for a target, and compare their vocabularies.

    Raises:
        ModelFileError: the file cannot be read or is not what it should be.
        IncompatibleDraftError: it is no model that generates text, or has other tokens.
    """
    info = read_target(path)
    if info.arch in _NO_MODELS:
        raise IncompatibleDraftError(f"the draft '{path}' is {_NO_MODELS[info.arch]}, which cannot draft here yet")
    if info.why_no_text:
        raise IncompatibleDraftError(f"the draft '{path}' ({info.arch}) does not generate text: {info.why_no_text}")
    check_header(path, {})
    if difference := find_vocab_difference(model_path, path).decode(errors="replace"):
        raise IncompatibleDraftError(
            f"the draft '{path}' has other tokens than the target '{model_path}': {difference}. Use a small model of "
            "the target's own family."
        )
    return info


def load_model(path: str, params: Any) -> int:
    """Load a model that is to draft; returns its address.

    Raises:
        ModelFileError: llama.cpp does not load it.
    """
    with LoadGuard() as guard, without_details():
        model = lib.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise ModelFileError(f"'{path}': llama.cpp cannot load what is to draft: {guard.reason}")
    return int(model)


def make_drafter(
    model: int,
    params: Any,
    path: str,
    *,
    n_vocab: int,
    n_ctx: int,
    n_seq: int,
    is_pooled: bool,
    has_trees: bool,
    n_threads: int | None,
    type_k: int | None,
    type_v: int | None,
) -> SimpleDrafter:
    """A drafter on a loaded llama_model, which it takes over, also if this raises.

    params: those of the target's context. n_vocab: tokens of the target. n_ctx: positions of the target's context, of
    each sequence unless they share their cells (is_pooled). has_trees: whether trees can be verified. n_threads:
    instead of the target's.

    Raises:
        ModelFileError, IncompatibleDraftError: llama.cpp cannot run the model.
    """
    if lib.llama_model_has_encoder(model) or not lib.llama_model_has_decoder(model):
        lib.llama_model_free(model)
        raise IncompatibleDraftError(f"the draft '{path}' has an encoder: only models that decode alone can draft")
    has_states = lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
    n_positions = n_ctx
    if has_states:
        # each sequence drafts in a copy of its state, which shares the cells of its attention
        n_ctx, is_pooled, n_more = n_ctx if is_pooled else n_ctx * n_seq, True, n_seq
    else:
        n_more = n_branches(is_pooled=is_pooled, has_trees=has_trees)
    own = context_params(
        params, n_ctx=n_ctx, n_seq=n_seq, is_pooled=is_pooled, n_branches=n_more, type_k=type_k, type_v=type_v
    )
    if n_threads is not None:
        own.n_threads = own.n_threads_batch = n_threads
    with LoadGuard() as guard, without_details():
        ctx = lib.llama_init_from_model(model, own)
    if not ctx:
        lib.llama_model_free(model)
        raise IncompatibleDraftError(f"'{path}': llama.cpp makes no context for the small model: {guard.reason}")
    return SimpleDrafter(
        int(ctx),
        model,
        path,
        n_vocab_tgt=n_vocab,
        n_ctx=n_positions,
        n_seq_max=n_seq,
        n_outputs_max=own.n_outputs_max,
    )
