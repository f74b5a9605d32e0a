"""Attention by our kernels in ggml's graphs agrees with float64, and no bit depends on the rest of the pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import pytest

from attention_checks import (
    KERNEL,
    N_EMBD,
    check_keys_that_are_no_numbers,
    needs_kernel,
    test_order_of_cells,  # noqa: F401
    test_rows_alone,  # noqa: F401
    test_threads,  # noqa: F401
)
from ggml_products import Weights, attend, kernels_for

pytestmark = needs_kernel


@dataclass
class Case:
    """Rows, and the cache that they read."""

    weights: Weights
    x: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: np.ndarray

    def attend(self, rows: Any = slice(None), cells: Any = slice(None), n_threads: int = 2) -> tuple[np.ndarray, Any]:
        """Compute some of the rows, with the cells of the cache in another order."""
        k, v, mask = self.k[:, cells], self.v[:, :, cells], self.mask[rows][:, cells]
        with closing(kernels_for(self.weights, {KERNEL: 16})):
            return attend(self.weights, self.x[rows], k, v, mask, n_threads)


def make(
    rng: np.random.Generator, n_rows: int, n_heads: int, n_kv: int, n_dims: int, n_cells: int, cache_type: Any
) -> Case:
    weights = Weights(rng, gguf.GGMLQuantizationType.F16, (N_EMBD, n_heads * n_dims), repacked=False)
    x = rng.standard_normal((n_rows, N_EMBD), dtype=np.float32) / 4
    k = rng.standard_normal((n_kv, n_cells, n_dims)).astype(cache_type)
    v = rng.standard_normal((n_kv, n_dims, n_cells)).astype(cache_type)
    is_seen = rng.random((n_rows, n_cells)) < 0.8
    is_seen[:, 0] = True
    return Case(weights, x, k, v, np.where(is_seen, 0, -np.inf).astype(np.float32))


SHAPES = [  # rows, heads, heads of keys, dimensions, cells
    (1, 4, 4, 64, 8),
    (1, 9, 3, 64, 264),
    (2, 6, 3, 32, 128),
    (4, 4, 1, 24, 136),
    (5, 8, 2, 40, 120),
    (8, 9, 3, 64, 392),
    (16, 6, 2, 8, 256),
    (13, 8, 1, 72, 640),
]


@pytest.fixture(params=[np.float16, np.float32], ids=["F16", "F32"])
def cache_type(request: Any) -> Any:
    return request.param


@pytest.fixture(params=SHAPES, ids=["-".join(map(str, shape)) for shape in SHAPES])
def case(request: Any, cache_type: Any) -> Iterator[Case]:
    case = make(np.random.default_rng(1), *request.param, cache_type=cache_type)
    yield case
    case.weights.close()


def test_float64(case: Case) -> None:
    queries, found = case.attend()
    half = case.k.dtype == np.float16
    q = queries.astype(np.float16 if half else np.float32).astype(np.float64)
    n_shared = len(q) // len(case.k)
    k, v = (np.repeat(part.astype(np.float64), n_shared, axis=0) for part in (case.k, case.v))
    scores = q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5 + case.mask
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    expected = p @ v.transpose(0, 2, 1)
    # weights of cells are rounded to 16 bits like the values: 2^-12 of their products, each independently
    error = np.sqrt(p**2 @ v.transpose(0, 2, 1) ** 2) * 2.0**-12 if half else 0.0
    assert (np.abs(found - expected) <= 6 * error + 2e-6).all()
    assert not np.array_equal(found, np.zeros_like(found))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_keys_that_are_no_numbers(cache_type: Any, value: float) -> None:
    """A row that reads such a key has no numbers; one for which it is masked has its own."""
    case = make(np.random.default_rng(3), 4, 4, 2, 64, 128, cache_type)
    check_keys_that_are_no_numbers(case, 120, slice(32, 64), value)


def test_ggml_alone_depends_on_the_order(cache_type: Any) -> None:
    """The compared results can differ: without our kernels they do."""
    case = make(np.random.default_rng(2), 5, 8, 2, 40, 120, cache_type)
    order = np.random.default_rng(0).permutation(120)
    by_ggml = [
        attend(case.weights, case.x, case.k[:, o], case.v[:, :, o], case.mask[:, o], 1)[1] for o in (slice(None), order)
    ]
    case.weights.close()
    assert not np.array_equal(*by_ggml)
