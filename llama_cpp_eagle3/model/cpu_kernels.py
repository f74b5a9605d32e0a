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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._core import cpu_kernel_names, cpu_kernel_shapes, time_cpu_kernels
from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..draft.costs.contention import CONTENTION_MAX, Contention
from ..draft.costs.costs import implausible, machine
from ..files.cache_dir import cache_dir
from ..files.json_file import read_json

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
_measured: set[Path] = set()
"""Files of the kernels that this process measured: if the machine was busy, the next process measures them again."""
_N_VALUES_MIN = 1 << 22  # products with fewer weights are not limited by reading these
_MARGIN = 1.1
"""Times ggml's time that ours may take: only ours gives a row the same bits in all passes (batch_invariance.py)."""
_FORMAT = 4


def decide(times: Times) -> int:
    """Up to how many rows a kernel is used; 0: never.

    Either ours or ggml's compute all passes of up to N_ROWS_MAX rows, so that a row's sums never depend on how many
    there are: ggml's if they are faster by more than a tenth, by the weighted mean of passes of up to 16 rows.
    """
    if gain(times) * _MARGIN < 1.0:
        return 0
    prompts = [times[n][0] / times[n][1] for n in _N_ROWS_PROMPTS if n in times]
    return _N_ROWS_ANY if sum(prompts) <= len(prompts) else N_ROWS_MAX


def fastest(names: Sequence[str]) -> list[str]:
    """Measure a format's first kernel; the others only if it is faster than ggml's."""
    formats: dict[str, str] = {}
    for name in names:
        formats.setdefault(name.partition("/")[0], name)
    return list(formats.values())


def gain(times: Times) -> float:
    """How many times as fast as ggml's our kernel is, by the weighted mean of passes of up to 16 rows."""
    known = {n: weight for n, weight in _WEIGHTS.items() if n in times}
    return sum(known.values()) / sum(w * times[n][0] / times[n][1] for n, w in known.items())


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of a kernel, as they are stored."""

    times: Times
    contention: float
    """Share of the processors' time that other programs had meanwhile."""

    @property
    def is_doubtful(self) -> bool:
        """Whether other programs disturbed measuring, as they had a share or as our times show.

        More rows took much less than one, or much longer than in parts, or the time was too short for all numbers of
        rows that count, which take a fraction of it on a quiet machine. ggml's times prove nothing: with AVX-512 it
        takes five times as long for 8 rows of Q6_K as for 4. If they are too long, ours compute.
        """
        ours = {n: pair[0] for n, pair in self.times.items()}
        return not _WEIGHTS.keys() <= ours.keys() or self.contention > CONTENTION_MAX or bool(implausible(ours))


def measure(matrices: Sequence[int], names: Sequence[str], n_threads: int, seconds: float) -> dict[str, Measured]:
    """Time kernels and ggml's code on these weights, for about so many seconds.

    In a thread of its own: OpenMP keeps a team of threads for each thread that computes. With more of them than
    processors they would sleep instead of spinning, and later passes of the calling thread would take 1.5 times as
    long. The team is there as long as its thread, so that contention is asked for there.
    """

    def run() -> dict[str, Measured]:
        contention = Contention()
        sizes = [*_WEIGHTS, *_N_ROWS_PROMPTS]
        times = time_cpu_kernels(matrices, dict.fromkeys(names, N_ROWS_MAX), n_threads, sizes, seconds)
        share = contention.share
        return {name: Measured(found, share) for name, found in times.items()}

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(run).result()


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
        doubtful = {name for name, kept in known.items() if kept is not None and kept.is_doubtful}
        again = {name for name in doubtful if _path(_key(name)) not in _measured}  # not what this process measured
        if missing := [name for name, kept in known.items() if kept is None or name in again]:
            if _can_keep():
                why = "again, since the machine was busy" if all(known[name] for name in missing) else "once"
                log(f"measuring CPU kernels, {why}: {', '.join(missing)}")
                for name, measured in measure(matrices, missing, n_threads, self._seconds).items():
                    _keep(name, measured)
                    _measured.add(_path(_key(name)))
            else:
                log(f"our CPU kernels are used without measuring them: times cannot be kept in {_folder()}")
        for name in wanted:
            # the stored times, not those that were measured here: another process may have been first
            kept = _load(name)
            if kept is not None and not kept.is_doubtful:
                self.times[name] = kept.times
                self._limits[name] = decide(kept.times)
                continue
            cannot = f"what is measured cannot be kept in {_folder()}"
            busy = "the machine was busy: the next process measures it again"
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
    _measured.clear()
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


def _load(name: str) -> Measured | None:
    """The stored times of a kernel, which may be doubtful."""
    key = _key(name)
    try:
        document = read_json(_path(key))
        if document["format"] != _FORMAT or document["key"] != json.loads(json.dumps(key)):
            return None
        times = {int(n): (float(ours), float(ggml)) for n, (ours, ggml) in document["times"].items()}
        contention = float(document["contention"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_valid = times and all(n > 0 and 0 < t < 1e12 for n, pair in times.items() for t in pair)
    return Measured(times, contention) if is_valid and 0.0 <= contention <= 1.0 else None


def _can_keep() -> bool:
    with suppress(OSError):
        _folder().mkdir(parents=True, exist_ok=True)
    return _folder().is_dir() and os.access(_folder(), os.W_OK | os.X_OK)


def _keep(name: str, measured: Measured) -> None:
    """Store measured times, unless another process was first. Doubtful times are replaced by others."""
    key = _key(name)
    path = _path(key)
    kept = _load(name)
    if kept is None or (kept.is_doubtful and not measured.is_doubtful):  # there is none, or it is damaged or doubtful
        with suppress(OSError):
            path.unlink()
    document = {"format": _FORMAT, "key": key, "times": measured.times, "contention": measured.contention}
    text = json.dumps(document, indent=1)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        part.write_text(text, encoding="utf-8")
        try:
            os.link(part, path)  # fails if the file exists
        finally:
            part.unlink()
