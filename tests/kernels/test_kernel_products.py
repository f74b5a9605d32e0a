"""Products by our kernels inside ggml's graphs are right for heads and experts, shapes, strides and threads."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from ggml_products import NotRepackedError, Weights, kernels_for, multiply
from llama_cpp_eagle3 import _core

KERNELS = _core.cpu_kernel_names()
pytestmark = pytest.mark.skipif(not KERNELS, reason="no kernel for this processor")


@pytest.fixture(params=KERNELS)
def kernel(request: Any) -> str:
    return str(request.param)


def make(rng: np.random.Generator, kernel: str, k: int, n: int, *more: int) -> Weights:
    """Return random weights of k blocks of inputs and n groups of channels."""
    type, repacked, n_channels, n_inputs = _core.cpu_kernel_format(kernel)
    try:
        return Weights(rng, type, (k * n_inputs, n * n_channels, *more), repacked)
    except NotRepackedError:
        pytest.skip(f"on this processor ggml does not repack what {kernel} multiplies")


def by_kernel(kernel: str, weights: Weights, slab: int, x: np.ndarray) -> np.ndarray:
    """Return one row times one matrix, without ggml."""
    return _core.cpu_kernel_mul_mat(kernel, weights.slab(slab), np.ascontiguousarray(x).reshape(1, -1))[0]


def noise(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return six standard deviations of the difference between two roundings to 8 bits: [rows of x, rows of w].

    A value is rounded to steps of its block's peak / 127; the error is spread evenly over a step, 1 / sqrt(12) of it.
    """
    step = np.abs(x).max(-1, keepdims=True) / 127
    return 6 * np.sqrt(2 / 12) * step * np.linalg.norm(w, axis=-1)


def assert_about(found: np.ndarray, expected: np.ndarray, tolerance: np.ndarray) -> None:
    """Check equality except for the rounding of activations."""
    assert (np.abs(found - expected) <= tolerance + 1e-6).all()


def rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


