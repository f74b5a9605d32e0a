"""Build llama.cpp's own tools once, from the source of llama-cpp-python, and keep them in the cache folder.

python benchmarks/comparison/peer_tools.py        prints their folder
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from llama_cpp_eagle3._version import LLAMA_CPP_PYTHON_VERSION
from llama_cpp_eagle3.files.cache_dir import cache_dir

TOOLS = ("llama-speculative-simple", "llama-server", "llama-bench", "llama-quantize")
ENV_TOOLS = "LLAMA_CPP_TOOLS"
"""The environment variable that names a folder of built tools."""

_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",  # the clock replaces functions that one library calls in another
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # otherwise the build downloads web pages
    "-DLLAMA_OPENSSL=OFF",
    "-DGGML_RPC=on",  # as in the Makefile, so that both share one build
)
_NO_AMX = "-U__AMX_INT8__"


def get_tools(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of llama.cpp's tools: `folder`, the one that LLAMA_CPP_TOOLS names, or our own build.

    Raises:
        FileNotFoundError: a tool is missing in the named folder.
        RuntimeError: cmake or a compiler is missing, or the build failed.
    """
    named = folder or os.environ.get(ENV_TOOLS)
    return finished(named, TOOLS) if named else build(cache_dir() / f"llama.cpp-{LLAMA_CPP_PYTHON_VERSION}")


def finished(folder: str | os.PathLike[str], tools: Sequence[str]) -> Path:
    """Return a folder of finished tools.

    Raises:
        FileNotFoundError: one is missing.
    """
    path = Path(folder)
    missing = [tool for tool in tools if not (path / tool).is_file()]
    if missing:
        raise FileNotFoundError(f"'{path}' has no {', '.join(missing)}")
    return path.resolve()


def build(folder: Path) -> Path:
    """Build the tools in `folder` unless they are there; CMAKE_ARGS counts as it does for pip.

    Each set of options has a build folder of its own.
    """
    options = list(dict.fromkeys([*_OPTIONS, *compiler_options(), *shlex.split(os.environ.get("CMAKE_ARGS", ""))]))
    build_dir = folder / f"build-{hashlib.sha256(shlex.join(options).encode()).hexdigest()[:8]}"
    bin_dir, done = build_dir / "bin", build_dir / "options"
    if done.is_file() and all((bin_dir / tool).is_file() for tool in TOOLS):
        return bin_dir
    build_dir.mkdir(parents=True, exist_ok=True)
    done.unlink(missing_ok=True)
    (build_dir / "CMakeCache.txt").unlink(missing_ok=True)  # the cache may name programs of a removed environment
    run_cmake("llama.cpp's tools", get_source(folder), build_dir, options, TOOLS)
    done.write_text(shlex.join(options))
    return bin_dir


def run_cmake(what: str, source: Path, build_dir: Path, options: Sequence[str], targets: Sequence[str]) -> None:
    """Compile targets of a source in a folder, where build.log has what is printed.

    Raises:
        RuntimeError: cmake or a compiler is missing, or the build failed.
    """
    cmake, generator = _find("cmake"), []
    if shutil.which("ninja", path=_path()):
        generator = ["-G", "Ninja"]
    log = build_dir / "build.log"
    print(f"building {what} in {build_dir.parent}, some minutes (log: {log})", file=sys.stderr)
    n_jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    with log.open("w") as file:
        for command in (
            [cmake, "-S", str(source), "-B", str(build_dir), *generator, *options],
            [cmake, "--build", str(build_dir), "-j", n_jobs, "--target", *targets],
        ):
            result = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "PATH": _path()})
            if result.returncode != 0:
                raise RuntimeError(f"building {what} failed, see {log}: {shlex.join(command)}")


def compiler_options() -> list[str]:
    """Return options against GCC's bug 114098 (before 14): dropped stores to AMX's tile configuration crash models."""
    command = [*shlex.split(os.environ.get("CXX", "c++")), "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    found = subprocess.run(command, capture_output=True, text=True).stdout
    version = re.search(r"#define __GNUC__ (\d+)", found)
    if version is None or int(version[1]) >= 14 or "__clang__" in found or "__AMX_TILE__" not in found:
        return []
    options = []
    for language, name in (("C", "CFLAGS"), ("CXX", "CXXFLAGS")):
        flags = [flag for flag in shlex.split(os.environ.get(name, "")) if flag != _NO_AMX]
        options.append(f"-DCMAKE_{language}_FLAGS={shlex.join([*flags, _NO_AMX])}")
    return options


def get_source(folder: Path | None = None) -> Path:
    """Fetch llama-cpp-python's source release with pip and unpack it, once; return the folder of llama.cpp in it.

    folder: where to unpack; the default is the folder in which the tools are built.
    """
    folder = folder or cache_dir() / f"llama.cpp-{LLAMA_CPP_PYTHON_VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    requirement = f"llama-cpp-python=={LLAMA_CPP_PYTHON_VERSION}"
    source = folder / f"llama_cpp_python-{LLAMA_CPP_PYTHON_VERSION}" / "vendor" / "llama.cpp"
    if source.is_dir():
        return source
    shutil.rmtree(source.parent.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder) as temp:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "llama-cpp-python", requirement, "--dest", temp]
        subprocess.run(command, check=True, stdout=sys.stderr)
        archive = next(Path(temp).glob("llama_cpp_python-*.tar.gz"))
        with tarfile.open(archive) as tar:
            # Python 3.10 before 3.10.12 has no filter
            if hasattr(tarfile, "data_filter"):
                tar.extractall(temp, filter="data")
            else:
                tar.extractall(temp)
        (Path(temp) / source.parent.parent.name).rename(source.parent.parent)
    return source


def get_clock() -> Path | None:
    """Return the library that times process() in llama-speculative-simple (peer_clock.cpp), or None outside Linux."""
    return _preload("peer_clock")


def get_replay() -> Path:
    """Return the library that makes llama-server replay recorded texts (peer_replay.cpp).

    Raises:
        RuntimeError: this is not Linux.
    """
    library = _preload("peer_replay")
    if library is None:
        raise RuntimeError("llama-server can replay recorded texts on Linux only: leave --peer out")
    return library


def _preload(name: str) -> Path | None:
    if platform.system() != "Linux":
        return None
    source = Path(__file__).with_name(f"{name}.cpp")
    library = cache_dir() / f"{name}-{platform.machine()}.so"
    if not library.is_file() or library.stat().st_mtime < source.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}")
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        subprocess.run([*compiler, "-O2", "-shared", "-fPIC", "-o", str(part), str(source), "-ldl"], check=True)
        part.replace(library)
    return library


def _path() -> str:
    """Return PATH with the programs of this Python's environment first, as pip puts cmake and ninja there."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def _find(program: str) -> str:
    path = shutil.which(program, path=_path())
    if path is None:
        raise RuntimeError(f"no {program}: pip install {program}")
    return path


def main() -> None:
    """Build the tools if they are missing and print their folder."""
    parser = argparse.ArgumentParser(description="Get llama.cpp's own tools and print the folder that they are in.")
    parser.add_argument("--tools", help=f"a folder of finished ones (or {ENV_TOOLS})")
    print(get_tools(parser.parse_args().tools))


if __name__ == "__main__":
    main()
