"""Rewrite a GGUF head with its matrices in another type, or for fewer tokens; all else stays as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from gguf.quants import dequantize

from llama_cpp_eagle3 import _core

from .draft_vocab import draft_ids, is_offset, rows_to_keep
from .encoding import FILE_TYPES, OUTTYPES, type_of
from .gguf_file import key_values, open_gguf
from .output import OutTensor, temporary, write
from .tensors import Array

_WRITER_KEYS = ("general.architecture", "general.file_type", "general.quantization_version")


def quantize(
    source: str | Path,
    output: str | Path,
    outtype: str,
    *,
    draft_vocab: int | None = None,
    counts: Counter[int] | None = None,
    progress: bool = False,
) -> Path:
    """Quantize a GGUF head.

    Args:
        source: a head in F32, F16, BF16 or any type that it should leave.
        output: the file to write.
        outtype: f32, f16, bf16, q8_0, q6_k, q4_k or q4_0. Q8_0 and Q4_0 stay as they are if they are asked for again.
        draft_vocab: how many tokens the head will draft, fewer than it does.
        counts: how often tokens of the target occur, see `count_tokens`: the most frequent ones are kept. Without it
            those with low ids are, which byte-level BPE gives to frequent ones.
        progress: show a bar.

    Raises:
        ModelFileError: `source` is not a readable head, or has no lm_head whose rows could be left out; `output` is
            `source`, or cannot be written.
    """
    if outtype not in OUTTYPES:
        raise ValueError(f"expected an outtype of {', '.join(OUTTYPES)}, got {outtype!r}")
    arch = _core.read_head(str(source)).arch
    reader = open_gguf(source)
    rows = d2t = None
    if draft_vocab is not None:
        ids = draft_ids(source, reader)
        rows = rows_to_keep(ids, counts or Counter(), draft_vocab)
        d2t = ids[rows] - (np.arange(len(rows)) if is_offset(source) else 0)
    with temporary(Path(output), source) as part:
        writer = gguf.GGUFWriter(part, arch)
        writer.add_file_type(FILE_TYPES[outtype])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for entry in key_values(source, reader):
            if entry.key not in _WRITER_KEYS:
                writer.add_key_value(entry.key, entry.value, entry.kind, entry.sub_kind)
        tensors = [_tensor(t, outtype, rows if t.name == "output.weight" else None) for t in reader.tensors]
        if d2t is not None:
            tensors = [t for t in tensors if t.name != "d2t"]
            tensors.append(OutTensor("d2t", d2t.shape, GgmlType.I64, lambda: d2t))
        write(writer, tensors, progress)
    return Path(output)


def _tensor(tensor: gguf.ReaderTensor, outtype: str, rows: Array | None) -> OutTensor:
    shape = tuple(int(n) for n in reversed(tensor.shape))
    if rows is not None:
        shape = (len(rows), *shape[1:])
    if tensor.tensor_type in (GgmlType.I64, GgmlType.I32):
        kind = GgmlType.I64
    else:
        kind = type_of(shape, outtype)
    return OutTensor(tensor.name, shape, kind, _reader(tensor, slice(None) if rows is None else rows))


def _reader(tensor: gguf.ReaderTensor, rows: Array | slice) -> Callable[[], Array]:
    def read() -> Array:
        if tensor.tensor_type in (GgmlType.I64, GgmlType.I32):
            return np.asarray(tensor.data, dtype=np.int64)
        return np.asarray(dequantize(tensor.data[rows], tensor.tensor_type))

    return read
