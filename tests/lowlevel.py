"""A target opened with llama-cpp-python's ctypes alone: model, context, tap, Target."""

from __future__ import annotations

import ctypes

import llama_cpp

from llama_cpp_eagle3 import _core


def cb_eval_of(tap: _core.FeatureTap):
    """The tap's callback for llama_context_params.cb_eval."""
    return ctypes.cast(tap.cb_eval, llama_cpp.ggml_backend_sched_eval_callback)


class LowLevel:
    """One model with one context. Use it in a `with` block."""

    def __init__(
        self,
        path: str,
        boundaries: list[int] | None = None,
        kind: str = "auto",
        *,
        n_ctx: int = 256,
        n_batch: int = 64,
        n_ubatch: int = 64,
        n_seq_max: int = 1,
        kv_unified: bool = True,
        n_threads: int = 1,
        swa_full: bool = True,
        kv_overrides: dict[str, int] | None = None,
    ):
        llama_cpp.llama_backend_init()
        params_model = llama_cpp.llama_model_default_params()
        params_model.n_gpu_layers = 0
        overrides = (llama_cpp.llama_model_kv_override * (len(kv_overrides or {}) + 1))()
        for override, (key, value) in zip(overrides, (kv_overrides or {}).items(), strict=False):
            override.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT
            override.key = key.encode()
            override.value.val_i64 = value
        params_model.kv_overrides = overrides
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params_model)
        assert self.model

        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_ubatch
        params.n_seq_max, params.kv_unified, params.swa_full = n_seq_max, kv_unified, swa_full
        params.n_threads = params.n_threads_batch = n_threads
        # K/V in f32, so that a row does not depend on what else is in the batch
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.tap = None
        if boundaries is not None:
            info = _core.read_target(str(path))
            self.tap = _core.FeatureTap(boundaries, info.n_layer, info.n_embd, info.arch, kind)
            if self.tap.cb_eval:
                params.cb_eval = cb_eval_of(self.tap)
                params.cb_eval_user_data = self.tap.cb_eval_user_data
        self.ctx = llama_cpp.llama_init_from_model(self.model, params)
        assert self.ctx
        self.target = _core.Target(self.ctx, self.model, self.tap)

    def close(self) -> None:
        """Free the context and the model."""
        self.target.close()
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)

    def __enter__(self) -> LowLevel:
        return self

    def __exit__(self, *_) -> None:
        self.close()
