"""The folder of `--learn`, and for which model its texts and heads are.

about.json     the model: target, adapters, boundaries
texts.jsonl    a line for each text that was kept
rows/          hidden states of these texts, a file for each
heads/         the last heads
heads.json     what is known of all heads, and how long was learned
round/         a training that is not over
lock           held by the process that keeps and learns
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import Eagle3Error
from ...files.file_lock import lock_if_free
from ...files.json_file import read_json
from ...files.whole_file import whole_file

ABOUT, TEXTS, ROWS, HEADS, HEADS_JSON, ROUND, LOCK = _OURS = (
    *("about.json", "texts.jsonl", "rows", "heads", "heads.json", "round", "lock"),
)
_VERSION = 1
N_BYTES_MAX = 4 << 30
"""Bytes of the folder, by default."""


@dataclass(frozen=True, slots=True)
class Key:
    """The model that texts and heads are of. Rows and heads of another one are worth nothing."""

    target: str
    """Fingerprint of its file."""
    lora: list[list[Any]]
    """Fingerprint and scale of each adapter."""
    boundaries: list[int]
    """Layers' inputs that the rows have; empty: none are kept."""

    def difference(self, other: Key) -> str:
        """How another folder's model differs; empty: it is the same."""
        if self.target != other.target:
            return f"another target: fingerprint {other.target[:12]}, this one has {self.target[:12]}"
        if self.lora != other.lora:
            return f"other LoRA adapters: {len(other.lora)} with their scales, this model has {len(self.lora)}"
        if self.boundaries and other.boundaries and self.boundaries != other.boundaries:
            return f"a head that reads other layers: {other.boundaries}, this one reads {self.boundaries}"
        return ""


class Folder:
    """A folder that texts are kept in. One process at a time holds it; others only read."""

    def __init__(self, path: str | os.PathLike[str]):
        """Name it; `make` makes it."""
        self.path = Path(path).expanduser()
        self._fd = -1

    @property
    def texts(self) -> Path:
        """The file of texts."""
        return self.path / TEXTS

    @property
    def rows(self) -> Path:
        """The folder of hidden states."""
        return self.path / ROWS

    @property
    def heads(self) -> Path:
        """The folder of heads."""
        return self.path / HEADS

    @property
    def round(self) -> Path:
        """The folder of a training that is not over."""
        return self.path / ROUND

    def make(self) -> None:
        """Make it, for its owner alone, or check one that is there.

        Raises:
            OSError: it cannot be used, or belongs to another user.
            Eagle3Error: it holds files that are none of ours.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and self.path.stat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(self.path))
        self.check_ours()
        for folder in (self.path, self.rows, self.heads):
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chmod(folder, 0o700)

    def check_ours(self) -> None:
        """Raise Eagle3Error if it holds other files than those of `--learn`."""
        others = sorted({entry.name for entry in self.path.iterdir()} - {*_OURS})
        others = [name for name in others if not name.endswith(".part")]  # of a process that was killed
        if others:
            raise Eagle3Error(
                f"--learn (learn_dir): '{self.path}' holds other files ({', '.join(others[:3])}): name a folder for "
                "what is learned alone"
            )

    def hold(self) -> bool:
        """Whether this process keeps and learns here from now on; False: another one does."""
        fd = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if lock_if_free(fd):
            self._fd = fd
            return True
        os.close(fd)
        return False

    def release(self) -> None:
        """Let another process hold it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # whose it is

    def about(self) -> dict[str, Any]:
        """What about.json says; empty: it is a new folder.

        Raises:
            Eagle3Error: the file is damaged, or of another version.
        """
        path = self.path / ABOUT
        try:
            found = read_json(path)
            if found["version"] == _VERSION:
                Key(**found["key"])
                return dict(found)
            why = f"it has version {found['version']}, this program writes {_VERSION}"
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as e:
            why = f"it is damaged ({type(e).__name__}: {e})"
        raise Eagle3Error(f"'{path}': {why}: name another folder, or `llama-cpp-eagle3 learn '{self.path}' --forget`")

    def claim(self, key: Key, target: str, head: str | None) -> None:
        """Note the model that texts are kept of, or refuse a folder of another one by name.

        target, head: their files, for a training and for those who look.

        Raises:
            Eagle3Error: the folder is of another model.
        """
        about = self.about()
        if about:
            known = Key(**about["key"])
            if difference := key.difference(known):
                raise self.refusal(difference, target)
            if not key.boundaries:
                key = known
        write_json(
            self.path / ABOUT,
            {"version": _VERSION, "key": asdict(key), "target": os.path.abspath(target), "head": head},
        )

    def refusal(self, difference: str, target: str) -> Eagle3Error:
        """The error for a model that the folder is not of."""
        return Eagle3Error(
            f"--learn (learn_dir): '{self.path}' is of {difference} ('{self.about()['target']}' there, '{target}' "
            "here). Name another folder for this model"
        )

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(size_of(entry) for entry in self.path.rglob("*"))


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if there is none."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def write_json(path: Path, value: Any) -> None:
    """Write a file for its owner alone, as a whole."""
    with whole_file(path, mode=0o600) as part:
        part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def forget(path: str | os.PathLike[str]) -> int:
    """Remove all that is kept and learned in a folder, and the folder; returns the bytes.

    Raises:
        Eagle3Error: a process holds it, or it holds files that are none of ours.
        OSError: the system's.
    """
    folder = Folder(path)
    if not folder.path.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(folder.path))
    folder.check_ours()
    if not folder.hold():
        raise Eagle3Error(f"'{folder.path}': a process keeps texts there: end it first")
    try:
        n_bytes = folder.n_bytes
        for name in set(_OURS) - {LOCK}:
            entry = folder.path / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                with suppress(FileNotFoundError):
                    entry.unlink()
        for part in folder.path.glob("*.part"):
            part.unlink()
    finally:
        folder.release()
    (folder.path / LOCK).unlink()
    folder.path.rmdir()
    return n_bytes
