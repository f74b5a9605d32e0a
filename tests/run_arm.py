"""Show that CPU kernels compute the same bits on 64-bit ARM as on this x86-64, and that the package runs, under qemu.

    python tests/run_arm.py [--if-built | --count | --package]

It installs missing packages by apt (a cross compiler and qemu), compiles ggml's CPU backend for ARM into build/arm
(once; some minutes of one core), and runs `tests/arm/kernel_bits.cpp` here and on emulated processors with NEON alone,
with dotprod, with i8mm, and with SVE. Each compares its results with float64; their outputs must be equal. Then the
wheel for aarch64 is made, put beside a libllama for it into Debian's Python, and generates there, and some tests run.
--package does that alone. --if-built does nothing if ggml is not compiled yet, and else only compares kernels. --count
prints the instructions of products, ours and ggml's. If packages cannot be had, or this is no x86-64, it says so and
ends with 0.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import arm_python
import debian
import llama_build
import llama_cpp
import run_wheels
from debian import CannotBeHad

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "arm"
HOST_LIBRARIES = Path(llama_cpp.__file__).parent / "lib"

PACKAGES = ("g++-aarch64-linux-gnu", "qemu-user-static")
CROSS, QEMU, SYSROOT = "aarch64-linux-gnu-g++", "qemu-aarch64-static", "/usr/aarch64-linux-gnu"
BUILDS = {
    "neon": "armv8-a",
    "dotprod": "armv8.2-a+dotprod+fp16",
    "i8mm": "armv8.2-a+dotprod+fp16+i8mm",
    "sve": "armv8.2-a+dotprod+fp16+i8mm+sve",
}
"""Name of a build of ggml -> its options for the compiler, which decide how weights are repacked."""
PROCESSORS = {"cortex-a72": "neon", "neoverse-n1": "dotprod", "max": "i8mm", "max,sve-max-vq=2": "sve"}
"""Qemu's processors, with NEON alone, with dotprod, with i8mm, with vectors of 256 bits -> build of ggml. For the last
one ggml repacks Q4_0 as on x86; our kernels do not use such vectors."""


def main(arguments: list[str]) -> int:
    """Prepare and compare; return 0 if nothing can be prepared."""
    if "--if-built" in arguments and not all(library(name).exists() for name in BUILDS):
        print("ggml is not compiled for ARM in build/arm: `make arm` does. The comparison is left out")
        return 0
    try:
        if platform.machine() != "x86_64":
            raise CannotBeHad(f"this is {platform.machine()}, and they compare with x86-64")
        install_missing()
        sources = llama_build.fetch(BUILD / "llama.cpp", "--all")
        if "--package" not in arguments:
            for name in BUILDS:
                build(sources, name)
    except CannotBeHad as e:
        print(f"The tests on ARM are left out: {e}")
        return 0
    if "--count" in arguments:
        return print_counts(sources)
    failed = "--package" not in arguments and compare(sources) != 0
    if "--if-built" not in arguments:
        try:
            failed |= try_package(sources) != 0
        except CannotBeHad as e:
            print(f"The package on ARM is left out: {e}")
    return int(failed)


def library(name: str) -> Path:
    """Return a build's CPU backend."""
    return BUILD / name / "bin" / "libggml-cpu.so.0"


def install_missing() -> None:
    """Install the cross compiler and qemu.

    Raises:
        CannotBeHad: they cannot be had.
    """
    if shutil.which(CROSS) and shutil.which(QEMU):
        return
    debian.install([*PACKAGES])


def build(sources: Path, name: str, target: str = "ggml-cpu") -> Path:
    """Compile a library of llama.cpp for an ARM processor; return its path, beside the libraries that it needs."""
    folder = BUILD / name / "bin"
    if (folder / f"lib{target}.so.0").exists():
        return folder
    print(f"Compiling {target} for {BUILDS[name]}: some minutes of one core", flush=True)
    options = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_C_COMPILER": CROSS.replace("g++", "gcc"),
        "CMAKE_CXX_COMPILER": CROSS,
        "CMAKE_BUILD_TYPE": "Release",
        "BUILD_SHARED_LIBS": "ON",
        "CMAKE_RUNTIME_OUTPUT_DIRECTORY": str(BUILD / name / "bin"),
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(BUILD / name / "bin"),
        "GGML_NATIVE": "OFF",
        "GGML_OPENMP": "OFF",
        "GGML_CPU_ARM_ARCH": BUILDS[name],
        "LLAMA_OPENSSL": "OFF",
        "CMAKE_PROJECT_llama.cpp_INCLUDE": str(ROOT / "tests" / "arm" / "few_units.cmake"),
        **{f"LLAMA_BUILD_{part}": "OFF" for part in ("APP", "COMMON", "EXAMPLES", "SERVER", "TESTS", "TOOLS")},
    }
    llama_build.compile_target(f"{target} for {BUILDS[name]}", sources, BUILD / name, options, target)
    return folder


