"""Single products as ggml graphs on its CPU backend: llama.cpp's operations without a model around them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import gguf
import numpy as np

from kernel_formats import GRIDS, Format, dequantize
from llama_cpp_eagle3 import _core

_P = ctypes.c_void_p
# the names of the libraries that llama_cpp has loaded: under other names they would be loaded once more
_base, _ggml, _cpu = (ctypes.CDLL(f"lib{name}.so.0") for name in ("ggml-base", "ggml", "ggml-cpu"))
F32, I32 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.I32


class _Tensor(ctypes.Structure):
    """A ggml_tensor."""

    _fields_ = (
        *(("type", ctypes.c_int32), ("buffer", _P), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4)),
        *(("op", ctypes.c_int32), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32), ("src", _P * 10)),
        *(("view_src", _P), ("view_offs", ctypes.c_size_t), ("data", _P), ("name", ctypes.c_char * 64), ("extra", _P)),
    )


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool))


def _call(lib: Any, name: str, *args: Any, result: Any = _P) -> Any:
    function = getattr(lib, name)
    function.restype = result
    return function(*args)


def tensor(address: int) -> _Tensor:
    """Return the tensor at this address."""
    return _Tensor.from_address(address)


class Context:
    """A ggml_context of descriptions, and a buffer of their data."""

    def __init__(self) -> None:
        """Make an empty context."""
        self.address = _P(_call(_base, "ggml_init", _InitParams(1 << 20, None, True)))
        self._buffer: Any = None

    def new(self, type: int, ne: Sequence[int]) -> int:
        """Return a new tensor without data."""
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
    """Return rows of weights in a ggml type."""
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


class NotRepackedError(Exception):
    """ggml repacks no weights of this type on this processor."""


class Weights:
    """Random weights (k, n, matrices) in the file's layout, or as ggml repacks them."""

    def __init__(self, rng: np.random.Generator, type: int, shape: Sequence[int], repacked: bool):
        """shape: ggml's, the inputs first.

        Raises:
            NotRepackedError: ggml cannot repack them; writing them would be a segmentation fault.
        """
        self.shape = tuple(shape)
        k, n = shape[:2]
        n_slabs = int(np.prod(shape[2:]))
        if type in GRIDS:  # of which ggml would search the nearest entry for seconds
            rows = Format("", GRIDS[type], 1).random(rng, n * n_slabs, k).tobytes()
        else:
            rows = quantize(rng.standard_normal((n * n_slabs, k), dtype=np.float32), type)
        values = dequantize(np.frombuffer(rows, np.uint8).reshape(n * n_slabs, -1), type)
        self.values = values.reshape(n_slabs, n, k).astype(np.float64)
        self._context = Context()
        self.address = self._context.new(type, shape)
        repack = "_Z35ggml_backend_cpu_repack_buffer_typev"
        self._context.allocate(_call(_cpu, repack) if repacked else _call(_base, "ggml_backend_cpu_buffer_type"))
        if repacked and not tensor(self.address).extra:
            self.close()
            raise NotRepackedError
        set_data(self.address, rows)

    def slab(self, i: int) -> bytes:
        """Return the memory of a matrix."""
        found = tensor(self.address)
        return ctypes.string_at(found.data + int(i) * found.nb[2], found.nb[2])

    def close(self) -> None:
        """Free the weights."""
        self._context.close()


