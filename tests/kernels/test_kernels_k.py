"""Kernels for K-quants match float64, and a row does not depend on the other rows of its pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

import random_model
from kernel_formats import format_of
from llama_cpp_eagle3 import Eagle3Error, _core

QK = 256
Blocks = npt.NDArray[np.uint8]  # (n, n_blocks, bytes of a block)


def repack_q4_k(blocks: Blocks) -> bytes:
    """Return blocks in the layout of ggml's block_q4_Kx8: eight channels by 256 inputs."""
    n, n_blocks, _ = blocks.shape
    groups = blocks.reshape(n // 8, 8, n_blocks, 144).transpose(0, 2, 1, 3)  # group, block, channel
    packed = groups[..., 4:16]
    low, low_min, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, rest & 15 | low >> 6 << 4], -1)  # scales of the eight sub-blocks
    mins = np.concatenate([low_min & 63, rest >> 4 | low_min >> 6 << 4], -1)
    # swap channels and sub-blocks
    scales, mins = scales.swapaxes(-1, -2), mins.swapaxes(-1, -2)
    first = scales[..., :4] | scales[..., 4:] >> 4 << 6
    second = mins[..., :4] | mins[..., 4:] >> 4 << 6
    third = scales[..., 4:] & 15 | (mins[..., 4:] & 15) << 4
    quants = groups[..., 16:].reshape(n // 8, n_blocks, 8, 16, 8).swapaxes(2, 3)
    parts = [groups[..., :2], groups[..., 2:4], np.concatenate([first, second, third], -1), quants]
    return np.concatenate([part.reshape(n // 8, n_blocks, -1) for part in parts], -1).tobytes()


def repack_q2_k(blocks: Blocks) -> bytes:
    """Return blocks in the layout of ggml's block_q2_Kx8."""
    n, n_blocks, _ = blocks.shape
    groups = blocks.reshape(n // 8, 8, n_blocks, 84).transpose(0, 2, 1, 3)  # group, block, channel
    scales = groups[..., :16].reshape(n // 8, n_blocks, 8, 8, 2).swapaxes(2, 3)  # pairs of sub-blocks
    quants = groups[..., 16:80].reshape(n // 8, n_blocks, 8, 8, 8).swapaxes(2, 3)
    parts = [groups[..., 80:82], groups[..., 82:], scales, quants]
    return np.concatenate([part.reshape(n // 8, n_blocks, -1) for part in parts], -1).tobytes()


@dataclass(frozen=True)
class Format:
    type: gguf.GGMLQuantizationType
    d: int  # offset of a block's scale of scales
    scales: slice
    has_min: bool  # whether the scale of mins is after d
    repack: Callable[[Blocks], bytes] | None = None

    @property
    def n_channels(self) -> int:
        return 8 if self.repack else 1

    @property
    def block_size(self) -> int:
        return gguf.GGML_QUANT_SIZES[self.type][1]

    def random(self, rng: np.random.Generator, n: int, k: int) -> Blocks:
        """Return random bytes with scales of both signs."""
        blocks = rng.integers(0, 256, (n, k // QK, self.block_size), dtype=np.uint8)
        return self.with_d(blocks, rng.normal(0, 0.01, (n, k // QK, 1 + self.has_min)))

    def with_d(self, blocks: Blocks, d: npt.ArrayLike) -> Blocks:
        """Return the blocks with these scales of scales, and of mins."""
        size = 2 * (1 + self.has_min)
        values = np.broadcast_to(np.asarray(d, np.float16), (*blocks.shape[:2], 1 + self.has_min))
        blocks[..., self.d : self.d + size] = np.ascontiguousarray(values).view(np.uint8)
        return blocks

    def stored(self, blocks: Blocks) -> bytes:
        """Return the bytes as the kernel reads them."""
        return self.repack(blocks) if self.repack else blocks.tobytes()

    def values(self, blocks: Blocks) -> npt.NDArray[np.float64]:
        """Return the blocks' values."""
        return gguf.quants.dequantize(blocks.reshape(len(blocks), -1), self.type).astype(np.float64)


TYPE = gguf.GGMLQuantizationType
FORMATS = {
    "q4_Kx8": Format(TYPE.Q4_K, 0, slice(4, 16), True, repack_q4_k),
    "q4_K": Format(TYPE.Q4_K, 0, slice(4, 16), True),
    "q6_K": Format(TYPE.Q6_K, 208, slice(192, 208), False),
    "q5_K": Format(TYPE.Q5_K, 0, slice(4, 16), True),
    "q3_K": Format(TYPE.Q3_K, 108, slice(96, 108), False),
    "q2_Kx8": Format(TYPE.Q2_K, 80, slice(0, 16), True, repack_q2_k),
    "q2_K": Format(TYPE.Q2_K, 80, slice(0, 16), True),
}
KERNELS = [name for name in _core.cpu_kernel_names() if format_of(name) in FORMATS]
WITH_VNNI = [name for name in KERNELS if "vnni" in name or "amx" in name]

pytestmark = pytest.mark.skipif(not KERNELS, reason="no kernel for this processor")


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def fmt(kernel: str) -> Format:
    return FORMATS[format_of(kernel)]


def quantized_rows(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return activations as Q8_K rounds them."""
    blocks = x.reshape(*x.shape[:-1], -1, QK)
    peak = np.abs(blocks).max(-1, keepdims=True)
    scale = np.where(peak > 0, np.float32(127) / np.where(peak > 0, peak, np.float32(1)), np.float32(0))
    d = np.where(peak > 0, np.float32(1) / np.where(peak > 0, scale, np.float32(1)), np.float32(0))
    return (np.rint(blocks * scale) * d.astype(np.float64)).reshape(x.shape)


def mul_mat(kernel: str, blocks: Blocks, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return _core.cpu_kernel_mul_mat(kernel, FORMATS[format_of(kernel)].stored(blocks), x)


@pytest.mark.parametrize("k", [256, 512, 768, 2048, 16384])
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5, 13])
def test_agrees_with_float64(kernel: str, fmt: Format, k: int, groups: int) -> None:
    rng = np.random.default_rng(k + groups)
    # blocks of very different size, and one of zeros
    x = rng.standard_normal((37, k), dtype=np.float32) * np.repeat(10.0 ** rng.uniform(-3, 1, k // QK), QK)
    x[1, :QK] = 0
    x = x.astype(np.float32)
    blocks = fmt.random(rng, groups * fmt.n_channels, k)
    expected = quantized_rows(x) @ fmt.values(blocks).T
    # sums of k / 256 float32 products, of scales and of mins, whose parts may be larger than their difference
    size = np.abs(quantized_rows(x)) @ np.abs(fmt.values(blocks)).T
    assert (np.abs(mul_mat(kernel, blocks, x) - expected) <= 1e-6 * size + 1e-12).all()


@pytest.mark.parametrize("quants", [0x00, 0xFF, 0x55, 0xAA])
@pytest.mark.parametrize("scales", [0x00, 0x7F, 0x80, 0xFF])
def test_largest_values_do_not_overflow(kernel: str, fmt: Format, quants: int, scales: int) -> None:
    """Sums in 16 bits are at their bounds, saturated if any can be."""
    blocks = np.full((8, 4, fmt.block_size), quants, np.uint8)
    blocks[..., fmt.scales] = scales
    fmt.with_d(blocks, 1)
    k = 4 * QK
    signs = np.array([np.ones(k), -np.ones(k), np.where(np.arange(k) % 64 < 32, 1, -1)] * 11, np.float32)
    for d in ((1, 1), (1, 0), (0, 1)) if fmt.has_min else ((1,),):
        fmt.with_d(blocks, d)
        expected = 127.0 * signs.astype(np.float64) @ fmt.values(blocks).T
        # whole numbers, rounded once per block and once per sum
        got = mul_mat(kernel, blocks, 127 * signs)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(127 * fmt.values(blocks)).sum(-1).max())


def test_a_row_does_not_depend_on_its_company(kernel: str, fmt: Format) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((165, 512), dtype=np.float32)
    blocks = fmt.random(rng, 40, 512)
    together = mul_mat(kernel, blocks, x)
    for n_rows in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 32, 33, 64, 71, 128, 129):
        assert (mul_mat(kernel, blocks, x[:n_rows]) == together[:n_rows]).all()
        assert (mul_mat(kernel, blocks, x[-n_rows:]) == together[-n_rows:]).all()


@pytest.mark.parametrize("n_rows", [3, 14, 33])
def test_a_channel_does_not_depend_on_its_company(kernel: str, fmt: Format, n_rows: int) -> None:
    """A thread may begin and end at any group of channels. Few rows and many may have loops of their own."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_rows, 512), dtype=np.float32)
    blocks = fmt.random(rng, 11 * fmt.n_channels, 512)
    together = mul_mat(kernel, blocks, x)
    for first, last in ((0, 1), (1, 3), (2, 11), (5, 10), (10, 11)):
        part = slice(first * fmt.n_channels, last * fmt.n_channels)
        assert (mul_mat(kernel, blocks[part], x) == together[:, part]).all()


@pytest.mark.parametrize("mapped", ["q2_K", "q4_K"])
def test_layouts_of_a_type_agree_to_the_bit(mapped: str) -> None:
    rng = np.random.default_rng(0)
    blocks = FORMATS[mapped].random(rng, 16, 1024)
    x = rng.standard_normal((38, 1024), dtype=np.float32)
    first, *others = [mul_mat(name, blocks, x) for name in KERNELS if format_of(name) in (mapped, f"{mapped}x8")]
    assert others
    assert all((result == first).all() for result in others)


@pytest.mark.skipif(not WITH_VNNI, reason="this processor has no VNNI, which only `make sanitize` emulates")
@pytest.mark.parametrize("name", WITH_VNNI)
def test_instruction_sets_agree_to_the_bit(name: str) -> None:
    """Sums of integers are exact, and float sums have one order."""
    rng = np.random.default_rng(0)
    fmt, avx2 = FORMATS[format_of(name)], f"{format_of(name)}/avx2"
    for n_blocks in (1, 3, 8):
        k = n_blocks * QK
        x = rng.standard_normal((51, k), dtype=np.float32) * 10.0 ** rng.uniform(-3, 3, k).astype(np.float32)
        some = [fmt.random(rng, 24, k)]  # one and a half times what AVX-512 takes together
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            some.append(fmt.with_d(np.full_like(some[0], byte), 1))
        for blocks in some:
            for rows in (x, np.full((1, k), -127, np.float32)):
                np.testing.assert_array_equal(mul_mat(name, blocks, rows), mul_mat(avx2, blocks, rows))


def test_zeros(kernel: str, fmt: Format) -> None:
    rng = np.random.default_rng(0)
    assert (mul_mat(kernel, fmt.random(rng, 8, 512), np.zeros((2, 512), np.float32)) == 0).all()
    nothing = fmt.with_d(fmt.random(rng, 8, 512), 0)
    assert (mul_mat(kernel, nothing, np.ones((2, 512), np.float32)) == 0).all()


def test_wrong_sizes_are_errors(kernel: str, fmt: Format) -> None:
    size = fmt.block_size * fmt.n_channels
    with pytest.raises(Eagle3Error, match="multiple of 256"):
        _core.cpu_kernel_mul_mat(kernel, bytes(size), np.zeros((1, 288), np.float32))
    with pytest.raises(Eagle3Error, match="no multiple"):
        _core.cpu_kernel_mul_mat(kernel, bytes(size + 1), np.zeros((1, 256), np.float32))


# ggml repacks Q2_K on processors with AVX-512
HAS_AVX512 = b"AVX512 = 1" in llama_cpp.llama_print_system_info()
USED = {
    "Q4_K_M": {"q4_Kx8", "q6_K"},
    "Q5_K_M": {"q5_K", "q6_K"},
    "Q6_K": {"q6_K"},
    "Q3_K": {"q3_K"},
    "Q2_K": {"q2_Kx8" if HAS_AVX512 else "q2_K"},
}


def first_logits(llm: llama_cpp.Llama, n_rows: int) -> npt.NDArray[np.float32]:
    """Return the logits of the first row of a pass over n_rows tokens."""
    llm.reset()
    llm.eval(list(range(10, 10 + n_rows)))
    return np.array(llm.scores[0])


@pytest.mark.parametrize("ftype", USED)
def test_logits_are_those_of_ggml(tmp_path: Path, ftype: str) -> None:
    path = tmp_path / "target.gguf"
    random_model.write_target(path, random_model.SHAPES["tiny"], ftype)
    with closing(llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False)) as llm:
        ggml = first_logits(llm, 1)
        matrices = _core.model_matrices(int(llm._model.model))
        kernels = _core.CpuKernels(matrices, dict.fromkeys(_core.cpu_kernel_names(), 16))
        try:
            assert {format_of(name) for name in kernels.n_weights} == USED[ftype]
            ours = first_logits(llm, 1)
            # a sum that differs in its last bit may round an activation of the next layer the other way
            assert np.abs(ours - ggml).max() <= 0.01 * np.abs(ggml).max()
            for n_rows in (2, 3, 4, 7, 16):
                assert (first_logits(llm, n_rows) == ours).all()
        finally:
            kernels.close()
