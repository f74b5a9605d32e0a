"""Build for other systems: wheels for Linux, and the modules for macOS and Windows.

    python tests/run_wheels.py [linux-x86_64 | linux-aarch64 | macos-arm64 | windows-x86_64 ...]

Wheels for Linux are made in dist: for x86-64 by this machine's compiler, for aarch64 by Debian's cross compiler. For
macOS and Windows the modules are compiled and linked with zig (PyPI's `ziglang`), to show that they can be; they are
not run, nor packed. Python's headers are Debian's (`python3.11`), whose version the modules are for. The results are
checked: their system, the libraries that they ask for by name, and on Linux that llama.cpp exports the symbols that
they need. This machine's wheel is also installed beside pip's llama-cpp-python in a new environment, where it
generates and a part of the tests runs (tools/wheel_builds.py). A system whose tools cannot be had is named, and left
out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import debian
import llama_build
from debian import CannotBeHad

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "wheels"
DIST = ROOT / "dist"

PYTHON, RELEASE = "3.11", "bookworm"
"""Debian's Python, whose headers are used, and the release that has it."""
ZIG = "0.17.0"
CROSS = "aarch64-linux-gnu"
WINDOWS = "x86_64-windows-gnu"
MODULES = ("_core", "_chat")
LIBRARIES = {
    "linux-x86_64": {"libllama.so.0", "libggml.so.0", "libggml-base.so.0"},
    "linux-aarch64": {"libllama.so.0", "libggml.so.0", "libggml-base.so.0"},
    "macos-arm64": {"@rpath/libllama.0.dylib", "@rpath/libggml.0.dylib", "@rpath/libggml-base.0.dylib"},
    "windows-x86_64": {"llama.dll", "ggml.dll", "ggml-base.dll"},
}
"""Libraries that `_core` must ask for by name."""

