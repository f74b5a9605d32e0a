"""A clone's package folder hides the installed copy: it borrows its compiled module, or the error names the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import pytest

import llama_cpp_eagle3
from llama_cpp_eagle3 import _chat, _core
from llama_cpp_eagle3._library import sources_digest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path(llama_cpp_eagle3.__file__).parent


def copy_package(folder: Path, core: bool) -> Path:
    package = folder / "llama_cpp_eagle3"
    ignore = shutil.ignore_patterns("__pycache__", "*.gguf", "*.so", "*.pyd")
    shutil.copytree(PACKAGE, package, ignore=ignore)
    if core:
        for module in (_core, _chat):
            shutil.copy(module.__file__, package)
    return package


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Make a clone as git does, without anything compiled."""
    folder = tmp_path / "clone"
    copy_package(folder, core=False)
    for name in ("csrc", "vendor"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return the folder into which `pip install .` has put the package."""
    folder = tmp_path / "site"
    copy_package(folder, core=True)
    return folder


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the installed packages, without this one, which may be editable."""
    folder = tmp_path_factory.mktemp("libraries")
    for entry in Path(llama_cpp.__file__).parent.parent.iterdir():
        if "eagle3" not in entry.name.lower():
            (folder / entry.name).symlink_to(entry)
    return folder


@dataclass
class Python:
    """Runs Python in a clone, with some folders to import from."""

    clone: Path
    path: list[Path]

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, self.path))}
        command = [sys.executable, "-S", *args]  # without the code of editable packages that runs at the start
        return subprocess.run(command, cwd=self.clone, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def python(clone: Path, site: Path, libraries: Path) -> Python:
    return Python(clone, [site, libraries])


def test_digest() -> None:
    """CMake and Python compute the digest of the same sources."""
    assert sources_digest(ROOT) == _core.SOURCES_DIGEST


def test_the_installed_module_is_used(python: Python, clone: Path, site: Path) -> None:
    result = python("-c", "import llama_cpp_eagle3 as m; print(m.__file__); print(m._core.__file__)")
    assert result.returncode == 0, result.stderr
    package, core = result.stdout.split()
    assert Path(package) == clone / "llama_cpp_eagle3" / "__init__.py"
    assert Path(core).parent == site / "llama_cpp_eagle3"


def test_as_a_program(python: Python) -> None:
    result = python("-m", "llama_cpp_eagle3", "--help")
    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout


def test_in_pytest(python: Python, clone: Path) -> None:
    (clone / "test_it.py").write_text("import llama_cpp_eagle3._core\n\n\ndef test_it():\n    pass\n")
    result = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert result.returncode == 0, result.stdout


def test_without_sources_the_stubs_tell(python: Python, clone: Path) -> None:
    shutil.rmtree(clone / "csrc")
    assert python("-c", "import llama_cpp_eagle3").returncode == 0
    with (clone / "llama_cpp_eagle3" / "_core.pyi").open("a") as file:
        file.write("more: int\n")
    assert "was compiled from other sources" in python("-c", "import llama_cpp_eagle3").stderr


def test_other_sources(python: Python, clone: Path, site: Path) -> None:
    with (clone / "csrc" / "error.h").open("a") as file:
        file.write("// changed\n")
    result = python("-c", "import llama_cpp_eagle3")
    assert result.returncode == 1
    assert f"LibraryMismatchError: Python imports llama_cpp_eagle3 from '{clone / 'llama_cpp_eagle3'}'" in result.stderr
    assert f"that of '{site / 'llama_cpp_eagle3'}" in result.stderr
    assert "was compiled from other sources" in result.stderr
    assert f"pip install {clone}" in result.stderr
    assert "run Python in another folder" in result.stderr


def test_nothing_installed(python: Python, clone: Path, libraries: Path) -> None:
    python.path = [libraries]
    result = python("-c", "import llama_cpp_eagle3")
    assert result.returncode == 1
    assert "which has no compiled module, and no installed copy has one for Python 3." in result.stderr
    assert f"pip install {clone}" in result.stderr
    assert "llama-cpp-python==" not in result.stderr  # llama-cpp-python is not to blame
