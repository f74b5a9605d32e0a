"""Rows of the finished GGUF target, taken by the package's own tap: what the head is trained on."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from llama_cpp_eagle3._core import FeatureTap, Target
from llama_cpp_eagle3.cpu_build import avoid_broken_amx
from llama_cpp_eagle3.whole_file import whole_file

from .model import Config

# llama.cpp keeps this pointer, so it must live as long as the process
_SILENT = llama_cpp.llama_log_callback(lambda *_: None)


class Extractor:
    """The GGUF target in llama.cpp with a tap on every boundary the head's training needs.

    Besides the head's own boundaries that is the last one, ``n_layer``: final norm and lm_head turn its rows into the
    target's distribution, which needs an eighth of the space of the logits.
    """

    def __init__(self, path: Path, cfg: Config, n_threads: int = 2) -> None:
        self.n_embd = cfg.n_embd
        self.boundaries = [*cfg.boundaries, cfg.n_layer]
        self.tap = FeatureTap(self.boundaries, cfg.n_layer, cfg.n_embd, "llama")
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(_SILENT, None)
        model_params = llama_cpp.llama_model_default_params()
        avoid_broken_amx(model_params)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
        if not self.model:
            raise FileNotFoundError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = cfg.n_ctx
        params.n_threads = params.n_threads_batch = n_threads
        if self.tap.cb_eval:
            params.cb_eval = llama_cpp.ggml_backend_sched_eval_callback(self.tap.cb_eval)
            params.cb_eval_user_data = self.tap.cb_eval_user_data
        self.ctx = llama_cpp.llama_init_from_model(self.model, params)
        self.target = Target(_address(self.ctx), _address(self.model), self.tap)
        self.tap.attach(_address(self.ctx))

    def __call__(self, tokens: NDArray[np.uint16]) -> NDArray[np.float32]:
        """Rows (n_tokens, n_boundaries, n_embd) of one window; a view until the next call."""
        self.target.decode([int(t) for t in tokens], 0, logits_all=self.tap.needs_all_outputs)
        return self.tap.rows

    def close(self) -> None:
        """Free context and model."""
        del self.target
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)


def _address(pointer: object) -> int:
    """Plain address of one of llama-cpp-python's ctypes pointers."""
    import ctypes

    if isinstance(pointer, int):
        return pointer
    return int(ctypes.cast(pointer, ctypes.c_void_p).value or 0)  # type: ignore[arg-type]


def extract(path: Path, cfg: Config, windows: NDArray[np.uint16], out: Path, n_threads: int = 2) -> NDArray[np.float16]:
    """Rows of all ``windows`` (n_windows, n_tokens) as a memory-mapped f16 array, (n_windows, n_tokens, 4, n_embd)."""
    extractor = Extractor(path, cfg, n_threads)
    shape = (*windows.shape, len(extractor.boundaries), cfg.n_embd)
    with whole_file(out) as part:
        rows = np.lib.format.open_memmap(part, mode="w+", dtype=np.float16, shape=shape)
        for i, window in enumerate(tqdm(windows, desc="target rows", unit="window")):
            rows[i] = extractor(window)
        rows.flush()
    extractor.close()
    return np.load(out, mmap_mode="r")