KINDS = {
    "linux-x86_64": [(0, b"\x7fELF"), (18, b"\x3e\x00")],
    "linux-aarch64": [(0, b"\x7fELF"), (18, b"\xb7\x00")],
    "macos-arm64": [(0, b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01")],
    "windows-x86_64": [(0, b"MZ")],
}
"""System -> the offsets and values that tell the kind of file and of processor."""


def main(arguments: list[str]) -> int:
    """Build; return 1 if something was wrong, 0 also if a tool cannot be had."""
    makers = {
        "linux-x86_64": make_native,
        "linux-aarch64": make_aarch64,
        "macos-arm64": link_macos,
        "windows-x86_64": link_windows,
    }
    unknown = set(arguments) - set(makers)
    if unknown:
        raise SystemExit(f"expected some of {', '.join(makers)}, found {', '.join(sorted(unknown))}")
    failed = False
    for name in arguments or makers:
        try:
            modules = makers[name]()
        except CannotBeHad as e:
            print(f"{name}: left out: {e}", flush=True)
            continue
        except subprocess.CalledProcessError as e:
            print(f"{name}: FAILED: {' '.join(map(str, e.cmd[:3]))} ... ended with {e.returncode}", flush=True)
            failed = True
            continue
        wrong = check(name, modules)
        if name == "linux-x86_64" and not wrong:
            wrong = try_wheel(newest_wheel(name))
        failed |= bool(wrong)
        print(f"{name}: {'FAILED: ' + '; '.join(wrong) if wrong else 'right'}", flush=True)
    return int(failed)


def make_native() -> list[Path]:
    """Make the wheel of this machine."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise CannotBeHad("this machine is another one")
    return make_wheel("linux-x86_64", {}, [])


def make_aarch64() -> list[Path]:
    """Make the wheel for aarch64 with the cross compiler, for Debian's Python."""
    require_python()
    if shutil.which(f"{CROSS}-g++") is None:
        debian.install([f"g++-{CROSS}"])
    suffix = f".cpython-{PYTHON.replace('.', '')}-{CROSS}.so"
    defines = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_C_COMPILER": f"{CROSS}-gcc",
        "CMAKE_CXX_COMPILER": f"{CROSS}-g++",
        "Python_INCLUDE_DIR": str(headers("linux-aarch64", arm64_config())),
        "PYTHON_MODULE_EXTENSION": suffix,
    }
    environment = {"_PYTHON_HOST_PLATFORM": "linux-aarch64", "SETUPTOOLS_EXT_SUFFIX": suffix}
    return make_wheel("linux-aarch64", environment, [f"{name}={value}" for name, value in defines.items()])


def make_wheel(name: str, environment: dict[str, str], defines: list[str]) -> list[Path]:
    """Make a wheel with pip, in dist; return its modules."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(DIST), "-C", f"build-dir={BUILD / name}"]
    for define in (f"LLAMA_CPP_SOURCE_DIR={llama_build.fetch(BUILD / 'llama.cpp')}", *defines):
        command += ["-C", f"cmake.define.{define}"]
    subprocess.run([*command, str(ROOT)], env=os.environ | environment, check=True)
    wheel = newest_wheel(name)
    out = BUILD / f"{name}-wheel"
    shutil.rmtree(out, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out)
    print(f"{name}: {wheel.relative_to(ROOT)}, {wheel.stat().st_size / 2**20:.1f} MiB", flush=True)
    return sorted((out / "llama_cpp_eagle3").glob("_c*.so"))


def newest_wheel(name: str) -> Path:
    """Return the last wheel for a system."""
    wheels = DIST.glob(f"llama_cpp_eagle3-*{name.replace('-', '_')}.whl")
    return max(wheels, key=lambda path: path.stat().st_mtime)


def link_macos() -> list[Path]:
    """Link the modules for macOS, with Linux's pyconfig.h for the same kind of processor: macOS' is made on macOS."""
    options = BUILD / "macos.cmake"
    BUILD.mkdir(parents=True, exist_ok=True)
    # zig's linker crashes on bundles, and Python loads a library just as well
    options.write_text('set(CMAKE_SHARED_MODULE_CREATE_CXX_FLAGS "-dynamiclib")\n')
    defines = {
        "CMAKE_PROJECT_INCLUDE": str(options),
        "CMAKE_SYSTEM_NAME": "Darwin",
        "CMAKE_SYSTEM_PROCESSOR": "arm64",
        "CMAKE_INSTALL_NAME_TOOL": shutil.which("true") or "true",  # nothing is installed
        "Python_INCLUDE_DIR": str(headers("macos-arm64", arm64_config())),
        "PYTHON_MODULE_EXTENSION": f".cpython-{PYTHON.replace('.', '')}-darwin.so",
    }
    return link("macos-arm64", "aarch64-macos.11.0", defines)


def link_windows() -> list[Path]:
    """Link the modules for Windows, with the ABI of MinGW: the headers of Microsoft's compiler cannot be had."""
    include = headers("windows-x86_64", python_source() / "PC" / "pyconfig.h")
    library = BUILD / f"libpython{PYTHON.replace('.', '')}.a"
    definitions = library.with_suffix(".def")
    definitions.write_text(python_exports(include))
    dlltool = [zig(), "dlltool", "-m", "i386:x86-64", "-d", str(definitions), "-l", str(library)]
    subprocess.run(dlltool, check=True)
    make_libdl()
    defines = {
        "CMAKE_SYSTEM_NAME": "Windows",
        "CMAKE_MODULE_LINKER_FLAGS": f"-L{BUILD}",
        "CMAKE_SYSTEM_PROCESSOR": "AMD64",
        "CMAKE_RC_COMPILER": str(wrapper("rc", ["rc"])),
        "Python_INCLUDE_DIR": str(include),
        "Python_LIBRARY": str(library),
        "PYTHON_MODULE_EXTENSION": f".cp{PYTHON.replace('.', '')}-win_amd64.pyd",
    }
    return link("windows-x86_64", WINDOWS, defines)


def make_libdl() -> None:
    """Make a stand-in for libdl, which CMake asks for since the Python that runs it was linked with it.

    It has the functions about the processor that a compiler's own library has, and zig's lacks.
    """
    source, archive = BUILD / "processor.c", BUILD / "libdl.a"
    source.write_text("unsigned __cpu_model[4], __cpu_features2[3];\n")
    object_ = source.with_suffix(".obj")
    subprocess.run([zig(), "cc", "-target", WINDOWS, "-O2", "-c", str(source), "-o", str(object_)], check=True)
    archive.unlink(missing_ok=True)
    subprocess.run([zig(), "ar", "rcs", str(archive), str(object_)], check=True)


def link(name: str, target: str, defines: dict[str, str]) -> list[Path]:
    """Compile and link the modules with zig."""
    pybind11 = subprocess.run(
        [sys.executable, "-m", "pybind11", "--cmakedir"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    defines = {
        "CMAKE_BUILD_TYPE": "Release",
        # Modules that are not run need not be fast. zig gets -O2, also when CMake tries it, since zig makes its C++
        # library anew for each kind of build
        "CMAKE_CXX_FLAGS_RELEASE": "-Xclang -O0 -DNDEBUG",
        "CMAKE_C_COMPILER": str(wrapper(f"{name}-cc", ["cc", "-target", target, "-O2"])),
        "CMAKE_CXX_COMPILER": str(wrapper(f"{name}-c++", ["c++", "-target", target, "-O2"])),
        "CMAKE_AR": str(wrapper("ar", ["ar"])),
        "CMAKE_RANLIB": str(wrapper("ranlib", ["ranlib"])),
        "LLAMA_CPP_SOURCE_DIR": str(llama_build.fetch(BUILD / "llama.cpp")),
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": pybind11,
        "CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",  # zig passes on no flags of CMake's for them
        **defines,
    }
    cmake = [sys.executable, "-m", "cmake"]
    flags = [f"-D{key}={value}" for key, value in defines.items()]
    folder = BUILD / name
    subprocess.run([*cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-Wno-dev", *flags], check=True)
    subprocess.run([*cmake, "--build", str(folder), "--", "-k", "0"], check=True)  # -k 0 shows all errors
    return sorted(folder / f"{module}{defines['PYTHON_MODULE_EXTENSION']}" for module in MODULES)


def check(name: str, modules: list[Path]) -> list[str]:
    """Return the errors of the modules."""
    if [module.name.split(".")[0] for module in modules] != sorted(MODULES):
        return [f"expected {' and '.join(MODULES)}, found {[module.name for module in modules]}"]
    wrong = []
    for module in modules:
        binary = module.read_bytes()
        wrong += [
            f"{module.name} is for another system" for at, kind in KINDS[name] if binary[at : at + len(kind)] != kind
        ]
        if module.name.startswith("_core"):
            missing = [library for library in LIBRARIES[name] if library.encode() not in binary]
            wrong += [f"{module.name} does not ask for {library}" for library in missing]
        if f"PyInit_{module.name.split('.')[0]}".encode() not in binary:
            wrong.append(f"{module.name} has no function that Python begins with")
        if name.startswith("linux"):
            unknown = symbols(module, "--undefined-only") - exported()
            wrong += [f"{module.name} asks for {symbol}, which llama.cpp does not export" for symbol in unknown]
    return wrong


def try_wheel(wheel: Path) -> list[str]:
    """Install a wheel beside a built llama-cpp-python in a new environment, and test it; return what is wrong."""
    folder = BUILD / "llama-cpp-python"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*command, f"llama-cpp-python=={llama_build.VERSION}"], check=True)
    (llama,) = folder.glob(f"llama_cpp_python-{llama_build.VERSION}-*.whl")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "wheel_builds.py"), "--tests", str(wheel), str(llama)], check=False
    )
    return ["it does not run in a new environment, see above"] if done.returncode else []