def multiply(
    weights: Weights, x: np.ndarray, n_threads: int, ids: np.ndarray | None = None, pad: Sequence[int] = (0, 0, 0)
) -> np.ndarray:
    """Return the product by a graph of ggml: (..., n). x: ne[::-1] of src1. ids: (tokens, experts of each token).

    pad: further rows, matrices and so on of the tensor of which x is a view, so that its strides differ from its shape.
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
    compute = _Graph(context, result, n_threads)
    values = np.full(whole_ne[::-1], np.nan, np.float32)
    values[: ne[3], : ne[2], : ne[1], : ne[0]] = x.reshape(ne[::-1])
    set_data(whole, values.tobytes())
    if ids is not None:
        set_data(chosen, np.ascontiguousarray(ids, np.int32).tobytes())
    compute()
    out = values_of(result)
    context.close()
    return out


class _Graph:
    """A graph that computes a tensor on ggml's CPU backend."""

    def __init__(self, context: Context, result: int, n_threads: int) -> None:
        """Give all tensors of the context memory."""
        self._graph = _P(_call(_base, "ggml_new_graph", context.address))
        _call(_base, "ggml_build_forward_expand", self._graph, _P(result), result=None)
        self._n_threads = ctypes.c_int(n_threads)
        context.allocate(_call(_base, "ggml_backend_cpu_buffer_type"))

    def __call__(self) -> None:
        backend = _P(_call(_ggml, "ggml_backend_init_by_type", ctypes.c_int(0), None))
        _call(_cpu, "ggml_backend_cpu_set_n_threads", backend, self._n_threads, result=None)
        status = _call(_base, "ggml_backend_graph_compute", backend, self._graph, result=ctypes.c_int)
        _call(_base, "ggml_backend_free", backend, result=None)
        assert status == 0


def values_of(address: int) -> np.ndarray:
    """Return a dense tensor of float32, (ne3, ne2, ne1, ne0)."""
    found = tensor(address)
    ne = list(found.ne)
    return np.frombuffer(ctypes.string_at(found.data, 4 * int(np.prod(ne))), np.float32).reshape(ne[::-1]).copy()


