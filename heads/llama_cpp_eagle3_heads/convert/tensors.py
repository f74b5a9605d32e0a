"""A tensor of a checkpoint that is not read before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_cpp_eagle3.errors import ModelFileError

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
    source: str
    """What it is called in an error: its file and its name there."""

    def read(self) -> Array:
        """The values: float32 for all floating types, int64 for integers, bool.

        Raises:
            ModelFileError: numbers are NaN or infinite.
        """
        raw = self.read_raw()
        if self.dtype not in FLOAT_TYPES:
            return raw.astype(np.bool_ if self.dtype == "bool" else np.int64)
        is_bf16 = self.dtype == "bf16"
        values = (raw.astype(np.uint32) << 16).view(np.float32) if is_bf16 else raw.astype(np.float32)
        n_bad = values.size - int(np.count_nonzero(np.isfinite(values)))
        if n_bad:
            raise ModelFileError(
                f"{self.source}: {n_bad} of {values.size} numbers are NaN or infinite: the file is damaged, or its "
                "training diverged"
            )
        return values


def n_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Size of a tensor in its file."""
    n = np.dtype(STORAGE_TYPES[dtype]).itemsize
    for dim in shape:
        n *= dim
    return n


def is_copy(
    tensor: LazyTensor, n_vocab: int, rows: Callable[[Array], Array | None], all_of: Sequence[int] = ()
) -> bool:
    """Whether a matrix with a row for each token is only a copy of the target's.

    rows: returns rows of the target's matrix, None if it is not available. all_of: tokens whose rows must all be
    copies, in place of a sample of which nearly all must be.
    """
    n = min(tensor.shape[0], n_vocab)
    ids = np.array(sorted(i for i in all_of if i < n) if all_of else np.unique(np.linspace(0, n - 1, 64)), np.int64)
    theirs = rows(ids)
    if theirs is None or theirs.shape[-1] != tensor.shape[-1]:
        return False
    raw = tensor.read_raw()[ids]
    ours = (raw.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == "bf16" else raw.astype(np.float32)
    norm_ours, norm_theirs = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
    norms = norm_ours * norm_theirs
    alike = np.sum(ours * theirs, axis=1) > 0.97 * norms  # the target may be quantized
    if all_of:  # a row of zeros does not count in a sample; here it counts if only one of both has it
        return bool(np.all(np.where(norms > 0, alike, norm_ours == norm_theirs)))
    used = norms > 0
    return bool(used.any() and np.mean(alike[used]) > 0.9)
