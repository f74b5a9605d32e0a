"""Make random weights of which every part changes the result, and write them into a GGUF file."""

from __future__ import annotations

import gguf
import numpy as np

Weights = dict[str, np.ndarray]

FTYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}


class RandomWeights:
    """Draws matrices that keep the size of their input, so that no part of a model is negligible."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def matrix(self, n_out: int, n_in: int, gain: float = 1.0) -> np.ndarray:
        """Return a matrix [n_out, n_in] that multiplies the size of its input by `gain`."""
        return self.rng.normal(0.0, gain / np.sqrt(max(n_in, 1)), (n_out, n_in))

    def norm(self, n: int) -> np.ndarray:
        """Return weights of an RMSNorm, clearly different from all ones."""
        return self.rng.uniform(0.5, 1.5, n)

    def bias(self, n: int) -> np.ndarray:
        """Return a bias half as large as the values to which it is added."""
        return self.rng.normal(0.0, 0.5, n)


def file_type(name: str, array: np.ndarray, ftype: str) -> gguf.GGMLQuantizationType:
    """Return a tensor's type in the file: matrices are stored in `ftype`, vectors always in F32."""
    return FTYPES[ftype] if array.ndim == 2 else FTYPES["f32"]


def round_to_file(weights: Weights, ftype: str) -> Weights:
    """Return the weights as float64, rounded as in the file."""
    rounded = {}
    for name, array in weights.items():
        if array.dtype == np.int64:
            rounded[name] = array
            continue
        kind = file_type(name, array, ftype)
        data = array.astype(np.float32)
        if kind != FTYPES["f32"]:
            data = gguf.quants.dequantize(gguf.quants.quantize(data, kind), kind)
        rounded[name] = data.astype(np.float64)
    return rounded


def add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, ftype: str) -> None:
    """Add a tensor under its GGUF name; integers go as I64."""
    if array.dtype == np.int64:
        writer.add_tensor(name, array)
        return
    kind = file_type(name, array, ftype)
    data = np.ascontiguousarray(array, dtype=np.float32)
    if kind == FTYPES["f32"]:
        writer.add_tensor(name, data)
    elif kind == FTYPES["f16"]:
        writer.add_tensor(name, data.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)


def write_file(writer: gguf.GGUFWriter) -> None:
    """Write everything and close."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave_rope(array: np.ndarray, n_head: int, n_rot: int) -> np.ndarray:
    """Reorder the first `n_rot` rows of each head from halves (checkpoints) to pairs (GGUF)."""
    heads = array.reshape(n_head, -1, *array.shape[1:])
    rotated = heads[:, :n_rot].reshape(n_head, 2, n_rot // 2, *array.shape[1:]).swapaxes(1, 2)
    rotated = rotated.reshape(n_head, n_rot, *array.shape[1:])
    return np.concatenate([rotated, heads[:, n_rot:]], axis=1).reshape(array.shape)
