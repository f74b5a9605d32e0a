"""Rewrite a GGUF head with its matrices in another type; norms, biases, d2t and all keys stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from gguf.quants import dequantize

from .. import _core
from .encoding import FILE_TYPES, OUTTYPES, type_of
from .gguf_file import key_values, open_gguf
from .output import OutTensor, temporary, write
from .tensors import Array

_WRITER_KEYS = ("general.architecture", "general.file_type", "general.quantization_version")


def quantize(source: str | Path, output: str | Path, outtype: str, *, progress: bool = False) -> Path:
    """Quantize a GGUF head.

    Args:
        source: a head in F32, F16, BF16 or any type that it should leave.
        output: the file to write.
        outtype: f32, f16, bf16, q8_0, q6_k, q4_k or q4_0.
        progress: show a bar.

    Raises:
        ModelFileError: `source` is not a readable head.
    """
    if outtype not in OUTTYPES:
        raise ValueError(f"expected an outtype of {', '.join(OUTTYPES)}, got {outtype!r}")
    arch = _core.read_head(str(source)).arch
    reader = open_gguf(source)
    with temporary(Path(output)) as part:
        writer = gguf.GGUFWriter(part, arch)
        writer.add_file_type(FILE_TYPES[outtype])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for entry in key_values(source, reader):
            if entry.key not in _WRITER_KEYS:
                writer.add_key_value(entry.key, entry.value, entry.kind, entry.sub_kind)
        write(writer, [_tensor(tensor, outtype) for tensor in reader.tensors], progress)
    return Path(output)


def _tensor(tensor: gguf.ReaderTensor, outtype: str) -> OutTensor:
    shape = tuple(int(n) for n in reversed(tensor.shape))
    if tensor.tensor_type in (GgmlType.I64, GgmlType.I32):
        kind = GgmlType.I64
    else:
        kind = type_of(shape, outtype)
    return OutTensor(tensor.name, shape, kind, _reader(tensor))


def _reader(tensor: gguf.ReaderTensor) -> Callable[[], Array]:
    def read() -> Array:
        if tensor.tensor_type in (GgmlType.I64, GgmlType.I32):
            return np.asarray(tensor.data, dtype=np.int64)
        return np.asarray(dequantize(tensor.data, tensor.tensor_type))

    return read
