"""PyPI gguf's reader, with our errors for damaged files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gguf import GGUFReader, GGUFValueType

from llama_cpp_eagle3.errors import ModelFileError


@dataclass(frozen=True)
class KeyValue:
    """A key of a GGUF header as the writer wants it."""

    key: str
    value: Any
    kind: GGUFValueType
    sub_kind: GGUFValueType | None = None


@contextmanager
def _our_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, IndexError, KeyError, OSError) as e:
        raise ModelFileError(f"'{path}': not a readable GGUF file: {e}") from e


def open_gguf(path: str | Path, mode: Literal["r", "r+"] = "r") -> GGUFReader:
    """The file by memory map."""
    with _our_errors(path):
        return GGUFReader(path, mode)


def key_values(path: str | Path, reader: GGUFReader, prefix: str = "") -> list[KeyValue]:
    """The keys that begin with `prefix`."""
    with _our_errors(path):
        found = []
        for key, field in reader.fields.items():
            if key.startswith(prefix) and not key.startswith("GGUF."):
                kind = field.types[0]
                sub_kind = field.types[-1] if kind == GGUFValueType.ARRAY else None
                found.append(KeyValue(key, field.contents(), kind, sub_kind))
        return found
