"""The installed package names the licences of its parts, and has their texts."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import pytest

TEXTS = {
    "LICENSE": "The llama-cpp-eagle3 authors",
    "llama_cpp_eagle3/models/LICENSE": "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2",
    "LICENSE-llama.cpp": "The ggml authors",
    "LICENSE-nlohmann-json": "Niels Lohmann",
    "LICENSE-miniaudio": "David Reid",
    "LICENSE-pybind11": "Wenzel Jakob",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    installed = distribution("llama-cpp-eagle3")
    (path,) = (file for file in installed.files or () if file.as_posix().endswith(f".dist-info/licenses/{name}"))
    text = Path(str(installed.locate_file(path))).read_text(encoding="utf-8")
    assert TEXTS[name] in text
    assert len(text) > 1000


def test_metadata() -> None:
    metadata = distribution("llama-cpp-eagle3").metadata
    assert metadata["License-Expression"] == "MIT AND BSD-3-Clause AND PSF-2.0 AND (Unlicense OR MIT-0)"
    assert metadata.get_all("License-File") == [
        "LICENSE",
        "llama_cpp_eagle3/models/LICENSE",
    ]
