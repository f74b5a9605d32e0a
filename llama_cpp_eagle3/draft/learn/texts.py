"""The texts that a folder keeps: each token of a conversation once, though every request brings all of it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...files.json_file import open_regular
from .folder import Folder

Rows = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class TextEntry:
    """A line of the file of texts: a prompt and its answer, without what an earlier text begins with too."""

    id: int
    parent: int
    """The text that it begins like; -1: none."""
    n_shared: int
    """Tokens that it shares with that one, from the beginning."""
    own: list[int]
    """Its tokens after these."""
    n_prompt: int
    first_row: int
    """The first token of which there is a row in its file."""
    n_rows: int
    root: int
    """The first text of its conversation."""
    head: int
    """The version of the head that drafted it; 0: the one that came with the model."""
    n_steps: int
    n_tokens: int
    time: int

    @property
    def n_all(self) -> int:
        """Tokens of the whole text."""
        return self.n_shared + len(self.own)

    @property
    def n_answer(self) -> int:
        """Tokens of its answer."""
        return self.n_all - self.n_prompt

    def line(self) -> bytes:
        """As a line of the file."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


class Texts:
    """All texts of a folder, in the order in which they came."""

    def __init__(self, folder: Folder):
        """Read the file. A last line that a crash has cut off is left out."""
        self._rows = folder.rows
        self.by_id = {entry.id: entry for entry in _read(folder.texts)}

    def __iter__(self) -> Iterator[TextEntry]:
        return iter([*self.by_id.values()])  # another thread may add one

    def __len__(self) -> int:
        return len(self.by_id)

    @property
    def n_answer(self) -> int:
        """Tokens of all answers."""
        return sum(entry.n_answer for entry in self)

    def conversations(self) -> list[list[TextEntry]]:
        """The texts of each conversation, the one that was used last at the end."""
        found: dict[int, list[TextEntry]] = {}
        for entry in self:
            texts = found.pop(entry.root, [])
            found[entry.root] = [*texts, entry]
        return list(found.values())

    def tokens(self, entry: TextEntry) -> list[int]:
        """All tokens of a text."""
        parts, n = [entry.own], entry.n_shared
        while entry.parent >= 0:
            entry = self.by_id[entry.parent]
            parts.append(entry.own[: max(0, n - entry.n_shared)])
            n = min(n, entry.n_shared)
        return [token for part in reversed(parts) for token in part]

    def rows(self, entry: TextEntry, n_before: int) -> tuple[int, Rows]:
        """(first token, rows from there on) of a text, with those of earlier texts that it goes on from.

        n_before: tokens of the prompt of which rows are wanted, at most. Without its own rows there are none.
        """
        own = self._own_rows(entry)
        first, n, at = entry.first_row, entry.n_shared, entry
        wanted = max(0, entry.n_prompt - n_before)
        parts = [own]
        while len(own) and first > wanted and at.parent >= 0:
            at = self.by_id[at.parent]
            known = self._own_rows(at)
            begin, end = max(wanted, at.first_row), min(n, at.first_row + len(known))
            if begin < first <= end:
                parts.append(known[begin - at.first_row : first - at.first_row])
                first = begin
            n = min(n, at.n_shared)
        rows = np.concatenate(parts[::-1])
        return max(first, wanted), rows[max(0, wanted - first) :]

    def _own_rows(self, entry: TextEntry) -> Rows:
        try:
            rows = np.load(rows_path(self._rows, entry.id), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError):  # they had no room any more, or a crash has cut the file off
            rows = np.zeros((0, 0), np.float16)
        return rows if len(rows) == entry.n_rows and rows.ndim == 2 else np.zeros((0, 0), np.float16)


def rows_path(folder: Path, number: int) -> Path:
    """The file of a text's rows."""
    return folder / f"{number:07d}.npy"


def _read(path: Path) -> Iterator[TextEntry]:
    known: set[int] = set()
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                value: Any = json.loads(line) if line.endswith(b"\n") else None
                entry = TextEntry(**value)
            except (ValueError, TypeError, RecursionError):
                continue
            if entry.parent < 0 or entry.parent in known:
                known.add(entry.id)
                yield entry
