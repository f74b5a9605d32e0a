"""Kernels for Q4_0 match float64 and ggml, and a row does not depend on the other rows of its pass."""

import numpy as np
import pytest
from gguf.quants import Q4_0

from llama_cpp_eagle3 import Eagle3Error, _core

KERNELS = [name for name in _core.cpu_kernel_names() if name.startswith("q4_0x8/")]


def repack(weights: np.ndarray) -> bytes:
    """Return Q4_0 blocks (n, k / 32, 18) in the layout of ggml's block_q4_0x8: eight channels by 32 inputs."""
    n, n_blocks, _ = weights.shape
    groups = weights.reshape(n // 8, 8, n_blocks, 18).transpose(0, 2, 1, 3)  # group, block, channel
    scales = groups[..., :2].reshape(n // 8, n_blocks, 16)
    quants = (groups[..., 2:] ^ 0x88).reshape(n // 8, n_blocks, 8, 2, 8).transpose(0, 1, 3, 2, 4)
    return np.concatenate([scales, quants.reshape(n // 8, n_blocks, 128)], axis=-1).tobytes()


def quantized_rows(x: np.ndarray) -> np.ndarray:
    """Return activations as Q8_0 rounds them, in float64."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    peak = np.abs(blocks).max(-1, keepdims=True)
    scale = np.where(peak > 0, np.float32(127) / np.where(peak > 0, peak, np.float32(1)), np.float32(0))
    values = np.rint(blocks * scale.astype(np.float32))
    d = (peak / np.float32(127)).astype(np.float16).astype(np.float64)
    return (values * d).reshape(x.shape)


@pytest.mark.skipif(not KERNELS, reason="no kernel for this processor")
class TestKernel:
    @pytest.fixture(params=KERNELS)
    def kernel(self, request):
        return request.param

    @pytest.mark.parametrize("k", [32, 64, 96, 2048, 16384])
    @pytest.mark.parametrize("n", [8, 24, 64])
    def test_agrees_with_float64(self, kernel, k, n):
        rng = np.random.default_rng(k + n)
        x = rng.standard_normal((5, k), dtype=np.float32)
        weights = Q4_0.quantize(rng.standard_normal((n, k), dtype=np.float32))
        expected = quantized_rows(x) @ Q4_0.dequantize(weights).astype(np.float64).T
        got = _core.cpu_kernel_mul_mat(kernel, repack(weights.reshape(n, k // 32, 18)), x)
        # sums of k / 32 float32 products
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max() + 1e-5)

    def test_largest_values_do_not_overflow(self, kernel):
        """If all products of a block are at their largest, the sums in 16 bits are at their bound."""
        block = np.frombuffer(np.float16(1).tobytes() + bytes([0xFF] * 16), np.uint8)  # 7 in every element
        weights = np.tile(block, (8, 4, 1))
        for sign in (1, -1):
            x = np.full((1, 128), 127 * sign, np.float32)
            assert (_core.cpu_kernel_mul_mat(kernel, repack(weights), x) == 128 * 7 * 127 * sign).all()
        low = np.frombuffer(np.float16(1).tobytes() + bytes(16), np.uint8)  # -8 in every element
        x = np.full((1, 128), 127, np.float32)
        assert (_core.cpu_kernel_mul_mat(kernel, repack(np.tile(low, (8, 4, 1))), x) == 128 * -8 * 127).all()

    def test_a_row_does_not_depend_on_its_company(self, kernel):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((33, 512), dtype=np.float32)
        weights = repack(Q4_0.quantize(rng.standard_normal((64, 512), dtype=np.float32)).reshape(64, 16, 18))
        together = _core.cpu_kernel_mul_mat(kernel, weights, x)
        for n_rows in (1, 2, 3, 4, 5, 7, 8, 16):
            assert (_core.cpu_kernel_mul_mat(kernel, weights, x[:n_rows]) == together[:n_rows]).all()

    def test_zeros(self, kernel):
        weights = repack(Q4_0.quantize(np.ones((8, 32), np.float32)).reshape(8, 1, 18))
        assert (_core.cpu_kernel_mul_mat(kernel, weights, np.zeros((2, 32), np.float32)) == 0).all()

    def test_wrong_sizes_are_errors(self, kernel):
        with pytest.raises(Eagle3Error, match="multiple of 32"):
            _core.cpu_kernel_mul_mat(kernel, bytes(144), np.zeros((1, 33), np.float32))
        with pytest.raises(Eagle3Error, match="no multiple"):
            _core.cpu_kernel_mul_mat(kernel, bytes(145), np.zeros((1, 32), np.float32))
