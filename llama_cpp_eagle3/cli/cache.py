"""List what the cache folder keeps, or remove it.

All of it but the history of chat is fetched or made again when it is needed.
--remove takes names as the list prints them: a kind, one file of a large kind
(models/FILE), or all.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from ..files.cache_dir import ENV_CACHE, cache_dir
from .line_editor import HISTORY_NAME
from .parser import Parser

_KINDS = {
    "models": "models that were fetched by name",
    "heads": "heads that were converted for -hfd",
    "drafters": "drafters' weights in a faster type",
    "costs": "what passes cost on this machine",
    "priors": "how often drafters were right",
    "kernels": "which CPU kernels are faster here",
    "fingerprints": "what identifies model files",
    "tried_files.txt": "files that llama.cpp could load",
    HISTORY_NAME: "messages that were typed in chat",
}
"""What this package keeps there; other programs' files are neither listed nor removed."""
_IN_FILES = ("models", "heads", "drafters")
"""Kinds whose files are listed one by one, as each may be large."""


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--remove", action="append", metavar="NAME", help="remove this; may be given several times")


def run(args: argparse.Namespace) -> int:
    """List, or remove.

    Raises:
        ValueError: a name that is to be removed is not listed.
        OSError: the system's, with the path.
    """
    folder, found = cache_dir(), entries(cache_dir())
    if args.remove:
        _remove(folder, found, args.remove)
        return 0
    print(f"{folder} ({ENV_CACHE} names another folder)")
    n_all = 0
    for name, path in found.items():
        n_bytes, used = _size_and_use(path)
        n_all += n_bytes
        days = int((time.time() - used) / 86400)
        print(f"{n_bytes / 1e6:10.1f} MB  {name:<52} {_KINDS[Path(name).parts[0]]}, {_ago(days)}")
    print(f"{n_all / 1e6:10.1f} MB in all")
    return 0


def entries(folder: Path) -> dict[str, Path]:
    """Paths of what is kept in the cache folder, by the name that the list prints."""
    found: dict[str, Path] = {}
    for kind in _KINDS:
        path = folder / kind
        if kind in _IN_FILES and _is_folder(path):
            found |= {f"{kind}/{entry.name}": entry for entry in sorted(path.iterdir())}
        elif path.exists():
            found[kind] = path
    return found


def _remove(folder: Path, found: dict[str, Path], names: list[str]) -> None:
    chosen: dict[str, Path] = {}
    for name in names:
        of = {key: path for key, path in found.items() if name in ("all", key, Path(key).parts[0])}
        if not of and name not in ("all", *_KINDS):
            raise ValueError(f"--remove: expected all or a name of the list, found {name!r}; '{folder}' has {[*found]}")
        chosen |= of
    n_bytes = 0
    for path in chosen.values():
        n_bytes += _size_and_use(path)[0]
        if _is_folder(path):
            shutil.rmtree(path)
        else:
            path.unlink()
    print(f"removed {', '.join(chosen) or 'nothing'}: {n_bytes / 1e6:.1f} MB")


def _is_folder(path: Path) -> bool:
    """Whether it is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def _size_and_use(path: Path) -> tuple[int, float]:
    """(bytes, when a file was last read or written) of a file or of a folder's files; links count as themselves."""
    files = [entry for entry in path.rglob("*") if not entry.is_dir()] if _is_folder(path) else [path]
    stats = [entry.lstat() for entry in files]
    return sum(found.st_size for found in stats), max(
        (max(found.st_mtime, found.st_atime) for found in stats), default=path.lstat().st_mtime
    )


def _ago(days: int) -> str:
    return "used today" if days < 1 else f"last used {days} days ago" if days > 1 else "last used yesterday"
