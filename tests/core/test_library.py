"""The compiled module finds libllama: exactly one, of exactly one version."""

from __future__ import annotations

import gc
import os
import platform
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import llama_cpp
import pytest

import llama_cpp_eagle3
from llama_cpp_eagle3 import LibraryMismatchError, _core, _library

ROOT = Path(__file__).parents[2]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_one_libllama_is_mapped():
    result = run(
        "import llama_cpp_eagle3\n"
        "llama_cpp_eagle3._core.FeatureTap([1], 4, 64, 'llama')\n"
        "print(open('/proc/self/maps').read())"
    )
    assert result.returncode == 0, result.stderr
    files = {line.split()[-1] for line in result.stdout.splitlines() if "/" in line}
    for name in ("libllama", "libggml", "libggml-base"):
        found = sorted(f for f in files if re.fullmatch(rf"{name}\.so[.0-9]*", Path(f).name))
        assert len(found) == 1, f"{name}: {found}"
        assert Path(found[0]).parent == Path(llama_cpp.llama_cpp._lib._name).parent


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF")
def test_no_library_of_our_own():
    """The wheel contains only _core and _chat, without a search path."""
    core = Path(_core.__file__)
    modules = sorted(core.parent.rglob("*.so*"))
    assert [module.name.split(".")[0] for module in modules] == ["_chat", "_core"]
    for module in modules:
        binary = module.read_bytes()
        assert b"libllama.so.0" in binary
        assert b"$ORIGIN" not in binary


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors keep libgomp's default")
def test_threads_that_wait_sleep_soon():
    """libgomp reads it once; what the user has set stays, and so does the environment of child processes."""

    def told(code: str = "import llama_cpp_eagle3", **settings: str) -> list[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP", "OMP"))}
        environment |= {"OMP_DISPLAY_ENV": "verbose"} | settings
        code += "; import os; print('GOMP_SPINCOUNT' in os.environ, 'OMP_WAIT_POLICY' in os.environ)"
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
        )
        assert result.returncode == 0, result.stderr
        return [*result.stdout.split(), *re.findall(r"GOMP_SPINCOUNT = '(\w+)'", result.stderr)]

    default = told("import llama_cpp")
    if len(default) < 3:
        pytest.skip("llama.cpp is built without libgomp")
    assert told() == ["False", "False", "2000"] != default
    assert told(GOMP_SPINCOUNT="77") == ["True", "False", "77"]
    assert told(OMP_WAIT_POLICY="active") == ["False", "True", *told("import llama_cpp", OMP_WAIT_POLICY="active")[2:]]


def test_versions_agree():
    pinned = (ROOT / "vendor" / "llama_cpp_python_version").read_text().strip()
    assert pinned == llama_cpp_eagle3.LLAMA_CPP_PYTHON_VERSION
    assert pinned == _core.LLAMA_CPP_PYTHON_VERSION
    assert pinned == llama_cpp.__version__
    project = (ROOT / "pyproject.toml").read_text()
    assert f'"llama-cpp-python=={pinned}"' in project


@pytest.mark.parametrize("found", ["0.3.35", "0.3.37", "0.3.36+cu124"])
def test_other_versions_are_refused(monkeypatch, found):
    monkeypatch.setattr(llama_cpp, "__version__", found)
    with pytest.raises(LibraryMismatchError) as e:
        _library.load()
    assert found in str(e.value)
    assert "pip install llama-cpp-python==0.3.36" in str(e.value)
    assert isinstance(e.value, ImportError)


