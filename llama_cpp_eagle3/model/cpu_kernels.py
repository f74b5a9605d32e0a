"""Which of our CPU kernels multiply a model's weights, and up to how many rows: by the argument, or as measured.

Our kernels and ggml's sum in different orders, so the text depends on which of them compute. A kernel is therefore
measured once per machine, and the decision is kept for all processes, models and numbers of threads. If other programs
disturbed the measuring, nothing is decided: ours compute, prompts too except with `_PROMPTS_OF_GGML`, and the next
process measures again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._core import cpu_kernel_names, cpu_kernel_shapes, time_cpu_kernels
from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..draft.costs import implausible, machine
from ..files.cache_dir import cache_dir

N_ROWS_MAX = 64
"""With "auto", ggml computes operations of more rows if it was measured to be faster (kernels/attention.h)."""
_N_ROWS_ANY = 1 << 30

Times = Mapping[int, tuple[float, float]]
"""[rows]: microseconds by our kernel and by ggml."""

_WEIGHTS = {1: 4, 2: 1, 4: 2, 8: 2, 16: 1}
"""[rows]: weight in the decision. Text without a draft takes passes of one row, drafts take two to sixteen."""
_N_ROWS_PROMPTS = (128, 512)
"""Rows of a chunk beside other sequences, and llama.cpp's n_ubatch, which is left out if there is too little time."""
_PROMPTS_OF_GGML = ("f16/avx2",)
"""Those of the kernels with AVX2 that were slower at prompts than ggml's: on an AMD EPYC (Zen 3), 2026-11-27,
by CPU time (benchmarks/README.md, "Prompts by format")."""
_N_VALUES_MIN = 1 << 22  # products with fewer weights are not limited by reading these
_FORMAT = 3


def decide(times: Times) -> int:
    """Up to how many rows a kernel is used; 0: never.

    Either ours or ggml's compute all passes of up to N_ROWS_MAX rows, so that a row's sums never depend on how many
    there are: those that are faster by the weighted mean of passes of up to 16 rows.
    """
    known = {n: weight for n, weight in _WEIGHTS.items() if n in times}
    if sum(w * times[n][0] / times[n][1] for n, w in known.items()) > sum(known.values()):
        return 0
    prompts = [times[n][0] / times[n][1] for n in _N_ROWS_PROMPTS if n in times]
    return _N_ROWS_ANY if sum(prompts) <= len(prompts) else N_ROWS_MAX


def fastest(names: Sequence[str]) -> list[str]:
    """Measure a format's first kernel; the others only if it is faster than ggml's."""
    formats: dict[str, str] = {}
    for name in names:
        formats.setdefault(name.partition("/")[0], name)
    return list(formats.values())


def is_doubtful(times: Times) -> bool:
    """Whether other programs disturbed measuring: more rows took much less than one, or much longer than in parts.

    Or the time was too short for all numbers of rows that count, which take a fraction of it on a quiet machine.
    """
    sides = [{n: pair[i] for n, pair in times.items()} for i in (0, 1)]
    return not _WEIGHTS.keys() <= times.keys() or any(implausible(side) for side in sides)


def gain(times: Times) -> float:
    """How many times as fast as ggml's our kernel is, by the same mean."""
    known = {n: weight for n, weight in _WEIGHTS.items() if n in times}
    return sum(known.values()) / sum(w * times[n][0] / times[n][1] for n, w in known.items())


