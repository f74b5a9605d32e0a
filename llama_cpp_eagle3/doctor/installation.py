"""Check the installation, llama.cpp's build and this machine."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import llama_cpp

from .._core import cpu_kernel_names, local_accelerators
from .._version import __version__
from ..cpu_build import AMX_CURE, NATIVE, broken_amx, compilers, extra_buffer_types
from ..extras import install_command
from ..files.cache_dir import cache_dir
from ..machine import cpu_flags, cpu_name, cpu_quota, default_threads, free_memory
from ..model.cpu_kernels import fastest
from .finding import Finding
from .gpus import built_backends, find_gpus, judge_gpus

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_EXTRAS = {
    "hub": ("huggingface_hub",),
    "serve": ("starlette", "uvicorn", "httptools", "pydantic"),
    "cli": ("tqdm", "argcomplete"),
}
"""Extra -> what it adds."""

_CPU_FEATURES = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}
"""Flag of Linux -> what ggml calls it."""
_BASIC = {"AVX", "AVX2", "FMA", "F16C", "DOTPROD"}  # without these everything takes several times as long


def software() -> list[Finding]:
    """Versions, extras, how llama.cpp was compiled, and our cache folder."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    found = [Finding("ok", f"llama-cpp-eagle3 {__version__}, llama-cpp-python {llama_cpp.__version__}, {system}")]
    if sys.platform != "linux":
        text = f"built and tested on Linux only: {platform.system()} should work, but is untested"
        found.append(Finding("note", text))
    missing = [name for name, modules in _EXTRAS.items() if not all(map(importlib.util.find_spec, modules))]
    if missing:
        found.append(Finding("note", f"extras that are not installed: {','.join(missing)}", install_command(*missing)))
    return [*found, *compiler(), *kernels(), *cache_folder(cache_dir())]


def kernels() -> list[Finding]:
    """Which of our CPU kernels can run here. Their speed is measured when a model is loaded."""
    names = cpu_kernel_names()
    if not names:
        return [Finding("note", "there are no CPU kernels of ours for this processor: ggml's own multiply all weights")]
    formats: dict[str, list[str]] = {}  # [instruction set]
    for name in fastest(names):
        kind, _, instructions = name.partition("/")
        formats.setdefault(instructions, []).append(kind)
    found = "; ".join(f"{instructions} for {', '.join(kinds)}" for instructions, kinds in formats.items())
    return [Finding("ok", f"CPU kernels for this processor: {found}")]


def compiler() -> list[Finding]:
    """How libggml was compiled, and whether that is known to go wrong or to be slow here."""
    features = set(re.findall(r"(\w+) = 1", llama_cpp.llama_print_system_info().decode()))
    return judge_build(features, cpu_flags(), compilers(), extra_buffer_types())


def judge_build(
    features: set[str], flags: set[str], compilers: set[str], buffer_types: Collection[str]
) -> list[Finding]:
    """Compare a build's features and compilers with a processor's flags.

    features: as ggml names them. flags: as Linux does, empty if they are not known. compilers: "GCC 12.2.0", ...
    buffer_types: the CPU's extra ones, which show whether there is AMX; ggml's feature may be wrong.
    """
    by = f", compiled by {', '.join(sorted(compilers))}" if compilers else ""
    features = features - {"AMX_INT8"} | ({"AMX_INT8"} if "AMX" in buffer_types else set())
    found = [Finding("ok", f"ggml for {', '.join(sorted(features))}{by}")]
    compiler = broken_amx(buffer_types, compilers)
    if compiler is not None:
        text = (
            f"llama.cpp was compiled for AMX by {compiler}, which drops stores to the tile configuration (its bug "
            "114098): llama-cpp-python by itself crashes with quantized models; here they run without ggml's AMX"
        )
        found.append(Finding("warning", text, AMX_CURE))
    missing = [name for flag, name in _CPU_FEATURES.items() if flag in flags and name not in features]
    if missing:
        text = f"this processor has {', '.join(missing)}, for which llama-cpp-python was not compiled"
        if _BASIC.isdisjoint(missing):
            found.append(Finding("note", f"{text}: it may be faster with them", NATIVE))
        else:
            found.append(Finding("warning", f"{text}: everything takes several times as long", NATIVE))
    return found


def cache_folder(folder: Path) -> list[Finding]:
    """Whether the cache folder can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        text = f"the cache folder '{folder}' cannot be written ({e.strerror}): each process measures costs anew"
        return [Finding("warning", text, "LLAMA_CPP_EAGLE3_CACHE=FOLDER names another one")]
    return [Finding("ok", f"cache folder '{folder}'")]


def huge_pages(setting: Path = _HUGE_PAGES) -> list[Finding]:
    """Whether the system gives pages of 2 MiB to weights and caches, where Linux has that setting."""
    try:
        text = setting.read_text()
    except OSError:
        return []
    if "[never]" in text:
        told = "the system gives no pages of 2 MiB: a token takes some per cent more time on the CPU"
        return [Finding("note", told, f"echo madvise | sudo tee {setting}")]
    return [Finding("ok", "pages of 2 MiB for repacked weights and caches in the CPU's memory")]


def devices() -> list[Finding]:
    """Processors, memory and accelerators, and whether they are used."""
    quota, memory = cpu_quota(), free_memory()
    bound = "" if quota is None else f", of which this container may use {quota:g}"
    free = "" if memory is None else f", {memory / 2**30:.1f} GiB of memory free"
    cores = f"{os.cpu_count()} logical cores{bound}, {default_threads()} threads by default"
    found = [Finding("ok", f"{cpu_name()}: {cores}{free}")]
    found += huge_pages()
    accelerators = [f"{d.name} ({d.description})" for d in local_accelerators()]
    return found + judge_gpus(accelerators, find_gpus(), built_backends())
