"""Element types of a GGUF's tensors. Blocks are quantized by ggml itself, in the library that llama_cpp has loaded."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType

from llama_cpp_eagle3._library import libllama, libllama_path
from llama_cpp_eagle3.errors import Eagle3Error

from .tensors import Array

OUTTYPES = {
    "f32": GgmlType.F32,
    "f16": GgmlType.F16,
    "bf16": GgmlType.BF16,
    "q8_0": GgmlType.Q8_0,
    "q6_k": GgmlType.Q6_K,
    "q4_k": GgmlType.Q4_K,
    "q4_0": GgmlType.Q4_0,
}
FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q6_k": gguf.LlamaFileType.MOSTLY_Q6_K,
    "q4_k": gguf.LlamaFileType.MOSTLY_Q4_K_S,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}

# type -> the type for heads whose rows are no multiple of 256 values
_FALLBACK = {GgmlType.Q6_K: GgmlType.Q8_0, GgmlType.Q4_K: GgmlType.Q8_0}


def type_of(shape: tuple[int, ...], outtype: str) -> GgmlType:
    """Type of a tensor in the file: matrices get `outtype`, vectors (norms, biases) stay F32."""
    if len(shape) < 2:
        return GgmlType.F32
    kind = OUTTYPES[outtype]
    while shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = _FALLBACK.get(kind, GgmlType.F16)
    return kind


def encode(values: Array, kind: GgmlType) -> Array:
    """Float32 values as the bytes of a type."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if kind == GgmlType.F32:
        return values
    if kind == GgmlType.F16:
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not np.isfinite(half).all() and np.isfinite(values).all():
            raise Eagle3Error("the head has weights beyond the range of f16: choose --outtype bf16, f32 or q8_0")
        return half
    if kind == GgmlType.BF16:
        return np.asarray(gguf.quants.quantize(values, kind))
    return _ggml_quantize(values, kind)


@cache
def _quantize_chunk() -> Callable[..., int]:
    library = libllama()
    if sys.platform == "win32":  # there a library does not show the symbols of those that it needs
        library = ctypes.CDLL(str(libllama_path().with_name("ggml-base.dll")))
    function = library.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [ctypes.c_int, pointer, pointer, i64, i64, i64, pointer]
    result: Any = function
    return result  # type: ignore[no-any-return]


def _ggml_quantize(values: Array, kind: GgmlType) -> Array:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n_per_row = values.shape[-1]
    n_rows = values.size // n_per_row
    out = np.empty((*values.shape[:-1], n_per_row // block * size), np.uint8)
    n = _quantize_chunk()(int(kind), values.ctypes.data, out.ctypes.data, 0, n_rows, n_per_row, None)
    if n != out.nbytes:
        raise Eagle3Error(f"ggml quantized to {n} bytes, expected {out.nbytes}")
    return out
