"""Drafters on contexts of llama.cpp: how models and contexts are made."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import llama_cpp.llama_cpp as lib

from ... import cpu_build
from ..._core import LoadGuard
from ...errors import IncompatibleDraftError
from ...files.model_file import file_errors, kv_overrides, mended_keys
from ...ggml_types import FLOAT_TYPES
from ...log import without_details
from .kind import Place

N_SCRATCH = 32
"""Cells for drafted tokens of each sequence, as in csrc/drafters/llama_context/context_drafter.h."""
_N_MEASURED = 7
"""Branches if there are no trees, with which passes of several rows are measured."""
_N_BATCH = 512


def load_model(path: str, place: Place, *, load_mtp: bool = False) -> int:
    """Load a model that will draft; returns its address. It runs on the target's device, unless another is given.

    load_mtp: with its block for multi-token prediction.

    Raises:
        ModelFileError: llama.cpp does not load it.
    """
    params = type(place.model_params).from_buffer_copy(place.model_params)
    params.load_mtp, params.vocab_only = load_mtp, False
    params.kv_overrides, params.tensor_buft_overrides = kv_overrides(mended_keys(path)), None
    params.progress_callback = lib.llama_progress_callback()
    params.n_gpu_layers = place.n_layers
    if place.device is not None and place.device.name != "CPU":
        devices = (ctypes.c_void_p * 2)(place.device.address, None)
        params.devices, params.split_mode = ctypes.cast(devices, ctypes.c_void_p), lib.LLAMA_SPLIT_MODE_LAYER
        params.tensor_split = None
    with file_errors(path), without_details(), cpu_build.without_amx(False):
        model = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not model:
            raise ValueError("cannot load model")
    return int(model)


def make_context(model: int, params: Any, place: Place, what: str, *, owns_model: bool) -> int:
    """Make a drafter's llama_context; returns its address. A model of its own is freed if this raises.

    what: the file and its kind, for the error.

    Raises:
        IncompatibleDraftError: llama.cpp makes no such context.
    """
    params.n_threads = params.n_threads_batch = place.n_threads
    with LoadGuard() as guard, without_details():
        ctx = lib.llama_init_from_model(model, params)
    if not ctx:
        if owns_model:
            lib.llama_model_free(model)
        raise IncompatibleDraftError(f"{what}: llama.cpp makes no context for it: {guard.reason}")
    return int(ctx)


def make_contexts(model: int, params: Any, place: Place, what: str, n: int, *, owns_model: bool) -> list[int]:
    """Make several contexts, as `make_context` does."""
    made: list[int] = []
    try:
        while len(made) < n:
            made.append(make_context(model, params, place, what, owns_model=owns_model and not made))
    except IncompatibleDraftError:
        for ctx in made:
            lib.llama_free(ctx)
        if owns_model and made:
            lib.llama_model_free(model)
        raise
    return made


def n_branches(*, is_pooled: bool, has_trees: bool) -> int:
    """Number of sequence ids for branches of trees, which need shared cells. has_trees: the target can verify trees."""
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
    own.n_batch = max(min(params.n_batch, _N_BATCH), own.n_seq_max, N_SCRATCH)
    own.n_ubatch = max(min(params.n_ubatch, own.n_batch), own.n_seq_max)
    own.n_outputs_max = own.n_seq_max
    own.n_outputs_max_per_seq = 1
    own.n_rs_seq = 0
    own.swa_full = True  # it goes back with every draft
    own.embeddings = False
    own.cb_eval, own.cb_eval_user_data = lib.ggml_backend_sched_eval_callback(), None
    set_cache_types(own, type_k, type_v)
    return own


def set_cache_types(params: Any, type_k: int | None, type_v: int | None) -> None:
    """Set the ggml types of a context's cache; None: F16."""
    params.type_k = lib.GGML_TYPE_F16 if type_k is None else type_k
    params.type_v = lib.GGML_TYPE_F16 if type_v is None else type_v
    if params.type_v not in FLOAT_TYPES:  # only flash attention reads other types
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