def attend(
    weights: Weights, x: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, n_threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the queries and the result of attention without flash attention, as in llama.cpp's graphs.

    x: (rows, n_embd). k: (heads of keys, cells, n_dims) and v: (the same, n_dims, cells) of F16 or F32, mask: (rows,
    cells) of F32. Both results: (heads, rows, n_dims); queries are weights times x, of all heads one after another.
    """
    n_rows, n_dims = len(x), k.shape[2]
    n_heads = weights.shape[1] // n_dims
    context = Context()
    inputs = context.new(F32, x.shape[::-1])
    cache = gguf.GGMLQuantizationType.F16 if k.dtype == np.float16 else F32
    keys, values, seen = (
        context.new(cache, k.shape[::-1]),
        context.new(cache, v.shape[::-1]),
        context.new(F32, mask.shape[::-1]),
    )
    flat = _call(_base, "ggml_mul_mat", context.address, _P(weights.address), _P(inputs))
    sizes = [ctypes.c_int64(n) for n in (n_dims, n_heads, n_rows)]
    by_head = _call(_base, "ggml_reshape_3d", context.address, _P(flat), *sizes)
    query = _call(_base, "ggml_permute", context.address, _P(by_head), *(ctypes.c_int(i) for i in (0, 2, 1, 3)))
    scores = _call(_base, "ggml_mul_mat", context.address, _P(keys), _P(query))
    scale = ctypes.c_float(n_dims**-0.5)
    p = _call(_base, "ggml_soft_max_ext", context.address, _P(scores), _P(seen), scale, ctypes.c_float(0))
    result = _call(_base, "ggml_mul_mat", context.address, _P(values), _P(p))
    compute = _Graph(context, result, n_threads)
    for address, data in ((inputs, x), (keys, k), (values, v), (seen, mask)):
        set_data(address, np.ascontiguousarray(data).tobytes())
    compute()
    queries = values_of(flat)[0, 0].reshape(n_rows, n_heads, n_dims).transpose(1, 0, 2)
    found = values_of(result)[0]
    context.close()
    return queries, found


def flash_attend(
    weights: Weights,
    x: np.ndarray,
    cache: Sequence[tuple[int, np.ndarray]],
    mask: np.ndarray | None,
    n_threads: int,
    options: Sequence[float],
    sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the queries and the result of FLASH_ATTN_EXT, as in llama.cpp's graphs.

    x: (rows, n_embd). cache: types and values of K and of V, (heads of keys, cells, n_dims). mask: (rows, cells), F16.
    options: scale, the largest bias (ALiBi), soft cap. sinks: (heads). Results as of `attend`.
    """
    (type_k, k), (type_v, v) = cache
    n_heads = weights.shape[1] // k.shape[2]
    context = Context()
    inputs = context.new(F32, x.shape[::-1])
    # the heads of a cell lie one after another
    keys, values = (context.new(t, (c.shape[2], c.shape[0], c.shape[1])) for t, c in cache)
    order = [ctypes.c_int(i) for i in (0, 2, 1, 3)]
    flat = _call(_base, "ggml_mul_mat", context.address, _P(weights.address), _P(inputs))
    sizes = [ctypes.c_int64(n) for n in (k.shape[2], n_heads, len(x))]
    by_head = _call(_base, "ggml_reshape_3d", context.address, _P(flat), *sizes)
    q, k_view, v_view = (_call(_base, "ggml_permute", context.address, _P(t), *order) for t in (by_head, keys, values))
    seen = context.new(gguf.GGMLQuantizationType.F16, mask.shape[::-1]) if mask is not None else None
    floats = [ctypes.c_float(value) for value in options]
    args = [_P(t) for t in (q, k_view, v_view, seen)]
    result = _call(_base, "ggml_flash_attn_ext", context.address, *args, *floats)
    if sinks is not None:
        own = context.new(F32, sinks.shape)
        _call(_base, "ggml_flash_attn_ext_add_sinks", _P(result), _P(own), result=None)
    compute = _Graph(context, result, n_threads)
    set_data(inputs, np.ascontiguousarray(x).tobytes())
    for address, type, rows in ((keys, type_k, k), (values, type_v, v)):
        by_cell = np.ascontiguousarray(rows.transpose(1, 0, 2)).reshape(-1, rows.shape[2])
        set_data(address, quantize(by_cell, type))
    if seen is not None and mask is not None:
        set_data(seen, np.ascontiguousarray(mask, np.float16).tobytes())
    if sinks is not None:
        set_data(own, np.ascontiguousarray(sinks, np.float32).tobytes())
    compute()
    queries = values_of(flat)[0, 0].reshape(len(x), n_heads, k.shape[2]).transpose(1, 0, 2)
    found = values_of(result)[0].transpose(1, 0, 2)
    context.close()
    return queries, found


def delta_net(
    weights: Weights,
    x: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    state: np.ndarray,
    n_states: int,
    n_threads: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the result of GATED_DELTA_NET, the states after the last n_states tokens, the newest first, and beta.

    x: (sequences, tokens, n_embd); beta is weights times x. q, k, v, g: (sequences, tokens, heads, channels). state:
    (sequences, heads, channels, channels).
    """
    context = Context()
    inputs = context.new(F32, (x.shape[2], x.shape[0] * x.shape[1]))
    flat = _call(_base, "ggml_mul_mat", context.address, _P(weights.address), _P(inputs))
    sizes = [ctypes.c_int64(n) for n in (1, v.shape[2], v.shape[1], v.shape[0])]
    beta = _call(_base, "ggml_reshape_4d", context.address, _P(flat), *sizes)
    parts = [context.new(F32, part.shape[::-1]) for part in (q, k, v, g, state)]
    args = [_P(part) for part in (*parts[:4], beta, parts[4])]
    result = _call(_base, "ggml_gated_delta_net", context.address, *args, ctypes.c_int64(n_states))
    compute = _Graph(context, result, n_threads)
    for address, values in zip((inputs, *parts), (x, q, k, v, g, state), strict=True):
        set_data(address, np.ascontiguousarray(values, np.float32).tobytes())
    compute()
    found = values_of(result).reshape(-1)
    given, states = found[: v.size].reshape(v.shape), found[v.size :].reshape(n_states, *state.shape)
    betas = values_of(flat).reshape(v.shape[:3])
    context.close()
    return given, states, betas


def kernels_for(weights: Weights, n_rows_max: Mapping[str, int]) -> Any:
    """Let our kernels compute products with these weights."""
    return _core.CpuKernels([weights.address], n_rows_max)
