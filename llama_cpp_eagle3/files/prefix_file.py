"""Files of prefixes: states of target and drafters, for saved slots and for the folder of the prefix cache.

A file is a head, a body, and the SHA-256 of each:

    magic, n (uint32), n bytes of JSON, tokens (int32), SHA-256 of all of these
    target, draft, states                                the bytes that go back into contexts
    SHA-256 of the whole file before it

The JSON has the models and settings that made the file (`Maker`) and the length of each part. So an index of a folder
needs only the heads, and llama.cpp, which checks no numbers, gets nothing before the whole file was verified.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from .._core import SavedState
from ..engine.sequence import StoredPrefix
from .json_file import open_regular
from .whole_file import whole_file

MAGIC = b"EAGLE3SLOT\x04\n"
_N_DIGEST = hashlib.sha256().digest_size
_N_JSON_MAX = 1 << 20
_N_TOKENS_MAX = 1 << 27


class PrefixFileError(ValueError):
    """A file is no file of a prefix, or it is damaged."""


@dataclass(frozen=True, slots=True)
class Maker:
    """The models that can use a file: the target with all settings that change its states, and the drafters."""

    target: str
    """Fingerprint of the target's file."""
    settings: Mapping[str, Any]
    """Everything else that changes hidden states or the form of their bytes, ready for JSON."""
    draft: str
    """Fingerprint of the draft; empty without one."""
    draft_settings: Mapping[str, Any] = field(default_factory=dict)
    """What changes the form of the draft's bytes."""

    @property
    def key(self) -> str:
        """Digest of the target and its settings. The drafters' part of a file can be left out."""
        text = json.dumps([MAGIC.decode("latin-1"), self.target, self.settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def differs(self, other: Maker) -> str:
        """Which part of another maker's file cannot be used, and why; empty: all can."""
        for name, mine, found in (("target", self.target, other.target), ("draft", self.draft, other.draft)):
            if mine != found:
                return f"another {name}: fingerprint {found[:12] or 'none'}, this one has {mine[:12] or 'none'}"
        for ours, theirs in ((self.settings, other.settings), (self.draft_settings, other.draft_settings)):
            for name in sorted({*ours, *theirs}):
                mine, found = (json.dumps(settings.get(name)) for settings in (ours, theirs))
                if mine != found:
                    return f"another {name}: {found:.200}, this one has {mine:.200}"
        return ""

    def has_draft_of(self, other: Maker) -> bool:
        """Whether the drafters' part of another maker's file can be used."""
        ours, theirs = (json.dumps([m.draft, m.draft_settings], sort_keys=True) for m in (self, other))
        return ours == theirs


@dataclass(frozen=True, slots=True)
class FileHead:
    """The beginning of a file, whose digest is right."""

    maker: Maker
    tokens: list[int]
    n_turn: int
    """See `StoredPrefix`."""
    n_target: int
    n_draft: int
    states: list[tuple[int, int, int]]
    """(tokens, positions, bytes) of each."""
    n_bytes: int
    """Size of the head."""

    @property
    def n_file_bytes(self) -> int:
        """Size of the whole file."""
        return self.n_bytes + self.n_target + self.n_draft + sum(n for _, _, n in self.states) + _N_DIGEST


def write_prefix(path: Path, maker: Maker, stored: StoredPrefix) -> int:
    """Write a file, all of it or nothing, for its owner alone; returns its size in bytes.

    Raises:
        OSError: as `whole_file`.
    """
    head = _head(maker, stored)
    pieces = [head, stored.target, stored.draft, *(state.data for _, state in stored.states)]
    digest = hashlib.sha256()
    with whole_file(path, mode=0o600, follows=False) as part, part.open("wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.write(digest.digest())
    return sum(map(len, pieces)) + _N_DIGEST


def size_of(maker: Maker, stored: StoredPrefix) -> int:
    """Bytes of the file that `write_prefix` makes."""
    n_states = sum(state.n_bytes for _, state in stored.states)
    return len(_head(maker, stored)) + len(stored.target) + len(stored.draft) + n_states + _N_DIGEST


def read_head(path: Path) -> FileHead:
    """Read the beginning of a file, and check the file's length.

    Raises:
        PrefixFileError: it is no such file, or it is truncated or damaged there.
        OSError: the system's.
    """
    with open_regular(path, follow_link=False) as file:
        return _read_head(file)[0]


def read_prefix(path: Path) -> tuple[FileHead, StoredPrefix]:
    """Read a file, and verify all of it.

    Raises:
        PrefixFileError: it is no such file, or it is truncated or damaged.
        OSError: the system's.
    """
    with open_regular(path, follow_link=False) as file:
        head, data = _read_head(file)
        digest = hashlib.sha256(data)
        pieces = []
        for n in (head.n_target, head.n_draft, *(n for _, _, n in head.states)):
            piece = file.read(n)
            digest.update(piece)
            pieces.append(piece)
        if digest.digest() != file.read():
            raise PrefixFileError("it is damaged: its checksum does not match its contents")
    target, draft, *states = pieces
    saved = [(n, SavedState(n_past, data)) for (n, n_past, _), data in zip(head.states, states, strict=True)]
    return head, StoredPrefix(head.tokens, target, draft, saved, head.n_turn)


def _head(maker: Maker, stored: StoredPrefix) -> bytes:
    tokens = stored.tokens
    text = json.dumps(
        {
            "target": maker.target,
            "settings": dict(maker.settings),
            "draft": maker.draft,
            "draft_settings": dict(maker.draft_settings),
            "n_tokens": len(tokens),
            "n_turn": stored.n_turn,
            "n_target": len(stored.target),
            "n_draft": len(stored.draft),
            "states": [[n_tokens, state.n_past, state.n_bytes] for n_tokens, state in stored.states],
        },
        sort_keys=True,
    ).encode()
    head = MAGIC + struct.pack("<I", len(text)) + text + struct.pack(f"<{len(tokens)}i", *tokens)
    return head + hashlib.sha256(head).digest()


def _read_head(file: BinaryIO) -> tuple[FileHead, bytes]:
    begin = file.read(len(MAGIC) + 4)
    if not begin.startswith(MAGIC) or len(begin) < len(MAGIC) + 4:
        raise PrefixFileError("it is no file of a prefix, or one of another version")
    (n_text,) = struct.unpack_from("<I", begin, len(MAGIC))
    n_file = os.fstat(file.fileno()).st_size
    text = file.read(min(n_text, _N_JSON_MAX))
    try:
        about = json.loads(text.decode("ascii"))
        n_tokens, n_turn = _int(about["n_tokens"], _N_TOKENS_MAX), _int(about["n_turn"], _N_TOKENS_MAX)
        n_target, n_draft = _int(about["n_target"], n_file), _int(about["n_draft"], n_file)
        states = [
            (_int(n, n_tokens), _int(n_past, n_tokens), _int(n_bytes, n_file)) for n, n_past, n_bytes in about["states"]
        ]
        target, draft = _text(about["target"]), _text(about["draft"])
        maker = Maker(target, dict(about["settings"]), draft, dict(about.get("draft_settings", {})))
        _ = maker.key  # can it be written?
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise PrefixFileError("it is truncated or damaged: its header cannot be read") from e
    if any(n_bytes == 0 for _, _, n_bytes in states):
        raise PrefixFileError("it is damaged: its header has impossible states")
    head = FileHead(maker, [], n_turn, n_target, n_draft, states, len(begin) + n_text + 4 * n_tokens + _N_DIGEST)
    if n_file != head.n_file_bytes:
        raise PrefixFileError(f"it is truncated or damaged: expected {head.n_file_bytes} bytes, found {n_file}")
    tokens, seal = file.read(4 * n_tokens), file.read(_N_DIGEST)
    data = begin + text + tokens
    if hashlib.sha256(data).digest() != seal:
        raise PrefixFileError("it is truncated or damaged: the checksum of its header does not match")
    return replace(head, tokens=list(struct.unpack(f"<{n_tokens}i", tokens))), data + seal


def _int(value: Any, n_max: int) -> int:
    if type(value) is not int or not 0 <= value <= n_max:
        raise ValueError("not a length")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
