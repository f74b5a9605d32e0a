"""What several files of the repository say: versions, and what the workflows run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llama_cpp_eagle3 import LLAMA_CPP_PYTHON_VERSION, __version__

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"))
    if path.name != "CHANGELOG.md"
)
NOT_PINNED = {"pypa/gh-action-pypi-publish@release/v1"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_our_version_stands_in_one_place() -> None:
    """The others read it; the change log begins with it, or with what comes after it."""
    assert f'__version__ = "{__version__}"' in read("llama_cpp_eagle3/_version.py")
    for name in ("pyproject.toml", "heads/pyproject.toml", "models/pyproject.toml", "CMakeLists.txt", "CITATION.cff"):
        assert __version__ not in read(name).replace("cff-version", ""), name
    assert f"\n## [{__version__}]" in read("CHANGELOG.md")
    minor = __version__.rpartition(".")[0]
    assert re.search(
        rf"^\| {re.escape(minor)}\.x +\| {re.escape(LLAMA_CPP_PYTHON_VERSION)} +\|$", read("CHANGELOG.md"), re.M
    )


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_pages_name_one_llama_cpp_python(page: Path) -> None:
    found = set(re.findall(r"llama-cpp-python==(\d+\.\d+\.\d+)", page.read_text(encoding="utf-8")))
    assert found <= {LLAMA_CPP_PYTHON_VERSION}


@pytest.mark.parametrize("name", ["ci", "release"])
def test_actions_are_pinned(name: str) -> None:
    """An action is named by its commit, and its version stands beside it: a tag can be moved."""
    used = re.findall(r"uses: (.+)", read(f".github/workflows/{name}.yml"))
    assert used
    for action in set(used) - NOT_PINNED:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
