"""FLASH_ATTN_EXT by our kernel agrees with float64, and is bit for bit the same whatever else is in the pass."""

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
from ggml_products import Weights, flash_attend, kernels_for, quantize

Type = gguf.GGMLQuantizationType
TYPES = (Type.F16, Type.F32, Type.BF16, Type.Q8_0, Type.Q4_0)
pytestmark = needs_kernel


@dataclass
class Case:
    """Rows, and the cache that they read."""

    weights: Weights
    x: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: np.ndarray | None
    sinks: np.ndarray | None = None
    max_bias: float = 0.0
    cap: float = 0.0
    types: tuple[int, int] = (Type.F16, Type.F16)

    @property
    def scale(self) -> float:
        return float(self.k.shape[2] ** -0.5)

    def attend(
        self, rows: Any = slice(None), cells: Any = slice(None), n_threads: int = 2, ours: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute some of the rows, with the cells of the cache in another order."""
        mask = self.mask[rows][:, cells] if self.mask is not None else None
        cache = list(zip(self.types, (self.k[:, cells], self.v[:, cells]), strict=True))
        options = (self.scale, self.max_bias, self.cap)
        with closing(kernels_for(self.weights, {KERNEL: 1 << 20} if ours else {})):
            return flash_attend(self.weights, self.x[rows], cache, mask, n_threads, options, self.sinks)

    def expected(self, queries: np.ndarray) -> np.ndarray:
        """Return the result in float64."""
        n_shared = len(queries) // len(self.k)
        k, v = (
            np.repeat(stored(part, type), n_shared, axis=0)
            for part, type in zip((self.k, self.v), self.types, strict=True)
        )
        scores = queries.astype(np.float64) @ k.transpose(0, 2, 1) * self.scale
        if self.cap:
            scores = self.cap * np.tanh(scores / self.cap)
        if self.mask is not None:
            slopes = np.ones(len(queries)) if not self.max_bias else alibi_slopes(len(queries), self.max_bias)
            scores = scores + slopes[:, None, None] * self.mask.astype(np.float16).astype(np.float64)
        sinks = np.full(len(queries), -np.inf) if self.sinks is None else self.sinks.astype(np.float64)
        top = np.maximum(scores.max(-1), sinks[:, None])
        top[np.isinf(top)] = 0
        p = np.exp(scores - top[..., None])
        total = p.sum(-1) + np.exp(sinks[:, None] - top)
        return (p @ v) / np.where(total == 0, 1, total)[..., None]


def alibi_slopes(n_heads: int, max_bias: float) -> np.ndarray:
    """Return the slopes of "Train Short, Test Long": a geometric sequence, beyond 2^n heads half of the next one."""
    n = 2 ** int(np.log2(n_heads))
    even = [2.0 ** (-max_bias * (i + 1) / n) for i in range(n)]
    return np.array(even + [2.0 ** (-max_bias * (2 * i + 1) / (2 * n)) for i in range(n_heads - n)])


def stored(values: np.ndarray, type: int) -> np.ndarray:
    """Return the values as the cache holds them."""
    flat = np.ascontiguousarray(values).reshape(-1, values.shape[-1])
    rows = np.frombuffer(quantize(flat, type), np.uint8).reshape(len(flat), -1)
    return gguf.quants.dequantize(rows, Type(type)).astype(np.float64).reshape(values.shape)


def make(
    n_rows: int, n_heads: int, n_kv: int, n_dims: int, n_dims_v: int, n_cells: int, seed: int = 1, **options: Any
) -> Case:
    rng = np.random.default_rng(seed)
    weights = Weights(rng, Type.F16, (N_EMBD, n_heads * n_dims), repacked=False)
    x = rng.standard_normal((n_rows, N_EMBD), dtype=np.float32) / 4
    k = rng.standard_normal((n_kv, n_cells, n_dims), dtype=np.float32)
    v = rng.standard_normal((n_kv, n_cells, n_dims_v), dtype=np.float32)
    mask = np.where(rng.random((n_rows, n_cells)) < 0.8, 0, -np.inf).astype(np.float32)
    mask[:, 0] = 0
    return Case(weights, x, k, v, mask, **options)


SHAPES = [  # rows, heads, heads of keys, dimensions of K and of V, cells
    (1, 4, 4, 64, 64, 8),
    (1, 12, 2, 128, 128, 700),
    (2, 6, 3, 80, 80, 128),
    (3, 4, 1, 256, 256, 96),
    (5, 8, 2, 96, 64, 333),
    (8, 12, 2, 128, 128, 513),
    (16, 2, 1, 576, 512, 100),
    (13, 8, 1, 72, 40, 256),
    (64, 14, 2, 64, 64, 290),
    (7, 4, 2, 192, 128, 1),
    (2, 20, 20, 64, 32, 300),
]


@pytest.fixture(params=SHAPES, ids=["-".join(map(str, shape)) for shape in SHAPES])
def case(request: Any) -> Iterator[Case]:
    case = make(*request.param)
    yield case
    case.weights.close()


def check(case: Case) -> None:
    """Check for the precision of float32 products and exponentials: some last bits of the largest value."""
    queries, found = case.attend()
    np.testing.assert_allclose(found, case.expected(queries), rtol=0, atol=4e-6)
    assert found.std() > 0.01


def test_float64(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("type_v", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("type_k", TYPES, ids=lambda t: t.name)
def test_types_of_the_cache(type_k: Any, type_v: Any) -> None:
    case = make(4, 6, 2, 96, 64, 200, types=(type_k, type_v))
    check(case)
    order = np.random.default_rng(0).permutation(200)
    np.testing.assert_array_equal(case.attend(slice(1, 2), order)[1][:, 0], case.attend()[1][:, 1])
    case.weights.close()


@pytest.mark.parametrize(
    "options",
    [
        {"sinks": np.linspace(-2, 4, 6)},
        {"cap": 2.0},
        {"cap": 30.0, "sinks": np.zeros(6)},
        {"max_bias": 8.0},
    ],
    ids=["sinks", "soft cap", "both", "ALiBi"],
)
def test_options(options: Any) -> None:
    case = make(5, 6, 2, 64, 64, 300, **options)
    if case.max_bias:
        assert case.mask is not None
        case.mask -= np.abs(np.arange(300) - 299.0).astype(np.float32) / 4
    check(case)
    for row in range(5):
        np.testing.assert_array_equal(case.attend(slice(row, row + 1))[1][:, 0], case.attend()[1][:, row])
    case.weights.close()


def test_no_mask() -> None:
    case = make(3, 4, 2, 64, 64, 77)
    case.mask = None
    check(case)
    case.weights.close()


def test_masked_cells_are_not_read() -> None:
    """Masked blocks and single cells are not read, whatever they hold; a row without cells is zero."""
    case = make(6, 4, 2, 64, 64, 320)
    assert case.mask is not None
    case.mask[:, 64:256] = -np.inf
    case.mask[:, 300] = -np.inf
    case.mask[2] = -np.inf
    check(case)
    found = case.attend()[1]
    assert not found[:, 2].any()
    case.k[:, 64:256] = case.k[:, 300] = 1000
    case.v[:, 64:256] = case.v[:, 300] = -1000
    np.testing.assert_array_equal(case.attend()[1], found)
    seen = np.r_[0:64, 256:300, 301:320]
    np.testing.assert_array_equal(case.attend(cells=seen)[1], found)
    case.weights.close()


def test_scores_in_parts() -> None:
    """The scores are so many that not all rows are computed at a time."""
    case = make(9, 64, 1, 8, 8, 8000)
    check_rows = case.attend()[1]
    np.testing.assert_array_equal(case.attend(slice(8, 9))[1][:, 0], check_rows[:, 8])
    np.testing.assert_allclose(check_rows, case.expected(case.attend()[0]), rtol=0, atol=4e-6)
    case.weights.close()


PROMPTS = [  # rows, heads, heads of keys, dimensions of K and of V, cells
    (65, 12, 2, 128, 128, 300),
    (130, 6, 3, 80, 72, 257),
    (97, 64, 1, 40, 8, 96),
    (70, 3, 1, 576, 512, 70),
    (200, 4, 4, 256, 256, 64),
    (66, 2, 2, 64, 40, 1),
]


@pytest.mark.parametrize("types", [(Type.F16, Type.F16), (Type.Q8_0, Type.BF16), (Type.F32, Type.Q4_0)])
@pytest.mark.parametrize("shape", PROMPTS, ids=["-".join(map(str, shape)) for shape in PROMPTS])
def test_prompts(shape: Any, types: Any) -> None:
    """More rows than a draft has are computed in tiles, which gives the bits of short passes."""
    n_rows, n_heads, n_kv, n_dims, n_dims_v, n_cells = shape
    if any(n % 32 for n in (n_dims, n_dims_v)) and types != (Type.F16, Type.F16):
        n_dims, n_dims_v = -(-n_dims // 32) * 32, -(-n_dims_v // 32) * 32
    case = make(n_rows, n_heads, n_kv, n_dims, n_dims_v, n_cells, types=types)
    check(case)
    expected = case.attend()[1]
    for n_threads in (1, 5):
        np.testing.assert_array_equal(case.attend(n_threads=n_threads)[1], expected)
    np.testing.assert_array_equal(case.attend(slice(0, 65))[1], expected[:, :65])
    np.testing.assert_array_equal(case.attend(slice(7, 20))[1], expected[:, 7:20])
    order = np.random.default_rng(0).permutation(n_cells)
    np.testing.assert_array_equal(case.attend(cells=order)[1], expected)
    case.weights.close()


@pytest.mark.parametrize("seed", range(12))
def test_prompts_with_any_masks(seed: int) -> None:
    """The masks are causal, windows, and those of a pool of sequences, with all options."""
    rng = np.random.default_rng(seed)
    n_rows, n_cells = int(rng.integers(65, 140)), int(rng.integers(100, 500))
    options = {"cap": float(rng.choice([0.0, 5.0])), "max_bias": float(rng.choice([0.0, 8.0]))}
    case = make(n_rows, 6, int(rng.choice([1, 2, 6])), 64, 32, n_cells, seed, **options)
    case.sinks = rng.standard_normal(6) if seed % 2 else None
    distance = np.arange(n_rows)[:, None] + n_cells - n_rows - np.arange(n_cells)
    owner = rng.integers(0, 3, n_rows)[:, None] == rng.integers(0, 3, n_cells)
    seen = (distance >= 0) & (distance < rng.integers(20, 600)) & (owner if seed % 3 else True)
    case.mask = np.where(seen, -np.abs(distance) / 16 if case.max_bias else 0, -np.inf).astype(np.float32)
    check(case)
    expected = case.attend()[1]
    order = rng.permutation(n_cells)
    np.testing.assert_array_equal(case.attend(cells=order)[1], expected)
    row = int(rng.integers(n_rows))
    np.testing.assert_array_equal(case.attend(slice(row, row + 1), order)[1][:, 0], expected[:, row])
    case.weights.close()


@pytest.mark.parametrize("n_cells", [1, 2, 9, 31, 32, 33, 40, 64, 100, 1000])
def test_all_cells_weigh_the_same(n_cells: int) -> None:
    """With equal weights the sums of blocks and their parts are as large as they can be."""
    case = make(3, 4, 2, 64, 64, n_cells)
    case.x[:] = 0
    case.mask = None
    case.v[:, :, :32] = 1
    case.v[:, :, 32:] = np.where(np.arange(n_cells)[:, None] % 3, -1, 1)
    queries, found = case.attend()
    # half a unit of 2^-27 for each cell: all products are rounded alike
    np.testing.assert_allclose(found, case.expected(queries), rtol=0, atol=3e-7 + n_cells * 2.0**-28)
    order = np.random.default_rng(0).permutation(n_cells)
    np.testing.assert_array_equal(case.attend(cells=order)[1], found)
    case.weights.close()


@pytest.mark.parametrize("sharpness", [4.0, 16.0, 64.0])
@pytest.mark.parametrize("types", [(Type.F16, Type.F16), (Type.Q8_0, Type.Q8_0), (Type.F32, Type.F32)])
def test_a_few_cells_weigh_much(types: Any, sharpness: float) -> None:
    """Some cells weigh most of all, many little, and some nothing."""
    case = make(5, 6, 2, 64, 64, 700, types=types)
    case.x *= sharpness
    queries, found = case.attend()
    # scores are float32: their last bits change the weights
    np.testing.assert_allclose(found, case.expected(queries), rtol=0, atol=1e-6 * sharpness)
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(700)
        for row in range(5):
            np.testing.assert_array_equal(case.attend(slice(row, row + 1), order)[1][:, 0], found[:, row])
    case.weights.close()


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-6, 1e4, 1e30])
def test_values_of_any_size(factor: float) -> None:
    case = make(4, 4, 2, 64, 64, 200, types=(Type.F16, Type.F32 if factor in (1e-30, 1e30) else Type.F16))
    case.v *= np.float32(factor)
    queries, found = case.attend()
    # below 1e-25 nothing remains
    atol = 4e-6 * factor if factor > 1e-25 else 1e-29
    np.testing.assert_allclose(found, case.expected(queries), rtol=0, atol=max(atol, 1e-9 * (factor == 1e-6)))
    case.weights.close()


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("type_v", [Type.F16, Type.F32, Type.BF16])
def test_values_that_are_no_numbers(type_v: Any, value: float) -> None:
    """A row that reads such a value has no numbers; one that reads the cells beside it has its own."""
    case = make(5, 4, 2, 64, 64, 256, types=(Type.F16, type_v))
    assert case.mask is not None
    case.mask[:] = 0
    case.mask[1, :128] = -np.inf
    case.mask[3, 40] = -np.inf
    case.mask[4, 32:] = -np.inf
    expected = case.attend()[1]
    case.v[:, 40, 7] = value
    found = case.attend()[1]
    np.testing.assert_array_equal(found[:, [1, 3, 4]], expected[:, [1, 3, 4]])
    assert np.isnan(found[:, [0, 2]]).all()
    for row in (3, 4):
        np.testing.assert_array_equal(case.attend([row])[1][:, 0], expected[:, row])
    case.weights.close()


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_keys_that_are_no_numbers(cap: float, value: float) -> None:
    """A row that reads such a key has no numbers; one for which it is masked has its own."""
    case = make(4, 4, 2, 64, 64, 256, cap=cap)
    assert case.mask is not None
    check_keys_that_are_no_numbers(case, 250, 40, value)


@pytest.mark.parametrize("n_per_sequence", [1, 5, 20])
def test_rows_read_the_cells_of_their_sequence(n_per_sequence: int) -> None:
    """Rows of several sequences of a pool read no cells of other sequences, whatever these hold."""
    n = 4 * n_per_sequence
    case = make(n, 6, 2, 64, 64, 512)
    owner = np.arange(n) // n_per_sequence
    case.mask = np.where(owner[:, None] == np.arange(512) // 128, 0, -np.inf).astype(np.float32)
    check(case)
    together = case.attend()[1]
    case.k[:, 128:256] = case.v[:, 128:256] = np.nan
    found = case.attend()[1]
    np.testing.assert_array_equal(found[:, owner != 1], together[:, owner != 1])
    for i in (0, 2, 3):
        alone = case.attend(owner == i, slice(128 * i, 128 * i + 128))[1]
        np.testing.assert_array_equal(alone, together[:, owner == i])
    case.weights.close()


def test_ggml_alone_depends_on_the_order() -> None:
    """The compared results can differ: without our kernels they do."""
    case = make(5, 8, 2, 40, 40, 120)
    order = np.random.default_rng(0).permutation(120)
    assert not np.array_equal(case.attend(ours=False)[1], case.attend(cells=order, ours=False)[1])
    case.weights.close()
