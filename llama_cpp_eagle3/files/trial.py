"""Load an unknown file in a child process first, without its weights, once; a file that ends it is refused.

llama.cpp asserts, divides by and looks up values that a damaged file may lack. Some are checked before
(csrc/target/header_check.cpp), and assertions are caught (csrc/load_guard.h); this finds the others.
"""

from __future__ import annotations

import hashlib
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp

from .._core import header_size
from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..errors import ModelFileError
from ._trial_child import REFUSED
from .cache_dir import cache_dir, tell_refused
from .json_file import read_regular
from .whole_file import output_path, write_whole

CPU_SECONDS = 60
"""Seconds of CPU time after which a trial counts as hung; a large vocabulary takes half a second."""
TIMEOUT = 20.0 * CPU_SECONDS
"""Seconds by the clock after which it does too: many more, as a machine may be busy."""

_CHILD = Path(__file__).with_name("_trial_child.py")
_N_KEPT = 4096
_SIGKILL, _SIGXCPU = (getattr(signal, name, n) for name, n in (("SIGKILL", 9), ("SIGXCPU", 24)))  # Windows has none
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refusal:
    """Why llama.cpp did not load a file."""

    reason: str
    tensors: frozenset[str]
    """Those that it has asked the file for."""


def try_file(path: str, n_header: int, options: Mapping[str, Any], projector: str | None = None) -> Refusal | None:
    """Load a file's header and build its graphs in a child process, unless this was done on this machine before.

    Args:
        path: the model.
        n_header: bytes that its header takes.
        options: the constructor's arguments, of which `kv_overrides`, `flash_attn` and `vocab_only` matter.
        projector: of images or sounds for it, whose graphs are built in place of the model's.

    Returns:
        Why llama.cpp refused to load it there; None if it did not. Loading it here gives the same reason, or more.

    Raises:
        ModelFileError: the child process was ended by a signal, or does not end.
    """
    overrides = options.get("kv_overrides") or {}
    request = {
        "path": path,
        "kv_overrides": {k: v for k, v in overrides.items() if isinstance(v, (int, float, str))},
        "flash_attn": options.get("flash_attn") is None or bool(options["flash_attn"]),
        "vocab_only": bool(options.get("vocab_only")),
        "projector": projector,
    }
    digest = _digest(n_header, request)
    if digest in _known() or not _has_interpreter():
        return None
    end = _run(request)
    if isinstance(end, Refusal):
        return end
    if end is None:
        _remember(digest)
    elif end:
        raise ModelFileError(
            f"'{projector or path}': llama.cpp does not survive loading it: {end} in a process that tried. The "
            "file is damaged, or was made for another version of llama.cpp: fetch it again, or convert the model anew. "
            "(checked=False loads it without trying.)"
        )
    return None


def _has_interpreter() -> bool:
    """Whether sys.executable is a Python that can run the child, and not a program that embeds Python."""
    name = Path(sys.executable or "").name.lower()
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def _run(request: dict[str, Any]) -> str | Refusal | None:
    """Run the child; returns None if it succeeded, else how it ended; "" if it could not be run."""
    request |= {
        "sys_path": [str(entry) for entry in sys.path],
        "llama_cpp": str(Path(llama_cpp.__file__).parent),
        "cpu_seconds": CPU_SECONDS,
    }
    try:
        result = subprocess.run(
            [sys.executable, "-I", "-S", str(_CHILD)],
            input=json.dumps(request).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT:.0f} seconds"
    except OSError as e:
        _log.debug("no trial of %s: %s", request["path"], e)
        return ""
    status = result.returncode
    if status == 0:
        return None
    if status == REFUSED:
        said = [line.partition(" ") for line in result.stderr.decode(errors="replace").split("\n")]
        reason = next((text for word, _, text in said if word == "REASON"), "no reason")
        asked = frozenset(text for word, _, text in said if word == "TENSOR")
        return Refusal(reason.rpartition("error loading model: ")[2], asked)
    if status == -_SIGKILL or 0 < status < 128:  # killed by another process, or an error of Python
        _log.debug("the trial of %s ended with %d", request["path"], status)
        return ""
    if status == -_SIGXCPU:
        return f"no answer within {CPU_SECONDS} seconds of the processor"
    try:
        end = signal.Signals(-status).name
    except ValueError:
        end = f"exit status {status:#x}"
    lines = result.stderr.decode(errors="replace").split("\n")
    return " ".join([end, *(f"({line.strip()})" for line in lines if "GGML_ASSERT" in line or "what():" in line)])


def _digest(n_header: int, request: dict[str, Any]) -> str:
    """Digest of everything that a trial depends on."""
    headers = [(request["path"], n_header)]
    if request["projector"] is not None:
        headers.append((request["projector"], header_size(request["projector"])))
    digest = hashlib.sha256()
    for path, n in headers:
        with open(path, "rb") as file:
            digest.update(file.read(n))
    settings = [
        {k: v for k, v in request.items() if k not in ("path", "projector")},
        __version__,
        LLAMA_CPP_PYTHON_VERSION,
    ]
    digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()[:32]


def _known_path() -> Path:
    return cache_dir() / "tried_files.txt"


def _known() -> list[str]:
    """Digests of files that passed."""
    try:
        return read_regular(_known_path()).decode("ascii").split()
    except (OSError, ValueError, RuntimeError):  # the last one: there is no home
        return []


def _remember(digest: str) -> None:
    try:
        path = _known_path()
    except RuntimeError:  # there is no home
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = _known()
        if len(known) >= _N_KEPT:
            write_whole(path, "\n".join(known[_N_KEPT // 2 :]) + "\n")
        with output_path(path).open("a", encoding="ascii") as file:
            file.write(digest + "\n")
    except OSError as e:
        tell_refused(path, e)
