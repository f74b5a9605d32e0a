"""Which of our CPU kernels multiply a model's weights, and up to how many rows: by the argument, or as measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ._core import cpu_kernel_names, cpu_kernel_shapes, time_cpu_kernels
from ._version import LLAMA_CPP_PYTHON_VERSION, __version__
from .planning import cache_dir, implausible, machine
from .whole_file import whole_file

MODES = ("auto", "on", "off")

N_ROWS_MAX = 64
"""Operations of more rows are ggml's, unless ours were measured to be faster there too. As in kernels/attention.h."""
_N_ROWS_ANY = 1 << 30

Times = Mapping[int, tuple[float, float]]
"""[rows]: microseconds by our kernel and by ggml."""

_WEIGHTS = {1: 4, 2: 1, 4: 2, 8: 2, 16: 1}
"""[rows]: how much they count. Text without a draft comes in passes of one row, drafts take two to sixteen."""
_N_ROWS_PROMPT = 128
_N_VALUES_MIN = 1 << 22  # of fewer weights it is not the reading that takes time
_FORMAT = 1


def decide(times: Times) -> int:
    """Up to how many rows a kernel is used; 0: never.

    All passes of up to N_ROWS_MAX rows are computed by one side, so that a row's sums never depend on how many there
    are: the side that is faster by the weighted mean of those of up to 16.
    """
    known = {n: weight for n, weight in _WEIGHTS.items() if n in times}
    if sum(w * times[n][0] / times[n][1] for n, w in known.items()) > sum(known.values()):
        return 0
    ours, ggml = times.get(_N_ROWS_PROMPT, (1.0, 0.0))
    return _N_ROWS_ANY if ours <= ggml else N_ROWS_MAX


def fastest(names: Sequence[str]) -> list[str]:
    """Measure a format's first kernel; the others only if it is faster than ggml's."""
    formats: dict[str, str] = {}
    for name in names:
        formats.setdefault(name.partition("/")[0], name)
    return list(formats.values())


def is_doubtful(times: Times) -> bool:
    """Whether other programs disturbed it: more rows took much less than one, or much longer than in several parts.

    Or the time did not suffice for all numbers of rows that count, which take a fraction of it on a machine of its own.
    """
    sides = [{n: pair[i] for n, pair in times.items()} for i in (0, 1)]
    return not _WEIGHTS.keys() <= times.keys() or any(implausible(side) for side in sides)


def gain(times: Times) -> float:
    """How many times as fast as ggml's our kernel is, by the same mean."""
    known = {n: weight for n, weight in _WEIGHTS.items() if n in times}
    return sum(known.values()) / sum(w * times[n][0] / times[n][1] for n, w in known.items())


class KernelChoice:
    """What was decided for the weights of a target and its head."""

    def __init__(self, mode: str, seconds: float = 1.0):
        """mode: of MODES. seconds: about the most to spend on measuring."""
        self.mode = mode
        self.times: dict[str, Times] = {}
        """Of the kernels that were measured, now or before."""
        self._limits = dict.fromkeys(fastest(cpu_kernel_names()), N_ROWS_MAX) if mode != "off" else {}
        self._seconds = seconds
        self._doubtful: set[str] = set()

    def limits(self, matrices: Sequence[int], n_threads: int, log: Callable[[str], None]) -> dict[str, int]:
        """[name of a kernel]: rows of an operation, at most, for these weights; measured where that is not known."""
        if self.mode != "auto":
            return dict(self._limits)
        keys = {}
        for name, shapes in cpu_kernel_shapes(matrices, self._limits).items():
            is_known = name in self.times or name in self._doubtful
            if not is_known and sum(k * n * n_experts for k, n, n_experts in shapes) >= _N_VALUES_MIN:
                largest = max(shapes, key=lambda shape: shape[0] * shape[1] * shape[2] * shapes.count(shape))
                keys[name] = _key(name, largest, n_threads)
        found = {name: times for name, key in keys.items() if (times := _load(key)) is not None}
        missing = {name: N_ROWS_MAX for name in keys if name not in found}
        if missing:
            log(f"measuring CPU kernels, once: {', '.join(missing)}")
            sizes = [*_WEIGHTS, _N_ROWS_PROMPT]
            for name, times in time_cpu_kernels(matrices, missing, n_threads, sizes, self._seconds).items():
                if is_doubtful(times):
                    log(f"the machine was busy meanwhile: {name} is used, and measured the next time")
                    self._doubtful.add(name)
                else:
                    found[name] = times
                    _save(keys[name], times)
        self.times |= found
        for name, times in found.items():
            self._limits[name] = decide(times)
        return {name: limit for name, limit in self._limits.items() if limit}

    def describe(self, name: str) -> str:
        """What was measured of a kernel, for the log."""
        if name in self._doubtful:
            return " (not measured, since the machine was busy)"
        return f" ({gain(self.times[name]):.2f} times as fast as ggml's)" if name in self.times else ""

    @property
    def refused(self) -> list[str]:
        """Kernels that would serve, but ggml's own were faster."""
        return [name for name, limit in self._limits.items() if not limit]


def clear_cache() -> None:
    """Have kernels measured again."""
    for path in _folder().glob("*.json"):
        with suppress(OSError):  # a folder that cannot be written: doctor reports it
            path.unlink()


def _folder() -> Path:
    return cache_dir() / "kernels"


def _key(name: str, shape: Sequence[int], n_threads: int) -> dict[str, Any]:
    return {
        "kernel": name,
        "shape": list(shape),
        "n_threads": n_threads,
        "machine": machine(),
        "versions": [__version__, LLAMA_CPP_PYTHON_VERSION],
    }


def _path(key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return _folder() / f"{digest[:24]}.json"


def _load(key: Mapping[str, Any]) -> Times | None:
    try:
        document = json.loads(_path(key).read_text(encoding="utf-8"))
        if document["format"] != _FORMAT or document["key"] != json.loads(json.dumps(key)):
            return None
        times = {int(n): (float(ours), float(ggml)) for n, (ours, ggml) in document["times"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_sane = all(n > 0 and 0 < t < 1e12 for n, pair in times.items() for t in pair)
    return times if is_sane and not is_doubtful(times) else None


def _save(key: Mapping[str, Any], times: Times) -> None:
    path = _path(key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_text(json.dumps({"format": _FORMAT, "key": key, "times": times}, indent=1), encoding="utf-8")
