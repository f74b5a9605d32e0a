"""The loops of attention give the same bits with AVX-512 as with AVX2."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which((sysconfig.get_config_var("CXX") or "c++").split()[0])
GGML = """
#pragma once
#include <cstddef>
#include <cstdint>
enum ggml_type { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0 };
using ggml_fp16_t = uint16_t;
struct ggml_type_traits { void (*to_float)(const void *, float *, int64_t); };
inline size_t ggml_row_size(ggml_type type, int64_t n) { return n * (type == GGML_TYPE_F32 ? 4 : 2); }
inline const ggml_type_traits * ggml_get_type_traits(ggml_type) { return nullptr; }
"""


@pytest.mark.skipif(not COMPILER or platform.machine() != "x86_64", reason="no compiler, or no x86")
def test_bits_are_those_of_avx2(tmp_path: Path) -> None:
    (tmp_path / "ggml.h").write_text(GGML)
    program = tmp_path / "loops"
    command = [str(COMPILER), "-std=c++17", "-O2", "-ffp-contract=off", "-I", str(HERE.parents[1] / "csrc")]
    command += ["-I", str(tmp_path), str(HERE / "attention_loops.cpp"), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    if found == ["no AVX-512"]:
        pytest.skip("this processor has no AVX-512")
    assert found == ["done"]
