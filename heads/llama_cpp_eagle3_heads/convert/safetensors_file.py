"""Read a safetensors file by memory map: a JSON header and raw bytes, bfloat16 included, no other package needed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from llama_cpp_eagle3.errors import ModelFileError

from .tensors import STORAGE_TYPES, Array, LazyTensor, n_bytes

_MAX_HEADER = 100 * 1024 * 1024  # what the safetensors library itself accepts


def read_safetensors(path: Path) -> dict[str, LazyTensor]:
    """All tensors of the file, after checking that each lies inside it."""
    size = path.stat().st_size
    header = _read_header(path, size)
    start = size - header.pop("__data_size__")
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            tensors[name] = _tensor(path, name, entry, start, size)
    return tensors


def _read_header(path: Path, size: int) -> dict[str, Any]:
    with path.open("rb") as file:
        prefix = file.read(8)
        n = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if n < 2 or n > _MAX_HEADER:
            raise ModelFileError(f"'{path}': not a safetensors file")
        if 8 + n > size:
            raise ModelFileError(f"'{path}': truncated: the header ends at byte {8 + n}, the file has {size}")
        text = file.read(n)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ModelFileError(f"'{path}': not a safetensors file: its header is not JSON") from e
    if not isinstance(header, dict):
        raise ModelFileError(f"'{path}': not a safetensors file: its header is not a table")
    header["__data_size__"] = size - 8 - n
    return header


def _tensor(path: Path, name: str, entry: Any, start: int, size: int) -> LazyTensor:
    try:
        shape = tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
        dtype = str(entry["dtype"]).lower()
    except (KeyError, TypeError, ValueError, OverflowError) as e:
        raise ModelFileError(f"'{path}': tensor '{name}': its description in the header is broken") from e
    if dtype not in STORAGE_TYPES:
        raise ModelFileError(
            f"'{path}': tensor '{name}': type {entry['dtype']} is not supported, expected floats of 16 to 64 bits; "
            "convert a checkpoint that is not quantized"
        )
    if min(shape, default=0) < 0 or begin < 0 or end - begin != n_bytes(shape, dtype):
        raise ModelFileError(
            f"'{path}': tensor '{name}': {n_bytes(shape, dtype)} bytes expected for shape {list(shape)}, "
            f"found {end - begin}"
        )
    if start + end > size:
        raise ModelFileError(f"'{path}': truncated: tensor '{name}' ends at byte {start + end}, the file has {size}")

    def read_raw() -> Array:
        if end == begin:
            return np.zeros(shape, STORAGE_TYPES[dtype])
        return np.memmap(path, np.dtype(STORAGE_TYPES[dtype]), "r", start + begin, shape or (1,)).reshape(shape)

    return LazyTensor(shape, dtype, read_raw, f"'{path}': tensor '{name}'")
