"""AMX code that GCC compiled wrongly is found in the library, and is not used."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from comparison import peer_tools
from llama_cpp_eagle3 import cpu_build
from llama_cpp_eagle3._core import local_devices
from llama_cpp_eagle3.cpu_build import broken_amx, extra_buffer_types, without_amx
from loading import load, load_plain, take
from tiny import write_target

ROOT = Path(__file__).parents[2]
AMX = {"AMX", "CPU_REPACK"}


@pytest.mark.parametrize(
    ("compilers", "expected"),
    [
        ({"GCC 11.4.0"}, "GCC 11.4.0"),
        ({"GCC 12.2.0"}, "GCC 12.2.0"),
        ({"GCC 12.4.0"}, None),
        ({"GCC 13.2.1"}, "GCC 13.2.1"),
        ({"GCC 13.3.0"}, None),
        ({"GCC 14.1.0"}, None),
        ({"Clang 12.0.0"}, None),
        ({"Clang 16.0.6", "GCC 12.2.0"}, None),  # the second one is crtbegin.o's
        ({"GCC 4.8.5", "GCC 14.2.1"}, None),  # the first one too; it knows no AMX
        (set(), None),
    ],
)
def test_compilers(compilers: set[str], expected: str | None) -> None:
    assert broken_amx(AMX, compilers) == expected
    assert broken_amx({"CPU_REPACK"}, compilers) is None


def test_this_machine() -> None:
    """AMX is registered only where the library has its code and the processor its instructions."""
    library = min((Path(llama_cpp.__file__).parent / "lib").glob("libggml-cpu.*"))
    has_code = b"ggml_backend_amx_buffer_type" in library.read_bytes()
    cpuinfo = Path("/proc/cpuinfo")
    has_amx = cpuinfo.exists() and "amx_int8" in cpuinfo.read_text()
    types = extra_buffer_types()
    assert ("AMX" in types) == (has_code and has_amx)
    # the last one is of our kernels, if they were used in this process before the first list of types
    assert types <= {"AMX", "CPU_REPACK", "CPU_KLEIDIAI", "CPU_EAGLE3"}
    if "REPACK = 1" in llama_cpp.llama_print_system_info().decode():
        assert "CPU_REPACK" in types
    assert cpu_build.compilers() or b"GCC: (" not in library.read_bytes()  # Clang's libraries may name none


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_build, "broken_amx_here", lambda: "GCC 12.2.0")


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_amx_that_would_crash_is_not_used(
    broken: None, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said where its user loses by that: our kernels use AMX themselves."""
    target = write_target(tmp_path / "t.gguf")
    with closing(load_plain(target)) as plain:
        expected = take(plain, [1, 2, 3], 8)
    with closing(load(target, cpu_kernels=mode)) as llm:
        assert llm.loaded.costs_key()["target"]["amx"] is False
        assert take(llm, [1, 2, 3], 8) == expected
    said = [r for r in caplog.records if "AMX" in r.getMessage()]
    assert len(said) == (mode == "off")
    for record in said:
        assert record.levelno == logging.WARNING
        for part in ("GCC 12.2.0", "CFLAGS=-U__AMX_INT8__ CXXFLAGS=-U__AMX_INT8__ pip install", "CXX=clang++"):
            assert part in record.getMessage()


def all_types() -> list[list[str]]:
    return [device.extra_buffer_types for device in local_devices()]


def test_amx_is_hidden_while_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ggml has it; elsewhere nothing changes."""
    before = all_types()
    without = [[name for name in names if name != "AMX"] for names in before]
    with without_amx(uses_kernels=True):
        assert all_types() == without
        with without_amx(uses_kernels=True):
            assert all_types() == without
        assert all_types() == without
    assert all_types() == before
    monkeypatch.setattr(cpu_build, "broken_amx_here", lambda: None)
    with without_amx(uses_kernels=False):
        assert all_types() == before
    monkeypatch.setattr(cpu_build, "broken_amx_here", lambda: "GCC 12.2.0")
    with without_amx(uses_kernels=False):
        assert all_types() == without


def stub_compiler(folder: Path, version: int, *, has_amx: bool = True, is_clang: bool = False) -> Path:
    """Write a script that answers `c++ -march=native -dM -E` like a compiler."""
    lines = [f"#define __GNUC__ {version}"]
    lines += ["#define __AMX_TILE__ 1"] * has_amx + ["#define __clang__ 1"] * is_clang
    path = folder / "c++"
    path.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    path.chmod(0o755)
    return path


STUBS: list[tuple[int, dict[str, bool], bool]] = [
    (12, {}, True),
    (13, {}, True),
    (14, {}, False),
    (12, {"has_amx": False}, False),
    (4, {"is_clang": True}, False),
]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("version", "kind", "is_off"), STUBS)
def test_make(tmp_path: Path, version: int, kind: dict[str, Any], is_off: bool) -> None:
    """`make` turns AMX off for C too, whose macro ggml's features repeat."""
    command = ["make", "-pn", "-C", str(ROOT), "clean", f"CXX={stub_compiler(tmp_path, version, **kind)}"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")} | {"CFLAGS": "-O1", "CXXFLAGS": "-O2"}
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    flags = {name: next(line for line in found if line.startswith(f"{name} :=")) for name in ("CFLAGS", "CXXFLAGS")}
    for line, own in zip(flags.values(), ("-O1", "-O2"), strict=True):
        assert own in line.split()
        assert ("-U__AMX_INT8__" in line.split()) == is_off


@pytest.mark.parametrize(("version", "kind", "is_off"), STUBS)
def test_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, kind: dict[str, Any], is_off: bool
) -> None:
    monkeypatch.setenv("CXX", str(stub_compiler(tmp_path, version, **kind)))
    monkeypatch.setenv("CFLAGS", "-O1")
    monkeypatch.setenv("CXXFLAGS", "-O2 -U__AMX_INT8__")
    expected = ["-DCMAKE_C_FLAGS=-O1 -U__AMX_INT8__", "-DCMAKE_CXX_FLAGS=-O2 -U__AMX_INT8__"] if is_off else []
    assert peer_tools.compiler_options() == expected