def symbols(library: Path, which: str) -> set[str]:
    """Return llama.cpp's names in a library's table."""
    command = [f"{CROSS}-nm" if "aarch64" in library.name else "nm", "-D", which, "--format=just-symbols", str(library)]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {name for name in listed.split() if re.search(r"^(_Z\d+)?(llama|ggml|gguf)_", name)}


def exported() -> set[str]:
    """Return the symbols that llama_cpp's libraries export."""
    folder = Path(str(distribution("llama-cpp-python").locate_file("llama_cpp/lib")))
    return set().union(*(symbols(library, "--defined-only") for library in folder.glob("lib*.so*")))


def require_python() -> None:
    """Require the Python for which pip makes wheels."""
    if sys.version_info[:2] != tuple(map(int, PYTHON.split("."))):
        raise CannotBeHad(f"this is not Python {PYTHON}, whose headers Debian {RELEASE} has")


def python_source() -> Path:
    """Fetch Python's own source, which has the headers of all systems."""
    apt = BUILD / "apt-source"
    if not list(apt.glob("*.orig.tar.*")):
        debian.download(apt, "deb-src", RELEASE, ["source", "--download-only", f"python{PYTHON}"])
    (archive,) = apt.glob("*.orig.tar.*")
    if not list(apt.glob("Python-*")):
        shutil.unpack_archive(archive, apt)
    (folder,) = apt.glob("Python-*")
    return folder


