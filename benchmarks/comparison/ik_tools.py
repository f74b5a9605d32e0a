"""Build ik_llama.cpp's llama-bench and llama-server once, from one commit, and keep them in the cache folder.

python -m comparison.ik_tools        prints their folder (in benchmarks/)
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from comparison.peer_tools import compiler_options, finished, run_cmake
from llama_cpp_eagle3.files.cache_dir import cache_dir

COMMIT = "8337e4cd3861406fc04e0854b1409cd1b027fbc9"
URL = "https://github.com/ikawrakow/ik_llama.cpp"
TOOLS = ("llama-bench", "llama-server")
ENV_TOOLS = "IK_LLAMA_CPP_TOOLS"
"""The environment variable that names a folder of built tools."""

_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DGGML_IQK_FA_ALL_QUANTS=OFF",  # F16 and Q8_0 of the cache; all types take an hour more
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_CURL=OFF",
)


def get_ik_tools() -> Path:
    """Return the folder of ik_llama.cpp's tools: the one that IK_LLAMA_CPP_TOOLS names, or our own build.

    Raises:
        FileNotFoundError: a tool is missing in the named folder.
        RuntimeError: git, cmake or a compiler is missing, or the build failed.
    """
    if named := os.environ.get(ENV_TOOLS):
        return finished(named, TOOLS)
    folder = cache_dir() / f"ik_llama.cpp-{COMMIT[:8]}"
    source, build_dir = folder / "source", folder / "build"
    if not all((build_dir / "bin" / tool).is_file() for tool in TOOLS):
        source.mkdir(parents=True, exist_ok=True)
        for command in (["init", "-q"], ["fetch", "-q", "--depth", "1", URL, COMMIT], ["checkout", "-q", COMMIT]):
            if subprocess.run(["git", "-C", str(source), *command]).returncode != 0:
                raise RuntimeError(f"git {' '.join(command)} failed in '{source}'; {ENV_TOOLS} names a finished build")
        build_dir.mkdir(exist_ok=True)
        run_cmake("ik_llama.cpp's tools", source, build_dir, [*_OPTIONS, *compiler_options()], TOOLS)
    return build_dir / "bin"


if __name__ == "__main__":
    print(get_ik_tools())
