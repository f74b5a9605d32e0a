"""Weights in the layouts that CPU kernels read, and activations as ggml's formats round them, in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from llama_cpp_eagle3 import _core

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class NewerType(IntEnum):
    """Types of ggml that the gguf package does not know yet."""

    Q2_0 = 42


_SIZES = {**gguf.GGML_QUANT_SIZES, NewerType.Q2_0: (64, 18)}
_FLOATS = (Type.F16, Type.BF16)
_GRIDS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
GRIDS = {int(Type[name]): Type[name] for name in _GRIDS}
"""The types whose weights are indices into a grid."""


@dataclass(frozen=True)
class Format:
    """The layout of one kernel's weights."""

    kernel: str
    type: Type | NewerType
    scales: int = 0
    """Half floats in a block: 0, a scale, or a scale and a minimum."""
    flip: int | None = None
    """The value that flips the bytes of ggml's eight interleaved channels in repacked weights; None = mapped."""

    @property
    def n_group(self) -> int:
        """A number of which the number of channels is a multiple."""
        return 1 if self.flip is None else 8

    @property
    def block(self) -> tuple[int, int]:
        """Values and bytes of a block."""
        return _SIZES[self.type]

    def n_inputs(self, k: int) -> int:
        """Return the next number from k on that fits the type."""
        n = max(32, self.block[0])
        return -(-k // n) * n

    @property
    def is_super(self) -> bool:
        """Whether rows have a scale for 256 inputs."""
        return self.block[0] == 256

    @property
    def n_head(self) -> int:
        """Bytes before a block's values: scales, or an exponent."""
        return 1 if self.type == Type.MXFP4 else 2 * self.scales

    def put_scales(self, blocks: Bytes, scales: npt.NDArray[np.float16]) -> None:
        """Write scales (..., `scales`) into blocks (..., bytes)."""
        halves = scales.view(np.uint8).reshape(*blocks.shape[:-1], self.n_head)
        if self.type == Type.IQ1_M:  # a nibble in each of four words
            nibbles = np.stack([halves[..., 0] & 15, halves[..., 0] >> 4, halves[..., 1] & 15, halves[..., 1] >> 4], -1)
            blocks[..., 49::2] = blocks[..., 49::2] & 15 | nibbles << 4
        else:
            at = -2 if self.type in (Type.TQ1_0, Type.TQ2_0) else 0
            blocks[..., at : at + self.n_head or None] = halves

    def random(self, rng: np.random.Generator, n: int, k: int) -> Bytes:
        """Return weights (n, bytes of a row) whose values are random in all bits."""
        if self.type in _FLOATS:
            return gguf.quants.quantize(rng.standard_normal((n, k), dtype=np.float32), self.type).view(np.uint8)
        n_values, n_bytes = self.block
        blocks = rng.integers(0, 256, (n, k // n_values, n_bytes), np.uint8)
        if self.type == Type.MXFP4:
            blocks[..., 0] = rng.integers(118, 130, blocks.shape[:2])
        elif self.scales:
            self.put_scales(blocks, rng.standard_normal((n, k // n_values, self.scales)).astype(np.float16))
        return blocks.reshape(n, -1)

    def alike(self, n: int, k: int, byte: int) -> Bytes:
        """Return weights whose values are all `byte`, and whose scales are 1."""
        n_values, n_bytes = self.block
        blocks = np.full((n, k // n_values, n_bytes), byte, np.uint8)
        if self.type == Type.MXFP4:
            blocks[..., 0] = 128
        elif self.type == Type.NVFP4:
            blocks[..., :4] = 0x38
        else:
            self.put_scales(blocks, np.ones((n, k // n_values, self.scales), np.float16))
        return blocks.reshape(n, -1)

    def stored(self, weights: Bytes) -> bytes:
        """Return the weights as the kernel reads them."""
        if self.flip is None:
            return weights.tobytes()
        n, n_bytes = len(weights), self.block[1]
        groups = weights.reshape(n // 8, 8, -1, n_bytes).transpose(0, 2, 1, 3)  # group, block, channel
        heads = groups[..., : self.n_head].reshape(*groups.shape[:2], -1)
        values = groups[..., self.n_head :] ^ self.flip
        values = values.reshape(*groups.shape[:3], 2, 8).swapaxes(2, 3).reshape(*groups.shape[:2], -1)
        return np.concatenate([heads, values], axis=-1).tobytes()

    def product(self, weights: Bytes, x: Floats) -> Doubles:
        """Return activations as ggml quantizes them for this type, times the weights."""
        w = dequantize(weights, self.type).astype(np.float64)
        if self.type in _FLOATS:
            return x.astype(np.float64) @ w.T
        if self.is_super:
            return super_quantized_rows(x) @ w.T
        rows, sums = quantized_rows(x)
        if self.scales < 2:
            return rows @ w.T
        heads = weights.reshape(len(weights), -1, self.block[1])[..., 2:4]
        minima = np.ascontiguousarray(heads).view(np.float16)[..., 0].astype(np.float64)
        return rows @ (w - np.repeat(minima, 32, -1)).T + sums @ minima.T


def dequantize(weights: Bytes, type: int) -> Floats:
    """Return rows of weights as floats, by the gguf package where it knows the type."""
    if type not in (Type.Q1_0, NewerType.Q2_0):
        return gguf.quants.dequantize(weights, Type(type))
    blocks = weights.reshape(len(weights), -1, _SIZES[type][1])
    d = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    n_bits = 1 if type == Type.Q1_0 else 2
    values = blocks[..., 2:, None] >> np.arange(0, 8, n_bits).astype(np.uint8) & (1 << n_bits) - 1
    signed = values.reshape(*blocks.shape[:2], -1).astype(np.float32)
    return (d * (2 * signed - 1 if n_bits == 1 else signed - 1)).reshape(len(weights), -1)


def quantized_rows(x: Floats) -> tuple[Doubles, Doubles]:
    """Return rows in Q8_0, and the sums of their blocks in Q8_1."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    peak = np.abs(blocks).max(-1, keepdims=True)
    scale = np.where(peak > 0, np.float32(127) / np.where(peak > 0, peak, np.float32(1)), np.float32(0))
    values = np.rint(blocks * scale.astype(np.float32))
    d = peak / np.float32(127)
    sums = (d * values.sum(-1, keepdims=True, dtype=np.float32)).astype(np.float16)[..., 0]
    return (values * d.astype(np.float16).astype(np.float64)).reshape(x.shape), sums.astype(np.float64)


def super_quantized_rows(x: Floats) -> Doubles:
    """Return rows in Q8_K."""
    blocks = x.reshape(*x.shape[:-1], -1, 256)
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
    scale = np.where(peak != 0, np.float32(-127) / np.where(peak != 0, peak, np.float32(1)), np.float32(0))
    values = np.minimum(np.rint(blocks * scale.astype(np.float32)), 127)
    d = np.where(peak != 0, np.float32(1) / np.where(peak != 0, scale, np.float32(1)), np.float32(0))
    return (values * d.astype(np.float64)).reshape(x.shape)


_LEGACY = (
    Format("q4_0x8", Type.Q4_0, 1, 0x88),
    Format("q4_0", Type.Q4_0, 1),
    Format("q4_1", Type.Q4_1, 2),
    Format("q5_0", Type.Q5_0, 1),
    Format("q5_1", Type.Q5_1, 2),
    Format("q8_0", Type.Q8_0, 1),
    Format("iq4_nlx8", Type.IQ4_NL, 1, 0),
    Format("iq4_nl", Type.IQ4_NL, 1),
    Format("iq4_xs", Type.IQ4_XS, 1),
    Format("mxfp4x8", Type.MXFP4, 0, 0),
    Format("mxfp4", Type.MXFP4),
    Format("nvfp4", Type.NVFP4),
    Format("q1_0", Type.Q1_0, 1),
    Format("q2_0", NewerType.Q2_0, 1),
    Format("tq1_0", Type.TQ1_0, 1),
    Format("tq2_0", Type.TQ2_0, 1),
    *(Format(type.name.lower(), type, 1) for type in GRIDS.values()),
    Format("f16", Type.F16),
    Format("bf16", Type.BF16),
)


def format_of(kernel: str) -> str:
    """Return a kernel's format: its name without the instruction set."""
    return kernel.partition("/")[0]


LEGACY = tuple(
    replace(f, kernel=name) for f in _LEGACY for name in _core.cpu_kernel_names() if format_of(name) == f.kernel
)
"""The formats of the kernels for this processor without K-quants."""
