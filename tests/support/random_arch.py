"""Tiny random targets of any architecture: llama.cpp names the tensors that it wants, and this module fills them.

Only the metadata (arch_keys.py) is written by hand. Models are a few megabytes at most.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

from arch_keys import N_VOCAB, Keys, arch_of, keys_of, row_of
from llama_cpp_eagle3_heads.convert.output import add_keys
from lowlevel import load_model
from tiny.vocab import add_vocab

__all__ = [
    "N_VOCAB",
    "all_archs",
    "load_random_arch",
    "make_tensors",
    "write_arch",
    "write_random_arch",
    "written_shape",
]

_N_MAX = 1 << 22  # values of a tensor
_LIB_DIR = Path(llama_cpp.llama_cpp._lib._name).parent


def all_archs() -> list[str]:
    """Return the names of all architectures, as libllama has them."""
    # vendor/llama.cpp/src/llama-arch.h: a C++ symbol that its shared library exports on Linux and macOS
    name_of = llama_cpp.llama_cpp._lib._Z13llm_arch_name8llm_arch
    name_of.restype, name_of.argtypes = ctypes.c_char_p, (ctypes.c_int,)
    names = [name_of(i).decode() for i in range(1000)]
    return names[: names.index("(unknown)")]


def _open(path: Path, arch: str, keys: Keys) -> gguf.GGUFWriter:
    """Begin a file with all metadata."""
    writer = gguf.GGUFWriter(path, arch)
    add_keys(writer, {key[1:] if key.startswith("/") else f"{arch}.{key}": value for key, value in keys.items()})
    add_vocab(writer, keys["vocab_size"])
    return writer


class _GgufInitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def _ggml() -> ctypes.CDLL:
    (file,) = (f for f in _LIB_DIR.glob("*ggml-base*") if f.suffix in (".so", ".dylib", ".dll"))
    lib = ctypes.CDLL(str(file))
    lib.gguf_init_from_file.restype = ctypes.c_void_p
    lib.gguf_init_from_file.argtypes = (ctypes.c_char_p, _GgufInitParams)
    lib.gguf_free.argtypes = (ctypes.c_void_p,)
    lib.ggml_get_name.restype = ctypes.c_char_p
    lib.ggml_get_name.argtypes = (ctypes.c_void_p,)
    return lib


class _Tensor(ctypes.Structure):
    """The beginning of a ggml_tensor."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4))


def random_tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return random numbers for a tensor, the same each time. shape: four numbers, rows of a matrix before columns."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    # a matrix makes its input a little larger, so that every part changes the logits
    std = 1.5 / np.sqrt(shape[3]) if shape[2] > 1 else 0.1
    data = rng.normal(0.0, std, shape).astype(np.float32)
    if "ssm_a" in name:
        data = -np.abs(data)  # a state must decay
    elif "norm" in name or "scale" in name:
        data += 1.0
    return data


def make_tensors(metadata: Path) -> dict[str, np.ndarray]:
    """Return all tensors that llama.cpp wants for this metadata, optional ones too, filled with random numbers."""
    lib = _ggml()
    tensors: dict[str, np.ndarray] = {}
    too_large: list[str] = []

    @llama_cpp.llama_model_set_tensor_data_t
    def fill(tensor: int, _: int) -> None:
        name = lib.ggml_get_name(tensor).decode()
        shape = tuple(ctypes.cast(tensor, ctypes.POINTER(_Tensor)).contents.ne)[::-1]
        if math.prod(shape) <= _N_MAX:
            tensors[name] = random_tensor(name, shape)
        else:
            too_large.append(name)

    header = lib.gguf_init_from_file(str(metadata).encode(), _GgufInitParams(True, None))
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mtp = True
    model: Any = llama_cpp.llama_model_init_from_user(header, fill, None, params)
    lib.gguf_free(header)
    if not model:
        raise ValueError(f"llama.cpp does not take the metadata in {metadata}")
    llama_cpp.llama_model_free(model)
    if too_large:
        raise ValueError(f"no tiny model: {', '.join(too_large)}")
    return tensors


def written_shape(data: np.ndarray) -> tuple[int, ...]:
    """Return the shape that a file has for a tensor: trailing dimensions of 1 are not written."""
    n_dims = max((i + 1 for i, n in enumerate(data.shape[::-1]) if n > 1), default=1)
    return data.shape[4 - n_dims :]


def write_random_arch(folder: Path, row: str) -> Path:
    """Write a random model of a row in arch_keys.py, if it is missing. Two calls make the same one."""
    path = folder / f"{row}.gguf"
    if path.exists():
        return path
    metadata = folder / f"{row}-keys.gguf"
    writer = _open(metadata, arch_of(row), keys_of(row))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    tensors = {n: data.reshape(written_shape(data)) for n, data in make_tensors(metadata).items()}
    without = row_of(row).without
    tensors = {n: t for n, t in tensors.items() if not n.endswith(without)}
    for name, wanted in row_of(row).more.items():
        tensors[name] = random_tensor(name, (1,) * (4 - len(wanted)) + wanted).reshape(wanted)
    if row_of(row).fused:
        tensors = _fused(tensors)
    return write_arch(path, arch_of(row), keys_of(row), tensors)


def _fused(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors with one matrix for queries, keys and values of each layer."""
    fused = {}
    for name, data in tensors.items():
        if name.endswith("attn_q.weight"):
            parts = [tensors[name.replace("attn_q", f"attn_{part}")] for part in "qkv"]
            fused[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
        elif not name.endswith(("attn_k.weight", "attn_v.weight")):
            fused[name] = data
    return fused


def write_arch(path: Path, arch: str, keys: Keys, tensors: dict[str, np.ndarray]) -> Path:
    """Write a model of this metadata and these tensors."""
    writer = _open(path, arch, keys)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load_random_arch(folder: Path, row: str) -> int:
    """Load such a model, and return its address."""
    return load_model(write_random_arch(folder, row), {})


def random_tensors(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of such a file by name, with the rows of a matrix first."""
    return {t.name: t.data.reshape(t.shape[::-1]) for t in gguf.GGUFReader(path).tensors}
