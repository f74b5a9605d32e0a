"""Drafters' files with their weights in a type that is read faster: made once, and kept in the cache folder.

The target decides every token, so a drafter's bits change nothing but how often it is right.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, time
from typing import NamedTuple

import llama_cpp.llama_cpp as lib

from .._core import LoadGuard, read_weights
from ..errors import ModelFileError
from ..files.cache_dir import cache_dir
from ..files.fingerprint import fingerprint, header_fingerprint
from ..files.text_file import read_text
from ..files.whole_file import whole_file
from ..ggml_types import WEIGHT_TYPES, type_name
from ..log import without_details

_Q4_0 = WEIGHT_TYPES["q4_0"]
_FILE_TYPES = {
    "f32": lib.LLAMA_FTYPE_ALL_F32,
    "bf16": lib.LLAMA_FTYPE_MOSTLY_BF16,
    "q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q6_k": lib.LLAMA_FTYPE_MOSTLY_Q6_K,
    "q5_k": lib.LLAMA_FTYPE_MOSTLY_Q5_K_S,
    "q5_1": lib.LLAMA_FTYPE_MOSTLY_Q5_1,
    "q5_0": lib.LLAMA_FTYPE_MOSTLY_Q5_0,
    "q4_k": lib.LLAMA_FTYPE_MOSTLY_Q4_K_S,
    "q4_1": lib.LLAMA_FTYPE_MOSTLY_Q4_1,
    "q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "iq4_nl": lib.LLAMA_FTYPE_MOSTLY_IQ4_NL,
}
"""[name in WEIGHT_TYPES]: llama.cpp's ftype for a file of that type."""
_BITS = {"f32": 32, "bf16": 16, "q8_0": 8.5, "q6_k": 6.5625, "q5_k": 5.5, "q5_1": 6, "q5_0": 5.5, "q4_k": 4.5}
_BITS |= {"q4_1": 5, "q4_0": 4.5, "iq4_nl": 4.5}
"""[name in WEIGHT_TYPES]: bits of a weight."""
_SHARE_MIN = 0.25  # share of a file's bytes that must be wider, or a copy is not worth its room
_BITS_WORTH = 1.15 * _BITS["q4_0"]  # the least for which devices that read all types at their bytes gain
_N_BYTES_MIN = 16 << 20  # smaller drafters are not limited by reading their weights
_N_BYTES_KEPT = 8 << 30
"""Bytes of the folder: beyond them the copies that were not used for longest are removed."""
_N_BYTES_BUFFER = 256 << 20
_ABANDONED_SECONDS = 3600.0  # a part that nobody has written to for so long belongs to a process that was killed


class _Tensor(NamedTuple):
    name: str
    type: int
    n_weights: int
    n_bytes: int

    def is_wider(self, bits: float) -> bool:
        """Whether it has as many bits for a weight, or more."""
        return 8.0 * self.n_bytes >= bits * self.n_weights


