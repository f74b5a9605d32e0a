"""Tests of an attention kernel, for a module with a fixture `case`: `attend(rows, cells, n_threads)` gives the
operation's inputs and its result [head][row][channel]."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llama_cpp_eagle3 import _core

KERNEL = "f16/avx2" if "f16/avx2" in _core.cpu_kernel_names() else "f16/neon"
"""The kernel of the product that gives an operation's inputs: then our kernels compute the operation too."""
N_EMBD = 64
needs_kernel = pytest.mark.skipif(KERNEL not in _core.cpu_kernel_names(), reason="no kernel for this processor")


def test_rows_alone(case: Any) -> None:
    together = case.attend()[1]
    for row in range(len(case.x)):
        np.testing.assert_array_equal(case.attend(slice(row, row + 1))[1][:, 0], together[:, row])


def test_order_of_cells(case: Any) -> None:
    expected = case.attend()[1]
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(case.k.shape[1])
        np.testing.assert_array_equal(case.attend(cells=order)[1], expected)


def test_threads(case: Any) -> None:
    expected = case.attend()[1]
    for n_threads in (1, 3, 5):
        np.testing.assert_array_equal(case.attend(n_threads=n_threads)[1], expected)


def check_keys_that_are_no_numbers(case: Any, n_cells: int, cells: int | slice, value: float) -> None:
    """A row that reads such a key has no numbers; one for which it is masked has its own.

    n_cells: those that any row reads. cells: those that rows 1 and 3 do not, and that get the value.
    """
    case.mask[:] = 0
    case.mask[:, n_cells:] = -np.inf
    case.mask[[1, 3], cells] = -np.inf
    expected = case.attend()[1]
    case.k[:, cells] = value
    found = case.attend()[1]
    np.testing.assert_array_equal(found[:, [1, 3]], expected[:, [1, 3]])
    assert np.isnan(found[:, [0, 2]]).all()
    case.k[:] = value
    assert np.isnan(case.attend()[1]).all()
    case.weights.close()