def compile_program(sources: Path, compiler: str, libraries: Path, flags: str) -> Path:
    """Compile the kernels and the program that prints their bits, if a source is newer."""
    folder = BUILD / "programs" / Path(compiler.split()[0]).name
    options = {
        "CMAKE_CXX_COMPILER": compiler.split()[0],
        "CMAKE_CXX_FLAGS": " ".join([*compiler.split()[1:], flags]),
        "GGML_SOURCES": str(sources / "ggml"),
        "GGML_LIBRARIES": str(libraries),
    }
    llama_build.compile_target("the kernels' program", ROOT / "tests" / "arm", folder, options, "kernel_bits")
    return folder / "kernel_bits"


def run(command: list[str], libraries: Path) -> tuple[list[str], bool]:
    """Run a program that finds ggml in a folder; return its output, and whether it succeeded."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(libraries)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode and not any(line.startswith("FAILED") for line in lines):
        lines.append(f"FAILED: ended with {done.returncode}: {done.stderr[-500:]}")
    return lines, done.returncode == 0


def compare(sources: Path) -> int:
    """Run the program here and on each processor, and compare."""
    here = compile_program(sources, os.environ.get("CXX", "g++"), HOST_LIBRARIES, "-DEAGLE3_VNNI")
    program = compile_program(sources, CROSS, library("neon").parent, "")
    expected, is_right = run([str(here)], HOST_LIBRARIES)
    print(f"x86-64: {len(expected)} results{'' if is_right else ', ' + expected[-1]}", flush=True)
    failed = not is_right

    def emulate(processor: str) -> tuple[list[str], bool]:
        command = [QEMU, "-cpu", processor, "-L", SYSROOT, str(program)]
        return run(command, library(PROCESSORS[processor]).parent)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for processor, (found, is_right) in zip(PROCESSORS, pool.map(emulate, PROCESSORS), strict=True):
            wrong = [f"{a} instead of {b}" for a, b in zip(found, expected, strict=False) if a != b]
            is_same = is_right and found == expected
            failed |= not is_same
            what = "the same bits" if is_same else f"FAILED: {'; '.join(wrong[:3] or found[-1:])}"
            print(f"{processor}: {what}", flush=True)
    return int(failed)


GENERATE = """
import json, platform
import llama_cpp
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.models import bundled_pair

target, head = map(str, bundled_pair())
found = {"machine": platform.machine()}
options = {"n_ctx": 256, "n_threads": 1, "verbose": False}
prompt, sampling = "import os\\n\\n\\ndef ", {"max_tokens": 24, "temperature": 0.0}
plain = llama_cpp.Llama(target, **options)
found["plain"] = plain(prompt, **sampling)["choices"][0]["text"]
plain.close()
for kernels in ("off", "on"):
    for draft in ("chain", "tree"):
        with Eagle3Llama(target, head, draft=draft, cpu_kernels=kernels, **options) as llm:
            found[f"{draft}, kernels {kernels}"] = llm(prompt, **sampling)["choices"][0]["text"]
            found[f"accepted of {draft}, kernels {kernels}"] = [llm.stats.accepted, llm.stats.drafted]