def headers(name: str, config: Path) -> Path:
    """Return a folder of Python's headers with a system's pyconfig.h."""
    folder = BUILD / f"python-{name}"
    shutil.copytree(python_source() / "Include", folder, dirs_exist_ok=True)
    shutil.copy(config, folder / "pyconfig.h")
    return folder


def arm64_config() -> Path:
    """Return pyconfig.h of Debian's Python for 64-bit ARM."""
    apt = BUILD / "apt-arm64"
    path = apt / "usr" / "include" / CROSS / f"python{PYTHON}" / "pyconfig.h"
    if not path.exists():
        debian.download(apt, "deb", RELEASE, ["download", f"libpython{PYTHON}-dev"], "arm64")
        (package,) = apt.glob("libpython*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(apt)], check=True)
    return path


def python_exports(include: Path) -> str:
    """Return a .def file of the functions that Python's headers declare."""
    functions: set[str] = set()
    data: set[str] = set()
    for header in include.rglob("*.h"):
        text = header.read_text(encoding="utf-8")
        functions |= set(re.findall(r"PyAPI_FUNC\([^)]*\)\s*(\w+)\s*\(", text))
        data |= set(re.findall(r"PyAPI_DATA\([^)]*\)\s*(\w+)", text))
    lines = [*sorted(functions), *(f"{name} DATA" for name in sorted(data - functions))]
    return "\n".join([f"LIBRARY python{PYTHON.replace('.', '')}.dll", "EXPORTS", *lines, ""])


def zig() -> str:
    """Return the path of zig, which pip puts into this environment."""
    try:
        found = version("ziglang")
    except PackageNotFoundError:
        found = ""
    if found != ZIG:
        install = [sys.executable, "-m", "pip", "install", "--quiet", f"ziglang=={ZIG}"]
        if subprocess.run(install, check=False).returncode:
            raise CannotBeHad(f"pip cannot install ziglang {ZIG}")
    return str(distribution("ziglang").locate_file("ziglang/zig"))


def wrapper(name: str, arguments: list[str]) -> Path:
    """Write a program that runs a command of zig's: CMake wants one word."""
    path = BUILD / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'#!/bin/sh\nexec {zig()} {" ".join(arguments)} "$@"\n'
    if not path.exists() or path.read_text() != text:  # a newer compiler makes CMake compile all again
        path.write_text(text)
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
