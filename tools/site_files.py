"""Give the site the folders of the repository; mkdocs.yml names this file as a hook.

A relative link then leads to the same file on the site and in a clone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "*.md",
    "docs/*",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
    "benchmarks/results/*.svg",
    "examples/README.md",
    "tests/README.md",
)
LINKED = (
    "LICENSE",
    "examples/*.py",
    "llama_cpp_eagle3/**/*.py",
    "heads/llama_cpp_eagle3_heads/**/*.py",
    "llama_cpp_eagle3/*.pyi",
    "llama_cpp_eagle3/models/*",
    "models/**/*.md",
    "models/LICENSE",
    "benchmarks/results/*.json",
)
"""Files that pages link to."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the whole repository."""
    of_theme = [file for file in files if file.abs_src_path is None or not _is_in(file.abs_src_path, "docs")]
    found = {path for pattern in (*PAGES, *LINKED) for path in ROOT.glob(pattern) if path.is_file()}
    ours = [
        File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
        for path in sorted(found)
        if path.suffix != ".gguf"
    ]
    return Files([*of_theme, *ours])


def _is_in(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(ROOT / folder)
