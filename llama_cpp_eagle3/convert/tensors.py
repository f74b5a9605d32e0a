"""A tensor of a checkpoint that is not read before it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# how the bytes of each element type are read; bfloat16 has no NumPy type and is widened to float32 afterwards
STORAGE_TYPES: dict[str, str] = {
    "f64": "<f8",
    "f32": "<f4",
    "f16": "<f2",
    "bf16": "<u2",
    "i64": "<i8",
    "i32": "<i4",
    "i16": "<i2",
    "i8": "<i1",
    "u8": "<u1",
    "bool": "<u1",
}

FLOAT_TYPES = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True)
class LazyTensor:
    """Shape and element type of a tensor, and how to read its raw elements (bfloat16 as uint16)."""

    shape: tuple[int, ...]
    dtype: str  # a key of STORAGE_TYPES
    read_raw: Callable[[], Array] = field(repr=False)

    def read(self) -> Array:
        """The values: float32 for all floating types, int64 for integers, bool."""
        raw = self.read_raw()
        if self.dtype == "bf16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        if self.dtype in FLOAT_TYPES:
            return raw.astype(np.float32)
        return raw.astype(np.bool_ if self.dtype == "bool" else np.int64)


def n_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Size of a tensor in its file."""
    n = np.dtype(STORAGE_TYPES[dtype]).itemsize
    for dim in shape:
        n *= dim
    return n
