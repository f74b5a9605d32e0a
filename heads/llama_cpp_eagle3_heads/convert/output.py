"""Writes GGUF files whole or not at all: tensor by tensor to a temporary file, which is then renamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from tqdm import tqdm

from llama_cpp_eagle3.errors import ModelFileError
from llama_cpp_eagle3.files.whole_file import whole_file

from .encoding import encode
from .tensors import Array


@dataclass(frozen=True)
class OutTensor:
    """A tensor of a file to write: its values are made when it is written."""

    name: str
    shape: tuple[int, ...]
    kind: GgmlType
    values: Callable[[], Array] = field(repr=False)
    is_encoded: bool = False
    """Whether the values are the bytes of the type already."""

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        return int(int(np.prod(self.shape)) // block * size)


@contextmanager
def temporary(path: Path, *inputs: str | Path) -> Iterator[Path]:
    """A file beside `path` that replaces it if the block succeeds, and is removed if not.

    inputs: files that are read in the block, which the output must not be.
    """
    if not path.parent.is_dir():
        raise ModelFileError(f"'{path}': no such folder to write to")
    with ExitStack() as stack:
        try:
            part = stack.enter_context(whole_file(path, *inputs))
        except OSError as e:
            raise ModelFileError(f"'{path}': cannot write there: {e.strerror}") from e
        yield part


def add_keys(writer: gguf.GGUFWriter, keys: Mapping[str, object]) -> None:
    """Add metadata, each key with the type that llama.cpp reads a value of its Python type as: u32, f32, bool, string,
    or an array."""
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list | tuple):
            writer.add_array(key, value)
        else:
            raise TypeError(f"key '{key}': expected a bool, int, float, str or list, found {value!r}")


def write(writer: gguf.GGUFWriter, tensors: list[OutTensor], progress: bool) -> None:
    """Write header and tensors; at most one tensor is in memory at a time."""
    try:
        for tensor in tensors:
            dtype = np.dtype(np.int64 if tensor.kind == GgmlType.I64 else np.float32)
            writer.add_tensor_info(tensor.name, tensor.shape, dtype, tensor.n_bytes, raw_dtype=tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        total = sum(tensor.n_bytes for tensor in tensors)
        with tqdm(total=total, unit="B", unit_scale=True, desc="writing", disable=not progress) as bar:
            for tensor in tensors:
                values = tensor.values()
                is_done = tensor.is_encoded or tensor.kind == GgmlType.I64
                data = np.ascontiguousarray(values) if is_done else encode(values, tensor.kind)
                writer.write_tensor_data(data)
                bar.update(tensor.n_bytes)
    finally:
        writer.close()