@pytest.mark.parametrize(
    "command",
    [["-m", "llama_cpp_eagle3"], [os.path.join(sysconfig.get_path("scripts"), "llama-cpp-eagle3")]],
    ids=["module", "script"],
)
@pytest.mark.parametrize("args", [["--version"], ["doctor"], ["chat", "--help"]], ids=" ".join)
def test_a_command_says_it_in_a_line(tmp_path: Path, command: list[str], args: list[str]) -> None:
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("__version__ = '0.3.30'\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, *command, *args], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout) == (2, "")
    expected = (
        "llama-cpp-eagle3: error: llama-cpp-eagle3 needs llama-cpp-python 0.3.36, found 0.3.30. Type `pip install "
        "llama-cpp-python==0.3.36`"
    )
    assert result.stderr.startswith(expected)
    assert result.stderr.count("\n") == 1


def test_an_import_says_it_without_our_own_lines(tmp_path: Path) -> None:
    """The last line has what was expected, what was found and what to type; before it is where the import is."""
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("__version__ = '0.3.30'\n")
    command = [sys.executable, "-c", "import llama_cpp_eagle3"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    expected = "needs llama-cpp-python 0.3.36, found 0.3.30. Type `pip install llama-cpp-python==0.3.36`"
    assert expected in result.stderr.splitlines()[-1]
    assert re.findall(r'File "(?:.*/)?(\S+)", line \d+, in (\S+)', result.stderr) == [
        ("<string>", "<module>"),
        ("__init__.py", "<module>"),
        ("_library.py", "load"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "raise RuntimeError('Failed to load shared library')",
            "cannot be imported: Failed to load shared library. Type",
        ),
        ("raise FileNotFoundError(2, 'No such file', 'libcuda.so.1')", "libcuda.so.1'. Type `pip install"),
        ("import no_such_module", "No module named 'no_such_module'. Type `pip install llama-cpp-python=="),
        (
            "import llama_cpp.nothing",
            "No module named 'llama_cpp.nothing'. Type `pip install --force-reinstall --no-deps",
        ),
        ("from llama_cpp import nothing", "cannot be imported: cannot import name 'nothing'"),
        ("class (", "cannot be imported: invalid syntax (__init__.py, line 1). Type"),
        ("raise KeyError", "cannot be imported: KeyError(). Type"),
        ("raise ValueError('a\\n b')", "cannot be imported: a b. Type"),
        ("__version__ = '0.3.36'", "cannot be imported: module 'llama_cpp' has no attribute 'llama_cpp'. Type"),
        ("", "llama-cpp-python 0.3.36, found "),
        (None, "without a version. Type"),
    ],
    ids=lambda text: text and text[:20],
)
def test_a_damaged_llama_cpp(tmp_path: Path, text: str | None, said: str) -> None:
    """A library or a module that it needs is missing, or a folder has its name."""
    (tmp_path / "llama_cpp").mkdir()
    if text is not None:
        (tmp_path / "llama_cpp" / "__init__.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-S", "-c", "import llama_cpp_eagle3"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert "LibraryMismatchError: " in result.stderr.splitlines()[-1]
    assert said in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [["-m", "llama_cpp_eagle3", "doctor"], ["-c", "import llama_cpp_eagle3"]])
def test_a_llama_cpp_that_lacks_a_name(tmp_path: Path, command: list[str]) -> None:
    """It has the right version, and another file inside."""
    theirs, own = Path(llama_cpp.__file__).parent, tmp_path / "llama_cpp"
    own.mkdir()
    for entry in theirs.iterdir():
        if entry.name not in ("__pycache__", "llama.py"):
            (own / entry.name).symlink_to(entry)
    (own / "llama.py").write_text((theirs / "llama.py").read_text() + "\ndel LogitsProcessorList\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    result = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)
    line = result.stderr.splitlines()[-1]
    assert "llama-cpp-python 0.3.36 is damaged: cannot import name 'LogitsProcessorList' from 'llama_cpp'" in line
    assert "Type `pip install --force-reinstall" in line
    if command[0] == "-m":
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("code", ["llama_cpp.nothing", "import llama_cpp.nothing", "from llama_cpp import nothing"])
def test_what_llama_cpp_lacks_is_known_later_too(code: str) -> None:
    with pytest.raises(LibraryMismatchError, match=r"is damaged: .*nothing"), _library.mismatches():
        exec(code)


def test_a_module_of_llama_cpp_that_lacks_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a module can be imported, and fails when it is used."""
    gc.collect()  # what other tests have left is freed by that module
    monkeypatch.delattr(llama_cpp._internals, "llama_cpp")
    told = "is damaged: name 'llama_cpp' is not defined"
    with pytest.raises(LibraryMismatchError, match=told), _library.mismatches():
        llama_cpp._internals.LlamaBatch(n_tokens=1, embd=0, n_seq_max=1, verbose=False)


def test_a_library_of_images_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "libmtmd.so").write_text("no library")
    told = r"is damaged: Failed to load shared library '.*libmtmd.so': .*Type `pip install --force-reinstall"
    with pytest.raises(LibraryMismatchError, match=told), _library.mismatches():
        llama_cpp._ctypes_extensions.load_shared_library("mtmd", tmp_path)


@pytest.mark.parametrize("code", ["os.nothing", "import llama_cpp_eagle3.nothing", "nothing"])
def test_what_others_lack_is_theirs(code: str) -> None:
    with pytest.raises((AttributeError, ModuleNotFoundError, NameError)) as e, _library.mismatches():
        exec(code)
    assert not isinstance(e.value, LibraryMismatchError)


def test_missing_llama_cpp():
    result = run("import sys\nsys.modules['llama_cpp'] = None\nimport llama_cpp_eagle3")
    assert "LibraryMismatchError: llama-cpp-python is not installed" in result.stderr
    assert "pip install llama-cpp-python==0.3.36" in result.stderr


def test_library_without_our_symbols():
    """If llama_cpp has loaded no libllama, the compiled module does not load another one by itself."""
    result = run(
        "import sys, types\n"
        "fake = types.ModuleType('llama_cpp')\n"
        "fake.__version__ = '0.3.36'\n"
        "fake.llama_cpp = types.SimpleNamespace(_lib=types.SimpleNamespace(_name='/nowhere/libllama.so'))\n"
        "sys.modules['llama_cpp'] = fake\n"
        "import llama_cpp_eagle3"
    )
    assert "LibraryMismatchError: the compiled module does not fit the loaded libllama (/nowhere" in result.stderr


def test_typed():
    assert (Path(llama_cpp_eagle3.__file__).parent / "py.typed").exists()
