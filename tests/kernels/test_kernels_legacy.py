"""Kernels for all types but K-quants match float64, and a row does not depend on the other rows."""

import ctypes
from dataclasses import replace
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from kernel_formats import LEGACY, Format, format_of
from llama_cpp_eagle3 import _core

QUANTIZED = [f for f in LEGACY if f.type not in (Type.F16, Type.BF16)]
WITH_VNNI = [f for f in LEGACY if "vnni" in f.kernel]
BYTES = (0x00, 0x0F, 0x77, 0x78, 0x7F, 0x80, 0x81, 0x87, 0x88, 0xF0, 0xFF)


def mul_mat(f: Format, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    return _core.cpu_kernel_mul_mat(f.kernel, f.stored(weights), x)


@pytest.mark.skipif(not LEGACY, reason="no kernel for this processor")
@pytest.mark.parametrize("f", LEGACY, ids=lambda f: f.kernel)
class TestKernel:
    @pytest.mark.parametrize("k", [32, 64, 96, 2048, 16384])
    @pytest.mark.parametrize("n", [1, 7, 8, 13, 24])
    def test_agrees_with_float64(self, f, k, n):
        rng = np.random.default_rng(k + n)
        n, k = n * f.n_group, f.n_inputs(k)
        weights = f.random(rng, n, k)
        x = rng.standard_normal((5, k), dtype=np.float32)
        expected = f.product(weights, x)
        # sums of k / 8 or k / 32 float32 products
        atol = 5e-6 * np.sqrt((expected**2).mean())
        np.testing.assert_allclose(mul_mat(f, weights, x), expected, rtol=0, atol=atol)

    def test_all_values_of_a_type(self, f):
        """One input at a time shows each weight by itself, and at its index."""
        rng, k = np.random.default_rng(1), f.n_inputs(64)
        weights = f.random(rng, 8, k)
        ones = np.eye(k, dtype=np.float32)
        expected = f.product(weights, ones)
        # a minimum and a value may cancel each other
        atol = 1e-7 * np.abs(expected).max() if f.scales == 2 else 0
        np.testing.assert_allclose(mul_mat(f, weights, ones), expected, rtol=3e-7, atol=atol)

    def test_a_row_does_not_depend_on_its_company(self, f):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((37, 512), dtype=np.float32)
        weights = f.random(rng, 11 * f.n_group, 512)
        together = mul_mat(f, weights, x)
        for n_rows in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 36):
            assert (mul_mat(f, weights, x[:n_rows]) == together[:n_rows]).all()
            assert (mul_mat(f, weights, x[-n_rows:]) == together[-n_rows:]).all()

    def test_a_channel_does_not_depend_on_its_neighbours(self, f):
        """A thread may begin and end at any channel."""
        rng = np.random.default_rng(2)
        x = rng.standard_normal((3, 256), dtype=np.float32)
        weights = f.random(rng, 24 * f.n_group, 256)
        together = mul_mat(f, weights, x)
        for first, last in ((0, 1), (0, 7), (1, 9), (3, 16), (5, 8), (8, 24), (9, 24), (23, 24)):
            a, b = first * f.n_group, last * f.n_group
            assert (mul_mat(f, weights[a:b], x) == together[:, a:b]).all()

    def test_zeros(self, f):
        rng = np.random.default_rng(3)
        k = f.n_inputs(64)
        assert (mul_mat(f, f.random(rng, 8, k), np.zeros((2, k), np.float32)) == 0).all()


