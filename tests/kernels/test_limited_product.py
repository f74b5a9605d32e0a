"""Products of which a part is wanted: computed elements have the bits of the whole product, the rest is -inf."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from ggml_products import NotRepackedError, Weights, kernels_for, multiply
from llama_cpp_eagle3 import _core

KERNELS = _core.cpu_kernel_names()
N_TOGETHER = 16
"""The constant of csrc/kernels/limited_product.h."""
pytestmark = pytest.mark.skipif(not KERNELS, reason="no kernel for this processor")


@pytest.fixture(params=KERNELS)
def kernel(request: Any) -> str:
    return str(request.param)


def make(rng: np.random.Generator, kernel: str, k: int, n: int) -> Weights:
    """Return random weights of k blocks of inputs and n channels."""
    type, repacked, _, n_inputs = _core.cpu_kernel_format(kernel)
    try:
        return Weights(rng, type, (k * n_inputs, n), repacked)
    except NotRepackedError:
        pytest.skip(f"on this processor ggml does not repack what {kernel} multiplies")


def some_ranges(rng: np.random.Generator, n: int) -> list[tuple[int, int]]:
    """Return ranges of blocks, each wanted or not; the last block may be smaller."""
    found: list[tuple[int, int]] = []
    wanted = rng.random((n + N_TOGETHER - 1) // N_TOGETHER) < rng.choice([0.1, 0.5, 0.9])
    for i in np.flatnonzero(wanted):
        first, last = int(i) * N_TOGETHER, min(n, int(i + 1) * N_TOGETHER)
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def test_what_is_wanted_has_the_bits_of_the_whole_product(kernel: str) -> None:
    rng = np.random.default_rng(1)
    n_channels = _core.cpu_kernel_format(kernel)[2]
    for n_rows in (1, 2, 3, 8, 33, 70):
        k, n = int(rng.integers(1, 4)), n_channels * int(rng.integers(1, 600 // n_channels))
        with closing(make(rng, kernel, k, n)) as weights, closing(kernels_for(weights, {kernel: 1000})):
            x = rng.standard_normal((n_rows, weights.shape[0]), dtype=np.float32)
            whole = multiply(weights, x, 1)
            for n_threads in (1, 2, 5):
                ranges = some_ranges(rng, n)
                is_wanted = np.zeros(n, bool)
                for first, last in ranges:
                    is_wanted[first:last] = True
                with closing(_core.LimitedProduct(weights.address, ranges)):
                    found = multiply(weights, x, n_threads)
                np.testing.assert_array_equal(found[..., is_wanted], whole[..., is_wanted])
                assert np.isneginf(found[..., ~is_wanted]).all()
            np.testing.assert_array_equal(multiply(weights, x, 2), whole)


def test_only_this_matrix_in_this_thread() -> None:
    rng = np.random.default_rng(2)
    kernel = next(name for name in KERNELS if not _core.cpu_kernel_format(name)[1])
    with closing(make(rng, kernel, 1, 64)) as weights, closing(make(rng, kernel, 1, 64)) as others:
        x = rng.standard_normal((2, weights.shape[0]), dtype=np.float32)
        with closing(kernels_for(weights, {kernel: 8})), closing(kernels_for(others, {kernel: 8})):
            whole, whole_others = multiply(weights, x, 1), multiply(others, x, 1)
            found = {}
            with closing(_core.LimitedProduct(weights.address, [(16, 32)])):
                np.testing.assert_array_equal(multiply(others, x, 2), whole_others)
                thread = threading.Thread(target=lambda: found.update(all=multiply(weights, x, 2)))
                thread.start()
                thread.join()
                with closing(_core.LimitedProduct(weights.address, [])):
                    assert np.isneginf(multiply(weights, x, 2)).all()
                assert np.isfinite(multiply(weights, x, 2)).sum() == 2 * 16
            np.testing.assert_array_equal(found["all"], whole)


def test_products_of_ggml_are_whole() -> None:
    rng = np.random.default_rng(3)
    kernel = next(name for name in KERNELS if not _core.cpu_kernel_format(name)[1])
    with closing(make(rng, kernel, 1, 64)) as weights, closing(kernels_for(weights, {kernel: 4})):
        x = rng.standard_normal((5, weights.shape[0]), dtype=np.float32)
        with closing(_core.LimitedProduct(weights.address, [(0, 16)])):
            assert np.isfinite(multiply(weights, x, 1)).all()
