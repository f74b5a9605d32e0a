"""GGUF files, right or wrong: read into fields and tensors, and written back with any content."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf

U32, I32, F32, BOOL, STR, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
NUMBERS = tuple(_FORMATS)
_BITS = {0: 8, 1: 8, 2: 16, 3: 16, 4: 32, 5: 32, 7: 8, 10: 64, 11: 64}


@dataclass
class Field:
    """A key with its value. `item` is the type of an array's elements."""

    key: bytes
    type: int
    value: Any
    item: int = U32

    @property
    def is_number(self) -> bool:
        """Whether the value is one number or a bool."""
        return self.type in _FORMATS


@dataclass
class Tensor:
    """A tensor's description, and its bytes. `offset` is None where it follows from the tensors before."""

    name: bytes
    dims: list[int]
    type: int
    data: bytes
    offset: int | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes that shape and type ask for, as far as they are valid."""
        try:
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(self.type)]
        except ValueError:
            return len(self.data)
        n = math.prod(self.dims)
        return n // block * size if 0 <= n < 1 << 28 else len(self.data)

    def resize(self) -> None:
        """Give the data as many bytes as shape and type ask for."""
        n = self.n_bytes
        self.data = (self.data * (n // len(self.data) + 1) if self.data else bytes(n))[:n]


@dataclass
class RawFile:
    """The parts of a file."""

    fields: list[Field] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    n_fields: int | None = None  # the header's number, if not the real one
    n_tensors: int | None = None

    def find(self, key: str) -> Field | None:
        """Return the field of a key."""
        return next((f for f in self.fields if f.key == key.encode()), None)

    def get(self, key: str) -> Any:
        """Return the value of a key, None without it."""
        found = self.find(key)
        return found.value if found else None

    def set(self, key: str, type: int, value: Any, item: int = U32) -> None:
        """Set a key, or add it."""
        self.remove(key)
        self.fields.append(Field(key.encode(), type, value, item))

    def remove(self, key: str) -> None:
        """Remove a key."""
        self.fields = [f for f in self.fields if f.key != key.encode()]

    @property
    def arch(self) -> str:
        """The architecture's name."""
        value = self.get("general.architecture")
        return value.decode(errors="replace") if isinstance(value, bytes) else ""


def parse(data: bytes) -> RawFile:
    """Read a good file."""
    at = 4

    def number(kind: int) -> Any:
        nonlocal at
        (value,) = struct.unpack_from("<" + _FORMATS[kind], data, at)
        at += struct.calcsize(_FORMATS[kind])
        return value

    def text() -> bytes:
        nonlocal at
        n = number(U64)
        at += n
        return data[at - n : at]

    def value_of(kind: int) -> Any:
        return text() if kind == STR else number(kind)

    file = RawFile(version=number(U32))
    n_tensors, n_fields = number(U64), number(U64)
    for _ in range(n_fields):
        key, kind = text(), number(U32)
        if kind != ARRAY:
            file.fields.append(Field(key, kind, value_of(kind)))
        else:
            item, n = number(U32), number(U64)
            file.fields.append(Field(key, kind, [value_of(item) for _ in range(n)], item))
    offsets = []
    for _ in range(n_tensors):
        name = text()
        dims = [number(U64) for _ in range(number(U32))]
        file.tensors.append(Tensor(name, dims, number(U32), b""))
        offsets.append(number(U64))
    begin = _padded(at)
    for t, offset in zip(file.tensors, offsets, strict=True):
        t.data = data[begin + offset : begin + offset + t.n_bytes]
    return file


def serialize(file: RawFile) -> bytes:
    """Write a file, valid or not."""
    n_tensors = len(file.tensors) if file.n_tensors is None else file.n_tensors
    n_fields = len(file.fields) if file.n_fields is None else file.n_fields
    out = bytearray(b"GGUF" + struct.pack("<IQQ", file.version, n_tensors, n_fields))
    for f in file.fields:
        out += _text(f.key) + struct.pack("<I", f.type)
        if f.type == ARRAY:
            out += struct.pack("<IQ", f.item, len(f.value))
            out += b"".join(_value(f.item, v) for v in f.value)
        else:
            out += _value(f.type, f.value)
    offset = 0
    for t in file.tensors:
        out += _text(t.name) + struct.pack("<I", len(t.dims))
        out += b"".join(struct.pack("<Q", d & (1 << 64) - 1) for d in t.dims)
        out += struct.pack("<IQ", t.type & (1 << 32) - 1, offset if t.offset is None else t.offset)
        offset += _padded(len(t.data))
    out += bytes(_padded(len(out)) - len(out))
    for t in file.tensors:
        out += t.data + bytes(_padded(len(t.data)) - len(t.data))
    return bytes(out)


def _padded(n: int) -> int:
    return -(-n // 32) * 32


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(kind: int, value: Any) -> bytes:
    """Return a value as its type says; numbers are cut to its bits, and unsuitable values become zero."""
    if kind == STR:
        return _text(value if isinstance(value, bytes) else str(value).encode())
    if kind not in _FORMATS:
        return b""
    if isinstance(value, (bytes, list)):
        value = len(value)
    if kind in _BITS:
        if isinstance(value, float):
            value = int(value) if math.isfinite(value) else 0
        n = 1 << _BITS[kind]
        value %= n
        if _FORMATS[kind].islower() and value >= n >> 1:
            value -= n
        return struct.pack("<" + _FORMATS[kind], value)
    try:
        return struct.pack("<" + _FORMATS[kind], float(value))
    except OverflowError:
        return struct.pack("<" + _FORMATS[kind], math.inf)


def spoil(path: Path, change: Any) -> Path:
    """Copy a file and change the copy."""
    file = parse(path.read_bytes())
    change(file)
    spoilt = path.with_name(f"spoilt-{path.name}")
    spoilt.write_bytes(serialize(file))
    return spoilt


def set_key(key: str, value: Any, kind: int = U32) -> Any:
    """Return a change that sets a key of the architecture."""
    return lambda file: file.set(f"{file.arch}.{key}", kind, value)