def with_type(path: str, asked: int | None, on_cpu: bool, n_threads: int, log: Callable[[str], None]) -> str:
    """The path of a copy of a drafter's file with its wider weights in another type, which is made if it is missing.

    Args:
        path: a model's GGUF file, which llama.cpp loads.
        asked: the ggml type; F32 converts nothing. None: Q4_0, if it is read faster than what the file has. Our CPU
            kernels read it fastest of all (benchmarks/README.md); elsewhere bytes count.
        on_cpu: whether the drafter is computed by a CPU.
        n_threads: threads that convert.
        log: called with lines before and after weights are converted, or with the reason why they stay as they are.

    Returns:
        The copy, or `path` if none is worth it or can be made.

    Raises:
        ModelFileError: the file cannot be read.
    """
    wanted = _Q4_0 if asked is None else asked
    name = type_name(wanted)
    bits = _BITS[name]
    tensors = [_Tensor(*entry) for entry in read_weights(path)]
    wider = [t for t in tensors if t.type != wanted and t.is_wider(bits)]
    n_bytes, n_wider = sum(t.n_bytes for t in tensors), sum(t.n_bytes for t in wider)
    if n_wider < _SHARE_MIN * n_bytes or (asked is None and not _is_worth(tensors, on_cpu)):
        return path
    folder = cache_dir() / "drafters"
    copy = folder / f"{fingerprint(path)[:32]}-{name}.gguf"
    try:
        if copy.is_file():
            if _is_whole(copy):
                os.utime(_header_file(copy))  # it was used now; the copy keeps its time, by which its digest is known
                return str(copy)
            log(f"'{copy}' is damaged: it is made again")
        n_copy = n_bytes - n_wider + int(sum(t.n_weights for t in wider) * bits / 8)
        _make_room(folder, n_copy)
        log(
            f"converting the weights of '{path}' to {name.upper()} for drafting, once: {n_copy >> 20} MiB of "
            f"{n_bytes >> 20}, kept in '{folder}' (draft_type=\"f32\" leaves them as they are)"
        )
        begun = perf_counter()
        kept = {t.name: t.type for t in tensors if t.type != wanted and not t.is_wider(bits)}
        with whole_file(copy, path) as part:
            _quantize(path, part, _FILE_TYPES[name], kept, n_threads)
            header = header_fingerprint(part)
        with whole_file(_header_file(copy)) as part:
            part.write_text(header, encoding="ascii")
        log(f"converted in {perf_counter() - begun:.1f} s")
    except OSError as e:
        log(f"the drafter's weights stay as they are in '{path}': {e}")
        return path
    return str(copy)


def _is_whole(copy: Path) -> bool:
    """Whether a copy has the header that was written, and all of its tensors within the file."""
    try:
        read_weights(str(copy))
        return header_fingerprint(copy) == read_text(_header_file(copy))
    except (ModelFileError, OSError, ValueError):
        return False


def _header_file(copy: Path) -> Path:
    """The file with the digest of a copy's header: a damaged key would end each start."""
    return copy.with_suffix(".header")


def _is_worth(tensors: Sequence[_Tensor], on_cpu: bool) -> bool:
    n_bytes, n_weights = sum(t.n_bytes for t in tensors), sum(t.n_weights for t in tensors)
    return n_bytes >= _N_BYTES_MIN and (on_cpu or 8.0 * n_bytes > _BITS_WORTH * n_weights)


def _quantize(path: str, part: Path, file_type: int, kept: Mapping[str, int], n_threads: int) -> None:
    """Write a copy. kept: [tensor]: the type that it has and keeps. Raises OSError: llama.cpp cannot do it."""
    params = lib.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize, params.pure = n_threads, file_type, True, True
    params.max_buf_size = _N_BYTES_BUFFER
    overrides = (lib.llama_model_tensor_override * (len(kept) + 1))()  # a null pattern ends it
    for override, (name, kind) in zip(overrides, kept.items(), strict=False):
        override.pattern, override.type = f"^{re.escape(name)}$".encode(), kind
    if kept:
        params.tt_overrides = overrides
    with LoadGuard() as guard, without_details():
        failed = lib.llama_model_quantize(os.fsencode(path), os.fsencode(part), ctypes.byref(params))
    if failed:
        raise OSError(f"llama.cpp cannot convert them: {guard.reason}")


def _make_room(folder: Path, n_bytes: int) -> None:
    """Remove the copies that were not used for longest, until a new one has room.

    Raises:
        OSError: the disk has no room for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            if time() - part.stat().st_mtime > _ABANDONED_SECONDS:
                part.unlink()
    copies = sorted(
        folder.glob("*.gguf"), key=lambda copy: max(os.stat(f).st_mtime for f in folder.glob(f"{copy.stem}.*"))
    )
    n_all = n_bytes + sum(copy.stat().st_size for copy in copies)
    for copy in copies:
        if n_all <= _N_BYTES_KEPT:
            break
        n_all -= copy.stat().st_size
        with suppress(OSError):  # Windows keeps a file that is in use
            copy.unlink()
            _header_file(copy).unlink()
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise OSError(f"a copy needs {n_bytes >> 20} MiB, and the disk of '{folder}' has {free >> 20} MiB free")