class KernelChoice:
    """The decisions for the weights of a target and its drafters."""

    def __init__(self, mode: str, seconds: float = 1.0):
        """mode: auto, on or off. seconds: about how long measuring may take."""
        self.mode = mode
        self.times: dict[str, Times] = {}
        """Times of the kernels that were measured, now or before."""
        self._limits = dict.fromkeys(fastest(cpu_kernel_names()), _N_ROWS_ANY) if mode != "off" else {}
        self._seconds = seconds
        self._unmeasured: dict[str, str] = {}  # [name of a kernel]: why

    def limits(self, matrices: Sequence[int], n_threads: int, log: Callable[[str], None]) -> dict[str, int]:
        """[name of a kernel]: most rows of an operation, for the kernels of these weights; measured if not known."""
        if self.mode != "auto":
            return dict(self._limits)
        wanted = []
        for name, shapes in cpu_kernel_shapes(matrices, self._limits).items():
            is_known = name in self.times or name in self._unmeasured
            if not is_known and sum(k * n * n_experts for k, n, n_experts in shapes) >= _N_VALUES_MIN:
                wanted.append(name)
        known = {name: _load(name) for name in wanted}
        if missing := {name: N_ROWS_MAX for name, times in known.items() if times is None or is_doubtful(times)}:
            if _can_keep():
                why = "again, since the machine was busy" if all(known[name] for name in missing) else "once"
                log(f"measuring CPU kernels, {why}: {', '.join(missing)}")
                sizes = [*_WEIGHTS, *_N_ROWS_PROMPTS]
                for name, times in time_cpu_kernels(matrices, missing, n_threads, sizes, self._seconds).items():
                    _keep(name, times)
            else:
                log(f"our CPU kernels are used without measuring them: times cannot be kept in {_folder()}")
        for name in wanted:
            # the stored times, not those that were measured here: another process may have been first
            kept = _load(name)
            if kept is not None and not is_doubtful(kept):
                self.times[name] = kept
                self._limits[name] = decide(kept)
                continue
            cannot = f"what is measured cannot be kept in {_folder()}"
            busy = "the machine was busy: the next start measures it again"
            self._unmeasured[name] = cannot if kept is None else busy
            if name in _PROMPTS_OF_GGML:
                self._limits[name] = N_ROWS_MAX
        return {name: limit for name, limit in self._limits.items() if limit}

    def describe(self, name: str) -> str:
        """The measured times of a kernel, for the log."""
        if name in self._unmeasured:
            return f" (not measured: {self._unmeasured[name]})"
        return f" ({gain(self.times[name]):.2f} times as fast as ggml's)" if name in self.times else ""

    def refuses(self, type: str) -> bool:
        """Whether ggml's own kernels were faster with weights of a ggml type."""
        return any(re.match(rf"{type}(_\d+)?(x\d+)?/", name) for name in self.refused)

    @property
    def refused(self) -> list[str]:
        """Kernels for these weights that are not used, since ggml's own were faster."""
        return [name for name, limit in self._limits.items() if not limit]


def clear_cache() -> None:
    """Forget measured times, so that kernels are measured again."""
    for path in _folder().glob("*.json"):
        with suppress(OSError):  # a folder that cannot be written: doctor reports it
            path.unlink()


def _folder() -> Path:
    return cache_dir() / "kernels"


def _key(name: str) -> dict[str, Any]:
    return {"kernel": name, "machine": machine(), "versions": [__version__, LLAMA_CPP_PYTHON_VERSION]}


def _path(key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return _folder() / f"{digest[:24]}.json"


def _load(name: str) -> Times | None:
    """The stored times of a kernel, which `is_doubtful` must be asked about."""
    key = _key(name)
    try:
        document = json.loads(_path(key).read_text(encoding="utf-8"))
        if document["format"] != _FORMAT or document["key"] != json.loads(json.dumps(key)):
            return None
        times = {int(n): (float(ours), float(ggml)) for n, (ours, ggml) in document["times"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return times if times and all(n > 0 and 0 < t < 1e12 for n, pair in times.items() for t in pair) else None


def _can_keep() -> bool:
    with suppress(OSError):
        _folder().mkdir(parents=True, exist_ok=True)
    return _folder().is_dir() and os.access(_folder(), os.W_OK | os.X_OK)


def _keep(name: str, times: Times) -> None:
    """Store measured times, unless another process was first. Doubtful times are replaced by others."""
    key = _key(name)
    path = _path(key)
    kept = _load(name)
    if kept is None or (is_doubtful(kept) and not is_doubtful(times)):  # there is none, or it is damaged or doubtful
        with suppress(OSError):
            path.unlink()
    text = json.dumps({"format": _FORMAT, "key": key, "times": times}, indent=1)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        part.write_text(text, encoding="utf-8")
        try:
            os.link(part, path)  # fails if the file exists
        finally:
            part.unlink()