print(json.dumps(found))
"""
TESTS = {
    "tests/target/test_target.py": "",
    "tests/target/test_target_tree.py": "",
    "tests/drafters/test_drafter_tree.py": "",
    "tests/kernels/test_kernel_flash.py": "",
    "tests/engine/test_engine.py": "not (token or random or qwen3next or mamba2)",
}
"""Files of tests of the C++ side and the engine -> the tests of each that run (pytest's -k).

An emulated processor runs them in a quarter of an hour. The engine's whole file alone would take longer: of its six
pairs one with attention and one with a recurrent state remain, with streams, pools, batches, chains, trees, and both
ways to take rejected tokens back.
"""
TESTS_SECONDS = 1800.0  # for each file


def try_package(sources: Path) -> int:
    """Run the wheel under qemu: the texts that it generates must be plain llama_cpp's, and the tests must pass."""
    run_wheels.make_aarch64()
    libraries = build(sources, "dotprod", "llama")
    arm_python.prepare(shutil.which(QEMU) or QEMU, run_wheels.newest_wheel("linux-aarch64"), libraries)
    generated = arm_python.run(["-c", GENERATE], arm_python.FOLDER, TESTS_SECONDS)
    if generated.returncode:
        print(f"FAILED: generating ended with {generated.returncode}: {generated.stderr[-2000:]}")
        return 1
    found = json.loads(generated.stdout.splitlines()[-1])
    texts = {name: text for name, text in found.items() if isinstance(text, str) and name != "machine"}
    wrong = [name for name, text in texts.items() if text != found["plain"]]
    accepted = {name.removeprefix("accepted of "): n for name, n in found.items() if name.startswith("accepted")}
    is_right = found["machine"] == "aarch64" and not wrong and all(n[0] > 0 for n in accepted.values())
    print(f"{found['machine']}: {'the text of plain llama_cpp' if is_right else f'FAILED: {found}'}", flush=True)
    print(f"accepted of drafted tokens: {accepted}", flush=True)
    passed = [test_package(file, chosen) for file, chosen in TESTS.items()]
    return int(not (is_right and all(passed)))


def test_package(file: str, chosen: str) -> bool:
    """Run tests of a file under qemu; return whether all passed."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, file]
    try:
        tests = arm_python.run(command, ROOT, TESTS_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{file}: FAILED: not done in {TESTS_SECONDS / 60:.0f} minutes", flush=True)
        return False
    lines = tests.stdout.splitlines()[-1:] if tests.returncode == 0 else tests.stdout.splitlines()[-30:]
    print(f"{file}:", "\n".join(lines), tests.stderr[-500:], flush=True)
    return tests.returncode == 0


COUNTED = {
    "dotprod": ("q4_0_4x4", "q8_0_4x4", "iq4_nl_4x4", "mxfp4_4x4", "q4_K_8x4", "q5_K_8x4", "q6_K_8x4"),
    "i8mm": ("q4_0_4x8", "q8_0_4x8", "iq4_nl_4x4", "mxfp4_4x4", "q4_Kx8", "q5_K_8x8", "q6_K_8x8"),
}
"""Build -> kernels for weights as ggml repacks them."""


def print_counts(sources: Path) -> int:
    """Print instructions per 1,000 products and row, ours and ggml's, of one row and of four."""
    print("| kernel | rows | ours | ggml |")
    print("|---|---|---|---|")
    program = compile_program(sources, CROSS, library("neon").parent, "")
    for build, names in COUNTED.items():
        processor = {b: p for p, b in PROCESSORS.items()}[build]
        for name in names:
            for n_rows in (1, 4):
                ours, ggml = (
                    per_thousand(program, processor, library(build).parent, f"{name}/{side}", n_rows)
                    for side in (build, "ggml")
                )
                print(f"| {name}/{build} | {n_rows} | {ours:.1f} | {ggml:.1f} |", flush=True)
    return 0


def per_thousand(program: Path, processor: str, libraries: Path, kernel: str, n_rows: int) -> float:
    """Return the instructions that 16 channels of 1,024 inputs take more than 8 do."""
    counts = []
    for n_channels in (8, 16):
        log = program.with_suffix(".log")
        command = [QEMU, "-cpu", processor, "-L", SYSROOT, "-singlestep", "-d", "exec,nochain", "-D", str(log)]
        counted = [*command, str(program), "--count", kernel, str(n_rows), str(n_channels)]
        subprocess.run(counted, env=os.environ | {"LD_LIBRARY_PATH": str(libraries)}, check=True)
        with log.open() as lines:
            counts.append(sum(1 for _ in lines))
        log.unlink()
    return (counts[1] - counts[0]) / (8 * 1024 * n_rows) * 1000


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
