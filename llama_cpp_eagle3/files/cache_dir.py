"""The folder for files that can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ENV_CACHE = "LLAMA_CPP_EAGLE3_CACHE"


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
