"""Compiled VNNI and AVX-512 code has the right instructions, in their functions alone, on any machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from llama_cpp_eagle3 import _core

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which((sysconfig.get_config_var("CXX") or "c++").split()[0])
OBJDUMP = shutil.which("objdump")

pytestmark = pytest.mark.skipif(
    not (COMPILER and OBJDUMP and _core.cpu_kernel_names()), reason="no compiler, no objdump, or no x86"
)


def disassemble(path: str | Path) -> list[tuple[str, str]]:
    """Return all instructions: their bytes and their text."""
    out = subprocess.run([str(OBJDUMP), "-d", str(path)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(?m)^ *[0-9a-f]+:\t([0-9a-f ]+?) *\t(.+)$", out)


INTRINSICS = """
#include <immintrin.h>
#define FUNCTION(name, set, call) __attribute__((target(set))) \\
    __m256i name(__m256i s, __m256i a, __m256i b) { return call(s, a, b); }
FUNCTION(avx_bytes, "avx2,avxvnni", _mm256_dpbusd_avx_epi32)
FUNCTION(avx_words, "avx2,avxvnni", _mm256_dpwssd_avx_epi32)
FUNCTION(avx512_bytes, "avx512vnni,avx512vl", _mm256_dpbusd_epi32)
FUNCTION(avx512_words, "avx512vnni,avx512vl", _mm256_dpwssd_epi32)
"""
OURS = """
#include "kernels/instruction_sets.h"
using namespace eagle3::kernels::avx2;
#define FUNCTION(name, set, call) AVX2 __m256i name(__m256i s, __m256i a, __m256i b) { return set::call(s, a, b); }
FUNCTION(avx_bytes, avx_vnni, add_bytes)
FUNCTION(avx_words, avx_vnni, add_words)
FUNCTION(avx512_bytes, avx512_vnni, add_bytes)
FUNCTION(avx512_words, avx512_vnni, add_words)
"""


def test_assembly_is_what_intrinsics_are(tmp_path: Path) -> None:
    """The bytes are the same: the right instructions, encodings and orders of operands."""
    (tmp_path / "ggml.h").write_text("enum ggml_type { GGML_TYPE_COUNT };")
    found = []
    for name, source in (("intrinsics", INTRINSICS), ("ours", OURS)):
        file = tmp_path / f"{name}.cpp"
        file.write_text(source)
        command = [str(COMPILER), "-std=c++17", "-O2", "-DEAGLE3_VNNI", "-I", str(ROOT / "csrc"), "-I", str(tmp_path)]
        done = subprocess.run([*command, "-c", str(file), "-o", f"{file}.o"], capture_output=True, text=True)
        if done.returncode and name == "intrinsics":
            pytest.skip(f"this compiler does not know VNNI: {done.stderr[:200]}")
        assert done.returncode == 0, done.stderr
        found.append([i for i in disassemble(f"{file}.o") if "vpdp" in i[1]])
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_the_module_has_both_encodings() -> None:
    code = disassemble(_core.__file__)
    assert len(code) > 100_000
    vnni = [instruction for instruction in code if "vpdp" in instruction[1]]
    if not vnni:
        pytest.skip("the assembler that the module was built with does not know VNNI, or VNNI is emulated")
    for name in ("vpdpbusd", "vpdpwssd"):
        prefixes = {instruction[0][:2] for instruction in vnni if name in instruction[1]}
        assert prefixes == {"c4", "62"}  # VEX, EVEX


TYPES = "enum ggml_type { GGML_TYPE_Q8_0, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32 };"


@pytest.mark.parametrize("source", ["q8_0", "float_weights"])
def test_avx_512_is_in_its_own_functions_alone(tmp_path: Path, source: str) -> None:
    """Elsewhere such an instruction would end programs on processors that lack it."""
    (tmp_path / "ggml.h").write_text(TYPES)
    file = tmp_path / "kernels.o"
    command = [str(COMPILER), "-std=c++17", "-O3", "-DEAGLE3_VNNI", "-I", str(ROOT / "csrc"), "-I", str(tmp_path)]
    command += ["-c", str(ROOT / "csrc" / "kernels" / f"{source}.cpp"), "-o", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this compiler does not know AVX-512: {done.stderr[:200]}")
    out = subprocess.run([str(OBJDUMP), "-dC", str(file)], capture_output=True, text=True, check=True).stdout
    functions = re.findall(r"(?m)^[0-9a-f]+ <(.+)>:\n((?:.+\n)+)", out)
    wide = [name for name, text in functions if re.search(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])", text)]
    assert wide
    assert [name for name in wide if "avx512" not in name] == []
