"""Block drafters (GGUF architecture dflash): a small model that drafts a block of tokens in one pass."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as lib

from ._core import DflashDrafter, DflashFile, LoadGuard
from .errors import IncompatibleDraftError
from .ggml_types import FLOAT_TYPES
from .log import without_details
from .model_file import file_errors

_N_BATCH = 128, 256
"""Rows of a pass: as many blocks as fit into the second number, and not fewer than the first. llama.cpp makes logits
of all of them, for which it keeps memory."""
_ALL_LAYERS = 999


def make_drafter(
    file: DflashFile,
    target: Any,
    target_params: Any,
    params: Any,
    *,
    n_ctx: int,
    n_seq: int,
    is_pooled: bool,
    n_gpu_layers: int,
    device: int | None,
    n_threads: int | None,
    type_k: int | None,
    type_v: int | None,
) -> DflashDrafter:
    """Load a block drafter for a target's llama_context, which must outlive it.

    target_params, params: those of the target's model and context. n_ctx: positions of the target's context, of each
    sequence unless they share their cells (is_pooled). n_gpu_layers: as many as the target has if it is negative.
    device: address of a ggml device, None: those of the target. n_threads: instead of the target's. type_k, type_v:
    ggml types of the cache; None: F16.

    Raises:
        IncompatibleDraftError, ModelFileError: llama.cpp cannot run it.
    """
    with file_errors(file.path):
        model = _load(file.path, target_params, n_gpu_layers, device)
    own = context_params(
        params, block_size=file.block_size, n_ctx=n_ctx, n_seq=n_seq, is_pooled=is_pooled, type_k=type_k, type_v=type_v
    )
    own.ctx_other = target
    if n_threads is not None:
        own.n_threads = own.n_threads_batch = n_threads
    with LoadGuard() as guard, without_details():
        ctx = lib.llama_init_from_model(model, own)
    if not ctx:
        lib.llama_model_free(model)
        raise IncompatibleDraftError(f"'{file.path}': llama.cpp makes no context for the block drafter: {guard.reason}")
    return DflashDrafter(file, int(model), int(ctx), int(lib.llama_get_model(target)), n_ctx=n_ctx, n_seq_max=n_seq)


def _load(path: str, target_params: Any, n_gpu_layers: int, device: int | None) -> Any:
    own = type(target_params).from_buffer_copy(target_params)
    own.load_mtp = own.vocab_only = False
    own.kv_overrides = own.tensor_buft_overrides = None
    own.progress_callback = lib.llama_progress_callback()
    if n_gpu_layers >= 0:
        own.n_gpu_layers = n_gpu_layers
    if device is not None:
        devices = (ctypes.c_void_p * 2)(device, None)
        own.devices, own.split_mode = ctypes.cast(devices, ctypes.c_void_p), lib.LLAMA_SPLIT_MODE_LAYER
        own.tensor_split = None
        own.n_gpu_layers = max(own.n_gpu_layers, _ALL_LAYERS) if n_gpu_layers < 0 else n_gpu_layers
    model = lib.llama_model_load_from_file(path.encode(), own)
    if not model:
        raise ValueError("cannot load model")
    return model


def context_params(
    params: Any, *, block_size: int, n_ctx: int, n_seq: int, is_pooled: bool, type_k: int | None, type_v: int | None
) -> Any:
    """A llama_context_params for a block drafter, from those of its target's context; without `ctx_other`.

    n_ctx: positions of the target's context, of each sequence unless they share their cells (is_pooled).
    """
    own = lib.llama_context_default_params()
    for name in ("n_threads", "n_threads_batch", "flash_attn_type", "offload_kqv", "op_offload", "no_perf"):
        setattr(own, name, getattr(params, name))
    own.n_seq_max, own.kv_unified = n_seq, is_pooled
    own.n_ctx = n_ctx + n_seq * block_size if is_pooled else (n_ctx + block_size) * n_seq
    least, most = _N_BATCH
    own.n_batch = own.n_ubatch = max(block_size, least, min(most, n_seq * block_size))
    own.swa_full = True  # it goes back with every draft
    own.type_k = lib.GGML_TYPE_F16 if type_k is None else type_k
    own.type_v = lib.GGML_TYPE_F16 if type_v is None else type_v
    if own.type_v not in FLOAT_TYPES:  # only flash attention reads others
        own.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
    return own