@pytest.mark.skipif(not LEGACY, reason="no kernel for this processor")
@pytest.mark.parametrize("f", QUANTIZED, ids=lambda f: f.kernel)
def test_agrees_with_ggml(f):
    """The result is that of ggml's own product of two rows, with the activations as ggml quantizes them."""
    ggml = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-cpu.so"))
    ggml.ggml_cpu_init()
    rng = np.random.default_rng(4)
    k, weights = 2048, f.random(rng, 16, 2048)
    x = rng.standard_normal((1, k), dtype=np.float32)
    kind = "q8_K" if f.is_super else "q8_1" if f.scales == 2 else "q8_0"
    row, dots = np.empty(k * 2, np.uint8), np.zeros(16, np.float32)
    getattr(ggml, f"quantize_row_{kind}")(x.ctypes, row.ctypes, ctypes.c_int64(k))
    dot, none = getattr(ggml, f"ggml_vec_dot_{f.type.name.lower()}_{kind}"), ctypes.c_size_t(0)
    for i in range(16):
        dot(k, dots[i:].ctypes, none, weights[i].ctypes, none, row.ctypes, none, 1)
    np.testing.assert_allclose(mul_mat(f, weights, x)[0], dots, rtol=0, atol=2e-6 * np.abs(dots).max())


@pytest.mark.skipif(not LEGACY, reason="no kernel for this processor")
@pytest.mark.parametrize("byte", BYTES)
@pytest.mark.parametrize("f", QUANTIZED, ids=lambda f: f.kernel)
def test_the_largest_sums_do_not_overflow(f, byte):
    """All products of a block have one sign, and the activations are at their bound: exact, as sums are integers.

    The scaled sums of some types with blocks of 256 have more than 24 bits.
    """
    k = f.n_inputs(128)
    weights = f.alike(8, k, byte)
    for sign in (1, -1):
        x = np.full((1, k), 127 * sign, np.float32)
        np.testing.assert_allclose(mul_mat(f, weights, x), f.product(weights, x), rtol=2e-7 if f.is_super else 0)


@pytest.mark.skipif(not LEGACY, reason="no kernel for this processor")
@pytest.mark.parametrize("f", [f for f in LEGACY if f.type == Type.NVFP4], ids=lambda f: f.kernel)
def test_all_scales(f):
    """Each byte is a scale. Two of them have no float in ggml's format."""
    weights = f.alike(256, 64, 0x12).reshape(256, 36)
    weights[:, :4] = np.arange(256)[:, None]
    x = np.full((1, 64), 127, np.float32)
    expected = f.product(weights, x)
    expected[:, 0x80:] = expected[:, :0x80]
    expected[:, 0xFF] = 64 * 1.5 * 127 * 240
    assert (mul_mat(f, weights, x) == expected).all()


@pytest.mark.skipif(not LEGACY, reason="no kernel for this processor")
@pytest.mark.parametrize("f", [f for f in LEGACY if f.type == Type.MXFP4], ids=lambda f: f.kernel)
def test_all_exponents(f):
    """The smallest exponents are no normal floats."""
    for exponent in range(240):
        weights = f.alike(8, 32, 0x77).reshape(8, -1, 17)
        weights[..., 0] = (exponent + np.arange(8)[:, None]) % 240
        weights = weights.reshape(8, -1)
        x = np.full((1, 32), 127, np.float32)
        assert (mul_mat(f, weights, x) == f.product(weights, x)).all()


@pytest.mark.skipif(not WITH_VNNI, reason="this processor has no VNNI, which only `make sanitize` emulates")
@pytest.mark.parametrize("f", WITH_VNNI, ids=lambda f: f.kernel)
@pytest.mark.parametrize("k", [32, 96, 2048])
def test_instruction_sets_agree_to_the_bit(f, k):
    """Sums of integers are exact, and float sums have one order."""
    rng, k = np.random.default_rng(k), f.n_inputs(k)
    avx2 = replace(f, kernel=f"{format_of(f.kernel)}/avx2")
    x = rng.standard_normal((19, k), dtype=np.float32) * 10.0 ** rng.uniform(-3, 3, k).astype(np.float32)
    some = [f.random(rng, 16, k), *(f.alike(16, k, byte) for byte in BYTES)]
    for weights in some:
        for rows in (x, np.full((1, k), -127, np.float32)):
            np.testing.assert_array_equal(mul_mat(f, weights, rows), mul_mat(avx2, weights, rows))
