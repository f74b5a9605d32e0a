"""A target opened with llama-cpp-python's ctypes alone: model, context, tap, Target."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import llama_cpp
import numpy as np

import placement
from llama_cpp_eagle3 import _core


def cb_eval_of(tap: _core.FeatureTap):
    """Return the tap's callback for llama_context_params.cb_eval."""
    return ctypes.cast(tap.cb_eval, llama_cpp.ggml_backend_sched_eval_callback)


def load_model(path: str | Path, kv_overrides: dict[str, int]) -> int:
    """Load a file, on the CPU or where `placement` says."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    placement.preset(params)
    overrides = (llama_cpp.llama_model_kv_override * (len(kv_overrides) + 1))()
    for override, (key, value) in zip(overrides, kv_overrides.items(), strict=False):
        override.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT
        override.key = key.encode()
        override.value.val_i64 = value
    params.kv_overrides = overrides
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model
    return model


def describe(model: int) -> tuple[int, int, str]:
    """Return n_layer, n_embd and architecture of a loaded model."""
    arch = ctypes.create_string_buffer(64)
    llama_cpp.llama_model_meta_val_str(model, b"general.architecture", arch, 64)
    return llama_cpp.llama_model_n_layer(model), llama_cpp.llama_model_n_embd(model), arch.value.decode()


def node_watcher(on_eval: Callable[[str], None]):
    """Return a cb_eval that reports the name of every node of every graph before it is computed."""
    get_name = _ggml_get_name()

    @llama_cpp.ggml_backend_sched_eval_callback
    def watch(tensor, ask: bool, _) -> bool:
        if ask:
            on_eval(get_name(ctypes.c_void_p(tensor)).decode())
        return not ask

    return watch


def _ggml_get_name():
    (file,) = (
        f
        for f in Path(llama_cpp.llama_cpp._lib._name).parent.glob("*ggml-base.*")
        if f.suffix in (".so", ".dylib", ".dll")
    )
    function = ctypes.CDLL(str(file)).ggml_get_name
    function.restype = ctypes.c_char_p
    return function


_Self = TypeVar("_Self", bound="LowLevel")


class LowLevel:
    """One model with one context, which are freed together. Use it in a `with` block."""

    def __init__(
        self,
        model: str | int,
        boundaries: list[int] | None = None,
        kind: str = "auto",
        *,
        n_ctx: int = 256,
        n_batch: int = 64,
        n_ubatch: int = 64,
        n_seq_max: int = 1,
        n_rs_seq: int = 0,
        n_outputs: int = 1,
        kv_unified: bool = True,
        n_threads: int = 1,
        swa_full: bool = True,
        on_eval: Callable[[str], None] | None = None,
        kv_overrides: dict[str, int] | None = None,
        n_seq: int = 0,
        n_guards: int = 0,
    ):
        llama_cpp.llama_backend_init()
        self.model = model if isinstance(model, int) else load_model(model, kv_overrides or {})

        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_ubatch
        params.n_seq_max, params.kv_unified, params.swa_full = n_seq_max, kv_unified, swa_full
        params.n_rs_seq = n_rs_seq
        params.n_outputs_max_per_seq = n_outputs
        params.n_threads = params.n_threads_batch = n_threads
        # K/V in F32, so that a row does not depend on the rest of the batch
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        placement.preset_context(params)
        self.tap = None
        if boundaries is not None:
            n_layer, n_embd, arch = describe(self.model)
            if boundaries[0] > n_layer + 1:  # all residual streams
                n_embd = llama_cpp.llama_model_n_embd_out(self.model)
            self.tap = _core.FeatureTap(boundaries, n_layer, n_embd, arch, kind)
            if self.tap.cb_eval:
                params.cb_eval = cb_eval_of(self.tap)
                params.cb_eval_user_data = self.tap.cb_eval_user_data
        if on_eval is not None:
            self._on_eval = node_watcher(on_eval)
            params.cb_eval = self._on_eval
        self.ctx = llama_cpp.llama_init_from_model(self.model, params)
        assert self.ctx
        self.target = _core.Target(self.ctx, self.model, self.tap, n_seq, n_guards)

    def decode_draft(self, tokens: list[int], n_past: int, seq_id: int = 0) -> None:
        """Decode a token and a chain after it; `target.keep` then says which tokens stay."""
        self.target.decode_parts(parts_of((seq_id, n_past, tokens), is_draft=True))

    def decode_tree(self, tokens: list[int], parents: list[int], n_past: int, seq_id: int = 0) -> None:
        """Decode a tree; its root comes first, and the root's parent is not read."""
        shifted = [parent - 1 for parent in parents[1:]]
        self.target.decode_parts([_core.BatchPart(seq_id, n_past, tokens[:1], tokens[1:], shifted, "all")])

    def evaluate(self, tokens: list[int], seq_id: int = 0) -> np.ndarray:
        """Return rows of the tap for a text in an empty sequence, those of all boundaries side by side."""
        self.target.truncate(0, seq_id)
        rows = []
        for first in range(0, len(tokens), 64):
            self.target.decode(tokens[first : first + 64], first, seq_id=seq_id)
            rows.append(self.tap.rows.reshape(self.tap.rows.shape[0], -1).copy())
        return np.concatenate(rows)

    def close(self) -> None:
        """Free the context and the model."""
        self.target.close()
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def parts_of(*parts: tuple[int, int, list[int]], is_draft: bool = False) -> list[_core.BatchPart]:
    """Return parts of a batch from (seq_id, n_past, tokens), with logits of all rows."""
    return [
        _core.BatchPart(seq_id, n_past, *([tokens[:1], tokens[1:]] if is_draft else [tokens]), logits="all")
        for seq_id, n_past, tokens in parts
    ]