class TestMatrix:
    def test_fuzzed_shapes(self, kernel: str) -> None:
        rng = np.random.default_rng(1)
        for _ in range(40):
            k, n = int(rng.integers(1, 9)), int(rng.integers(1, 9))
            x_shape = [
                int(rng.integers(1, limit)) for limit in rng.choice([(2, 2, 9), (2, 4, 5), (3, 3, 3), (2, 2, 80)])
            ]
            with closing(make(rng, kernel, k, n)) as weights:
                x = rows(rng, *x_shape, weights.shape[0])
                pad = rng.choice([(0, 0, 0), (1, 0, 0), (0, 2, 0), (1, 3, 1)])
                is_repacked = _core.cpu_kernel_format(kernel)[1]
                # ggml's own code for repacked weights asserts that there is only one
                ggml = None if is_repacked and x_shape[0] > 1 else multiply(weights, x, 1)
                with closing(kernels_for(weights, {kernel: 1000})) as used:
                    assert used.n_weights == {kernel: 1}
                    found = multiply(weights, x, int(rng.integers(1, 6)), pad=pad)
                expected = np.stack([by_kernel(kernel, weights, 0, row) for row in x.reshape(-1, x.shape[-1])])
                np.testing.assert_array_equal(found.reshape(expected.shape), expected)
                flat = x.reshape(-1, x.shape[-1]).astype(np.float64)
                tolerance = noise(flat, weights.values[0])
                if ggml is not None:
                    assert_about(expected, ggml.reshape(expected.shape), tolerance)
                assert_about(expected, flat @ weights.values[0].T, tolerance)

    def test_long_rows(self, kernel: str) -> None:
        """Rows longer than a core's cache, and than all cores share of floats, are multiplied in parts."""
        rng = np.random.default_rng(5)
        n_inputs = _core.cpu_kernel_format(kernel)[3]
        with closing(make(rng, kernel, 9216 // n_inputs + 1, 70 // _core.cpu_kernel_format(kernel)[2] + 1)) as weights:
            x = rows(rng, 130, weights.shape[0])
            with closing(kernels_for(weights, {kernel: 1000})):
                found = multiply(weights, x, 2).reshape(130, -1)
            expected = np.stack([by_kernel(kernel, weights, 0, row) for row in x])
            np.testing.assert_array_equal(found, expected)
            flat = x.astype(np.float64)
            assert_about(expected, flat @ weights.values[0].T, noise(flat, weights.values[0]))

    def test_more_rows_than_allowed_are_those_of_ggml(self, kernel: str) -> None:
        rng = np.random.default_rng(2)
        with closing(make(rng, kernel, 3, 4)) as weights:
            x = rows(rng, 6, weights.shape[0])
            ggml = multiply(weights, x, 2)
            with closing(kernels_for(weights, {kernel: 5})):
                np.testing.assert_array_equal(multiply(weights, x, 2), ggml)
            with closing(kernels_for(weights, {})) as none:
                assert none.why_not
                np.testing.assert_array_equal(multiply(weights, x[:2], 2), multiply(weights, x[:2], 2))

    def test_a_matrix_for_each_head(self, kernel: str) -> None:
        """Weights are [k, n, heads], as in multi-head latent attention, and some heads may share one."""
        if _core.cpu_kernel_format(kernel)[1]:
            pytest.skip("ggml repacks no such weights")
        rng = np.random.default_rng(3)
        for n_heads, n_matrices, n_rows in ((3, 3, 1), (4, 2, 5), (2, 1, 7)):
            with closing(make(rng, kernel, 2, 3, n_matrices)) as weights:
                x = rows(rng, n_heads, n_rows, weights.shape[0])
                with closing(kernels_for(weights, {kernel: 16})):
                    found = multiply(weights, x, 3)[0]
                for head in range(n_heads):
                    for row in range(n_rows):
                        expected = by_kernel(kernel, weights, head * n_matrices // n_heads, x[head, row])
                        np.testing.assert_array_equal(found[head, row], expected)


class TestExperts:
    @pytest.mark.parametrize("shared", [True, False], ids=["one row of a token", "a row of each expert"])
    def test_fuzzed_shapes(self, kernel: str, shared: bool) -> None:
        rng = np.random.default_rng(4)
        for _ in range(25):
            k, n, n_experts = (int(rng.integers(1, limit)) for limit in (9, 9, 12))
            n_used, n_tokens = int(rng.integers(1, n_experts + 1)), int(rng.choice([1, 2, 3, 5, 16, 50]))
            with closing(make(rng, kernel, k, n, max(2, n_experts))) as weights:
                ids = np.stack([rng.permutation(n_experts)[:n_used] for _ in range(n_tokens)])
                x = rows(rng, n_tokens, 1 if shared else n_used, weights.shape[0])
                pad = rng.choice([(0, 0, 0), (1, 0, 0), (0, 2, 0), (1, 3, 1)])
                ggml = multiply(weights, x, 2, ids)
                with closing(kernels_for(weights, {kernel: 50})) as used:
                    assert used.n_weights == {kernel: 1}
                    found = multiply(weights, x, int(rng.integers(1, 6)), ids, pad)[0]
                for token in range(n_tokens):
                    for i in range(n_used):
                        row = x[token, 0 if shared else i]
                        expected = by_kernel(kernel, weights, ids[token, i], row)
                        np.testing.assert_array_equal(found[token, i], expected)
                        tolerance = noise(row[None], weights.values[ids[token, i]])[0]
                        assert_about(expected, ggml[0, token, i], tolerance)

    def test_rows_of_some_experts_are_shared(self, kernel: str) -> None:
        """If src1 has fewer rows than experts are used, the experts take turns."""
        rng = np.random.default_rng(5)
        with closing(make(rng, kernel, 2, 2, 6)) as weights:
            ids = np.stack([rng.permutation(6)[:4] for _ in range(3)])
            x = rows(rng, 3, 2, weights.shape[0])
            with closing(kernels_for(weights, {kernel: 16})):
                found = multiply(weights, x, 2, ids)[0]
            for token in range(3):
                for i in range(4):
                    expected = by_kernel(kernel, weights, ids[token, i], x[token, i % 2])
                    np.testing.assert_array_equal(found[token, i], expected)

    def test_all_rows_choose_the_same(self, kernel: str) -> None:
        rng = np.random.default_rng(6)
        with closing(make(rng, kernel, 4, 70, 3)) as weights:
            x = rows(rng, 40, 1, weights.shape[0])
            ids = np.ones((40, 1), np.int32)
            with closing(kernels_for(weights, {kernel: 40})):
                found = multiply(weights, x, 2, ids)[0]
            expected = _core.cpu_kernel_mul_mat(kernel, weights.slab(1), x[:, 0])
            np.testing.assert_array_equal(found[:, 0], expected)
