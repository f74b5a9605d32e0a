"""Our products take no more instructions than they did, which no other program on the machine can change."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from llama_cpp_eagle3 import _core
from single_steps import instructions

N_IN, N_OUT = 512, (16, 32)
MOST = {
    "q4_0x8/avx2": (100, 403),
    "q4_0x8/avx512_vnni": (47, 146),
    "q4_Kx8/avx2": (75, 397),
    "q4_Kx8/avx512_vnni": (58, 195),
    "q6_K/avx2": (167, 558),
    "q6_K/avx512_vnni": (67, 299),
    "q8_0/avx2": (175, 593),
    "q8_0/avx512_vnni": (124, 237),
}
"""Of 256 weights by 1 and by 8 rows: a tenth more than GCC 12's code takes."""


def of_block(kernel: str, n_rows: int) -> float:
    """Return the instructions of 256 weights by n rows."""
    n_values, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(_core.cpu_kernel_format(kernel)[0])]
    x = np.random.default_rng(0).standard_normal((n_rows, N_IN), dtype=np.float32)
    counts = []
    for n_out in N_OUT:
        weights = bytes(n_out * N_IN // n_values * n_bytes)
        try:
            counts.append(instructions(lambda weights=weights: _core.cpu_kernel_mul_mat(kernel, weights, x)))
        except OSError as e:
            pytest.skip(f"the system does not let a process be stepped: {e}")
    return (counts[1] - counts[0]) / ((N_OUT[1] - N_OUT[0]) * N_IN / 256)


@pytest.mark.parametrize("kernel", MOST)
def test_products(kernel: str) -> None:
    if kernel not in _core.cpu_kernel_names():
        pytest.skip("not on this processor")
    found = tuple(of_block(kernel, n_rows) for n_rows in (1, 8))
    print(kernel, *(f"{n:.1f}" for n in found))
    assert all(n <= most for n, most in zip(found, MOST[kernel], strict=True)), found


def test_a_step_is_one_instruction() -> None:
    """More work takes more of them, and the same work the same number."""
    try:
        counts = [instructions(lambda n=n: sum([1] * n)) for n in (100, 200, 300, 300)]
    except OSError as e:
        pytest.skip(f"the system does not let a process be stepped: {e}")
    assert counts[0] < counts[1] < counts[2]
    assert counts[2] == pytest.approx(counts[3], rel=0.02)
