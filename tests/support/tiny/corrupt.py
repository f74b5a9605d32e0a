"""Ways to spoil a good GGUF file, and heads that do not fit their target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .head import write_head
from .target import Target


@dataclass(frozen=True)
class Corruption:
    """One way to spoil a head. `error` is the expected exception's name, `words` are in its message."""

    name: str
    error: str
    words: tuple[str, ...]
    make: Callable[[Path, Target], None]


def _truncated(path: Path, target: Target) -> None:
    write_head(path, target)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def _truncated_header(path: Path, target: Target) -> None:
    write_head(path, target)
    path.write_bytes(path.read_bytes()[:200])


def _wrong_arch(path: Path, target: Target) -> None:
    path.write_bytes(Path(target.path).read_bytes())


def _wrong_hidden_size(path: Path, target: Target) -> None:
    write_head(path, replace(target, n_embd=target.n_embd + 32))


def _d2t(path: Path, target: Target, change: Callable[[np.ndarray], None]) -> None:
    head = write_head(path, target)
    ids = np.array(head.d2t)
    change(ids)
    write_head(path, target, weights={"d2t": ids - np.arange(len(ids))})


def _set(index: int, value: int) -> Callable[[np.ndarray], None]:
    def change(ids: np.ndarray) -> None:
        ids[index] = value

    return change


def _copy(ids: np.ndarray) -> None:
    ids[7] = ids[8]


def _nan(name: str) -> Callable[[Path, Target], None]:
    def make(path: Path, target: Target) -> None:
        weights = np.array(write_head(path, target).weights[name])
        weights.reshape(-1)[5] = np.nan
        write_head(path, target, weights={name: weights})

    return make


def _drop_key(key: str) -> Callable[[Path, Target], None]:
    """Rename a key in place, so that it is missing and everything else keeps its offset."""

    def make(path: Path, target: Target) -> None:
        write_head(path, target)
        data = path.read_bytes()
        assert data.count(key.encode()) == 1
        path.write_bytes(data.replace(key.encode(), key[:-1].encode() + b"?"))

    return make


def patch_key(path: str | Path, key: str, value: int) -> None:
    """Overwrite the value of an unsigned 32-bit key in a file."""
    data = bytearray(Path(path).read_bytes())
    at = data.find(len(key).to_bytes(8, "little") + key.encode()) + 8 + len(key)
    assert data[at : at + 4] == (4).to_bytes(4, "little"), f"{key} is not a u32"
    data[at + 4 : at + 8] = value.to_bytes(4, "little")
    Path(path).write_bytes(data)


CORRUPTIONS = [
    Corruption("missing", "ModelFileError", (), lambda path, target: None),
    Corruption("zero_length", "ModelFileError", (), lambda path, target: path.write_bytes(b"")),
    Corruption("not_gguf", "ModelFileError", (), lambda path, target: path.write_bytes(b"PK\x03\x04" + bytes(4096))),
    Corruption("truncated", "ModelFileError", (), _truncated),
    Corruption("truncated_header", "ModelFileError", (), _truncated_header),
    Corruption("wrong_arch", "ModelFileError", ("llama", "eagle3"), _wrong_arch),
    Corruption("key_missing", "ModelFileError", ("eagle3.target_layers",), _drop_key("eagle3.target_layers")),
    Corruption("width_missing", "ModelFileError", ("embedding_length",), _drop_key("eagle3.embedding_length")),
    Corruption("tensor_missing", "ModelFileError", ("output_norm.weight",), _drop_key("output_norm.weight")),
    Corruption("wrong_hidden_size", "IncompatibleDraftError", ("64", "96"), _wrong_hidden_size),
    Corruption(
        "boundary_out_of_range",
        "IncompatibleDraftError",
        ("9", "4"),
        lambda path, target: write_head(path, target, boundaries=(1, 2, 9)) and None,
    ),
    Corruption(
        "wrong_vocab",
        "IncompatibleDraftError",
        ("320", "352"),
        lambda path, target: write_head(path, replace(target, n_vocab=352), own_embd=True) and None,
    ),
    Corruption(
        "wrong_vocab_no_d2t",
        "IncompatibleDraftError",
        ("320", "352"),
        lambda path, target: write_head(path, replace(target, n_vocab=352), n_vocab_dft=None) and None,
    ),
    Corruption(
        "d2t_out_of_range",
        "IncompatibleDraftError",
        ("d2t", "320"),
        lambda path, target: _d2t(path, target, _set(-1, 320)),
    ),
    Corruption("d2t_negative", "", ("d2t", "-3"), lambda path, target: _d2t(path, target, _set(0, -3))),
    Corruption("d2t_duplicate", "ModelFileError", ("d2t",), lambda path, target: _d2t(path, target, _copy)),
    Corruption("nan_matrix", "ModelFileError", ("attn_q.weight",), _nan("layers.0.self_attn.q_proj.weight")),
    Corruption("nan_norm", "ModelFileError", ("output_norm.weight",), _nan("norm.weight")),
]


def corrupt(name: str, path: str | Path, target: Target) -> Corruption:
    """Write the head spoilt in the way `name` (none for "missing"), and return the error that loading it must raise."""
    found = next(c for c in CORRUPTIONS if c.name == name)
    found.make(Path(path), target)
    return found
