"""Which compiler made ggml's CPU backend, and whether its AMX code can be used: GCC may have compiled it wrongly."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

import llama_cpp

from ._core import HiddenAmx, local_devices
from ._version import LLAMA_CPP_PYTHON_VERSION

NATIVE = (
    "pip install --force-reinstall --no-cache-dir --no-deps --no-binary llama-cpp-python "
    f"llama-cpp-python=={LLAMA_CPP_PYTHON_VERSION}"
)
"""The command that compiles llama.cpp again for this machine."""

AMX_CURE = (
    f"CC=clang CXX=clang++ {NATIVE} (or another compiler without the bug, such as GCC 14), or without AMX: "
    f"CFLAGS=-U__AMX_INT8__ CXXFLAGS=-U__AMX_INT8__ {NATIVE}"
)
"""The command that helps if `broken_amx` finds something."""

_log = logging.getLogger(__name__)


def extra_buffer_types() -> set[str]:
    """The layouts that llama.cpp may give weights on this CPU; "AMX" only if it was compiled in and the CPU has it.

    ggml's feature AMX_INT8 comes from a macro of a file without that code, whatever the machine is.
    """
    return {name for device in local_devices() for name in device.extra_buffer_types}


def compilers() -> set[str]:
    """Compilers of ggml's CPU backend, by its files: "GCC 12.2.0", ...; empty if they name none."""
    found: set[str] = set()
    for path in {p.resolve() for p in (Path(llama_cpp.__file__).parent / "lib").glob("*ggml-cpu*")}:
        data = path.read_bytes()
        found |= {f"GCC {v.decode()}" for v in re.findall(rb"GCC: \([^)]*\) ([\d.]+)", data)}
        found |= {f"Clang {v.decode()}" for v in re.findall(rb"clang version ([\d.]+)", data)}
    return found


def broken_amx(buffer_types: Collection[str], compilers: Collection[str]) -> str | None:
    """The compiler that dropped stores to AMX's tile configuration (GCC's bug 114098), if there is such code.

    Args:
        buffer_types: the CPU's, as `extra_buffer_types` gives them.
        compilers: as `compilers` gives them. Beside Clang there is a GCC too, which compiled what the system links in.
    """
    if "AMX" not in buffer_types or any(name.startswith("Clang") for name in compilers):
        return None
    return next((name for name in sorted(compilers) if _drops_stores(name)), None)


def _drops_stores(compiler: str) -> bool:
    found = re.match(r"GCC (\d+)\.(\d+)", compiler)
    if found is None:
        return False
    major, minor = int(found[1]), int(found[2])
    # GCC 11 is the first that llama.cpp's AMX code can be compiled with
    return major == 11 or (major == 12 and minor < 4) or (major == 13 and minor < 3)


@cache
def broken_amx_here() -> str | None:
    """`broken_amx` for the installed llama.cpp."""
    types = extra_buffer_types()
    return broken_amx(types, compilers()) if "AMX" in types else None


def without_amx(uses_kernels: bool) -> AbstractContextManager[None]:
    """Keep models that are loaded meanwhile from AMX's layout of weights: our kernels, which use AMX too, read others.

    uses_kernels: whether ours may compute; else AMX's layout is hidden only if it would crash, which is logged.
    """
    compiler = broken_amx_here()
    if compiler is not None and not uses_kernels:
        _log.warning(
            "llama.cpp was compiled for AMX by %s, whose bug 114098 makes quantized models crash: this model runs "
            "without AMX. Type %s",
            compiler,
            AMX_CURE,
        )
    return HiddenAmx() if uses_kernels or compiler is not None else nullcontext()
