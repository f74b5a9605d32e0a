"""The folder for files that can be made again."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from .whole_file import whole_file

ENV_CACHE = "LLAMA_CPP_EAGLE3_CACHE"
_log = logging.getLogger("llama_cpp_eagle3")
_refused = set[Path]()


def cache_dir() -> Path:
    """The folder for files that can be made again: LLAMA_CPP_EAGLE3_CACHE, or one in the platform's cache folder."""
    named = os.environ.get(ENV_CACHE)
    if named:
        return Path(named)
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "llama-cpp-eagle3"


def keep(path: Path, text: str) -> bool:
    """Write a file of the folder; returns whether it could be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, follows=False) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as e:
        tell_refused(path, e)
        return False
    return True


def tell_refused(path: Path, e: OSError) -> None:
    """Log that a file of the folder cannot be written: the first one of a process."""
    if (folder := cache_dir()) not in _refused:
        _refused.add(folder)
        why = f"cannot write '{path}', so what it is to keep is found out again at each start: {e.strerror or e}"
        _log.warning("%s; %s names another folder", why, ENV_CACHE)
