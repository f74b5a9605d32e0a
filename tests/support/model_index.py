"""A folder of small wheels that stands for a package index, and an entry of the table of models for them."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from llama_cpp_eagle3 import models
from llama_cpp_eagle3.models.table import ModelFile, Part


def make_model_file(name: str, pieces: Sequence[bytes], folder: Path, package: str) -> ModelFile:
    """Make a model whose pieces lie in wheels in a folder; importing or installing a wheel would end the test."""
    folder.mkdir(exist_ok=True)
    parts = []
    for i, piece in enumerate(pieces, 1):
        part = package if len(pieces) == 1 else f"{package}{i}"
        module = part.replace("-", "_")
        with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{module}/data/part", piece)
            archive.writestr(f"{module}/__init__.py", "raise SystemExit\n")
            metadata = f"Metadata-Version: 2.1\nName: {part}\nVersion: 1.0\nRequires-Dist: no-such-package-at-all\n"
            archive.writestr(f"{module}-1.0.dist-info/METADATA", metadata)
            archive.writestr(f"{module}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{module}-1.0.dist-info/RECORD", "")
        parts.append(Part(f"{part}==1.0", f"{module}/data/part", len(piece), hashlib.sha256(piece).hexdigest()))
    whole = b"".join(pieces)
    digest = hashlib.sha256(whole).hexdigest()
    return ModelFile(name, name, f"{name}.gguf", "none", None, len(whole), digest, tuple(parts))


def use_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *files: ModelFile) -> None:
    """Let pip look only into tmp_path / "index"; the cache is tmp_path / "cache", and the table these files."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "model_files", lambda: {file.name: file for file in files})
