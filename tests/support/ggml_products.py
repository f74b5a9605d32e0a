"""Single products as ggml graphs on its CPU backend: what llama.cpp computes them in, without a model around them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import gguf
import numpy as np

from llama_cpp_eagle3 import _core

_P = ctypes.c_void_p
# by the names that those have which llama_cpp has loaded: files of other names would be loaded once more
_base, _ggml, _cpu = (ctypes.CDLL(f"lib{name}.so.0") for name in ("ggml-base", "ggml", "ggml-cpu"))
F32, I32 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.I32


class _Tensor(ctypes.Structure):
    """The beginning of a ggml_tensor."""

    _fields_ = (
        *(("type", ctypes.c_int32), ("buffer", _P), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4)),
        *(("op", ctypes.c_int32), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32), ("src", _P * 10)),
        *(("view_src", _P), ("view_offs", ctypes.c_size_t), ("data", _P)),
    )


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool))


def _call(lib: Any, name: str, *args: Any, result: Any = _P) -> Any:
    function = getattr(lib, name)
    function.restype = result
    return function(*args)


def tensor(address: int) -> _Tensor:
    """What is at this address."""
    return _Tensor.from_address(address)


class Context:
    """A ggml_context of descriptions, and a buffer of their data."""

    def __init__(self) -> None:
        """It is empty."""
        self.address = _P(_call(_base, "ggml_init", _InitParams(1 << 20, None, True)))
        self._buffer: Any = None

    def new(self, type: int, ne: Sequence[int]) -> int:
        """A tensor without data."""
        sizes = (ctypes.c_int64 * len(ne))(*ne)
        return int(_call(_base, "ggml_new_tensor", self.address, ctypes.c_int(type), len(ne), sizes))

    def allocate(self, buft: Any) -> None:
        """Give all tensors memory of a buffer type."""
        self._buffer = _P(_call(_base, "ggml_backend_alloc_ctx_tensors_from_buft", self.address, _P(buft)))

    def close(self) -> None:
        """Free everything."""
        _call(_base, "ggml_backend_buffer_free", self._buffer, result=None)
        _call(_base, "ggml_free", self.address, result=None)


def set_data(address: int, data: bytes) -> None:
    """Write all of a tensor, in its layout."""
    _call(
        _base, "ggml_backend_tensor_set", _P(address), data, ctypes.c_size_t(0), ctypes.c_size_t(len(data)), result=None
    )


def quantize(values: np.ndarray, type: int) -> bytes:
    """Rows of weights in a ggml type."""
    n, k = values.shape
    size = _call(_base, "ggml_row_size", ctypes.c_int(type), ctypes.c_int64(k), result=ctypes.c_size_t) * n
    out = ctypes.create_string_buffer(size)
    values = np.ascontiguousarray(values, np.float32)
    sizes = (ctypes.c_int64(0), ctypes.c_int64(n), ctypes.c_int64(k))
    _call(
        _base,
        "ggml_quantize_chunk",
        ctypes.c_int(type),
        _P(values.ctypes.data),
        out,
        *sizes,
        None,
        result=ctypes.c_size_t,
    )
    return out.raw


class Weights:
    """Random weights (k, n, matrices) that lie as the file has them, or as ggml repacks them."""

    def __init__(self, rng: np.random.Generator, type: int, shape: Sequence[int], repacked: bool):
        """shape: as ggml has it, the inputs first."""
        self.shape = tuple(shape)
        k, n = shape[:2]
        n_slabs = int(np.prod(shape[2:]))
        rows = quantize(rng.standard_normal((n * n_slabs, k), dtype=np.float32), type)
        values = gguf.quants.dequantize(
            np.frombuffer(rows, np.uint8).reshape(n * n_slabs, -1), gguf.GGMLQuantizationType(type)
        )
        self.values = values.reshape(n_slabs, n, k).astype(np.float64)
        self._context = Context()
        self.address = self._context.new(type, shape)
        repack = "_Z35ggml_backend_cpu_repack_buffer_typev"
        self._context.allocate(_call(_cpu, repack) if repacked else _call(_base, "ggml_backend_cpu_buffer_type"))
        set_data(self.address, rows)

    def slab(self, i: int) -> bytes:
        """The memory of a matrix."""
        found = tensor(self.address)
        return ctypes.string_at(found.data + int(i) * found.nb[2], found.nb[2])

    def close(self) -> None:
        """Free them."""
        self._context.close()


def multiply(
    weights: Weights, x: np.ndarray, n_threads: int, ids: np.ndarray | None = None, pad: Sequence[int] = (0, 0, 0)
) -> np.ndarray:
    """The product by a graph of ggml: (..., n). x: ne[::-1] of src1. ids: (tokens, experts that each uses).

    pad: how many more rows, matrices and so on x is a view of, so that its strides are not those of its shape.
    """
    context = Context()
    ne = list(x.shape[::-1]) + [1] * (4 - x.ndim)
    whole_ne = [ne[0] + 8 * pad[0], ne[1] + pad[1], ne[2] + pad[2], ne[3]]
    whole = context.new(F32, whole_ne)
    nb = tensor(whole).nb
    view = whole
    if any(pad):
        sizes = [ctypes.c_int64(n) for n in ne] + [ctypes.c_size_t(b) for b in (*nb[1:4], 0)]
        view = _call(_base, "ggml_view_4d", context.address, _P(whole), *sizes)
    if ids is None:
        result = _call(_base, "ggml_mul_mat", context.address, _P(weights.address), _P(view))
    else:
        chosen = context.new(I32, ids.shape[::-1])
        result = _call(_base, "ggml_mul_mat_id", context.address, _P(weights.address), _P(view), _P(chosen))
    graph = _P(_call(_base, "ggml_new_graph", context.address))
    _call(_base, "ggml_build_forward_expand", graph, _P(result), result=None)
    backend = _P(_call(_ggml, "ggml_backend_init_by_type", ctypes.c_int(0), None))
    _call(_cpu, "ggml_backend_cpu_set_n_threads", backend, ctypes.c_int(n_threads), result=None)
    context.allocate(_call(_base, "ggml_backend_cpu_buffer_type"))
    values = np.full(whole_ne[::-1], np.nan, np.float32)
    values[: ne[3], : ne[2], : ne[1], : ne[0]] = x.reshape(ne[::-1])
    set_data(whole, values.tobytes())
    if ids is not None:
        set_data(chosen, np.ascontiguousarray(ids, np.int32).tobytes())
    status = _call(_base, "ggml_backend_graph_compute", backend, graph, result=ctypes.c_int)
    assert status == 0
    found = tensor(result)
    out_ne = list(found.ne)
    out = np.frombuffer(ctypes.string_at(found.data, 4 * int(np.prod(out_ne))), np.float32).reshape(out_ne[::-1]).copy()
    _call(_base, "ggml_backend_free", backend, result=None)
    context.close()
    return out


def kernels_for(weights: Weights, n_rows_max: Mapping[str, int]) -> Any:
    """Have our kernels compute products with them."""
    return _core.CpuKernels([weights.address], n_rows_max)
