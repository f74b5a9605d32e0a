"""Read the tensors of a `pytorch_model.bin` without PyTorch and without running code of the file.

A checkpoint saved by torch >= 1.6 is a zip archive: a pickle that describes the tensors, and one uncompressed entry per
storage. The pickle may name the few things below; everything else, code above all, is refused.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llama_cpp_eagle3.errors import ModelFileError

from .tensors import STORAGE_TYPES, Array, LazyTensor

_STORAGES = {
    "DoubleStorage": "f64",
    "FloatStorage": "f32",
    "HalfStorage": "f16",
    "BFloat16Storage": "bf16",
    "LongStorage": "i64",
    "IntStorage": "i32",
    "ShortStorage": "i16",
    "CharStorage": "i8",
    "ByteStorage": "u8",
    "BoolStorage": "bool",
}


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild_tensor(storage: Any, offset: int, shape: Any, strides: Any, *_unused: Any) -> _Tensor:
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _rebuild_parameter(data: Any, *_unused: Any) -> Any:
    return data


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch", "Size"): tuple,
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
}


class _Unpickler(pickle.Unpickler):
    path: Path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise ModelFileError(
                f"'{self.path}': refused: its pickle asks for '{module}.{name}', which is not a tensor"
            ) from None

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key = pid[:3]
        if kind != "storage" or dtype not in STORAGE_TYPES:
            raise ModelFileError(f"'{self.path}': a storage of an unknown kind: {kind!r}, {dtype!r}")
        return _Storage(str(key), dtype)


def read_torch_file(path: Path) -> dict[str, LazyTensor]:
    """All tensors of the file. Only the pickle is read; values are read when they are needed."""
    return {name: value for name, value in read_torch_table(path).items() if isinstance(value, LazyTensor)}


def read_torch_table(path: Path) -> dict[str, Any]:
    """The table that a file holds, by name: tensors as `LazyTensor`, and plain values.

    Raises:
        ModelFileError: the file is damaged, holds no table, or asks for code.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as e:
        raise ModelFileError(
            f"'{path}': not a readable checkpoint of torch >= 1.6: truncated, or saved in the old format (load it with "
            "torch and save it again)"
        ) from e
    with archive:
        sizes = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in sizes if name.endswith("/data.pkl") or name == "data.pkl"]
        if len(pickles) != 1:
            raise ModelFileError(f"'{path}': not a torch checkpoint: the archive has no 'data.pkl'")
        root = pickles[0].removesuffix("data.pkl")
        state = _unpickle(path, archive, pickles[0])
        if not isinstance(state, dict):
            raise ModelFileError(f"'{path}': expected a table of tensors, found {type(state).__name__}")
        return {
            str(name): _lazy(path, root, sizes, str(name), value) if isinstance(value, _Tensor) else value
            for name, value in state.items()
        }


def _unpickle(path: Path, archive: zipfile.ZipFile, entry: str) -> Any:
    try:
        with archive.open(entry) as file:
            unpickler = _Unpickler(file)
            unpickler.path = path
            return unpickler.load()
    except ModelFileError:
        raise
    except Exception as e:  # a damaged pickle can raise anything
        raise ModelFileError(f"'{path}': its pickle cannot be read: {e}") from e


def _lazy(path: Path, root: str, sizes: dict[str, zipfile.ZipInfo], name: str, tensor: _Tensor) -> LazyTensor:
    if not isinstance(tensor.storage, _Storage) or len(tensor.shape) != len(tensor.strides):
        raise ModelFileError(f"'{path}': tensor '{name}': its description is broken")
    dtype = np.dtype(STORAGE_TYPES[tensor.storage.dtype])
    entry = f"{root}data/{tensor.storage.key}"
    info = sizes.get(entry)
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    n_elements = 0 if 0 in tensor.shape else last + 1
    if min(*tensor.shape, *tensor.strides, tensor.offset, 0) < 0:
        raise ModelFileError(f"'{path}': tensor '{name}': negative sizes")
    if info is None or info.file_size < n_elements * dtype.itemsize:
        found = "nothing" if info is None else f"{info.file_size} bytes"
        raise ModelFileError(
            f"'{path}': tensor '{name}': {n_elements * dtype.itemsize} bytes expected in '{entry}', found {found}"
        )
    return LazyTensor(
        tensor.shape, tensor.storage.dtype, _reader(path, entry, dtype, tensor), f"'{path}': tensor '{name}'"
    )


def _reader(path: Path, entry: str, dtype: np.dtype[Any], tensor: _Tensor) -> Callable[[], Array]:
    def read_raw() -> Array:
        with zipfile.ZipFile(path) as archive:
            try:
                storage = np.frombuffer(archive.read(entry), dtype)
            except (zipfile.BadZipFile, EOFError) as e:
                raise ModelFileError(f"'{path}': '{entry}' is damaged: {e}") from e
        strides = tuple(s * dtype.itemsize for s in tensor.strides)
        return np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, strides, writeable=False)

    return read_raw
