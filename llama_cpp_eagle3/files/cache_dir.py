"""The folder of what can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ENV_CACHE = "LLAMA_CPP_EAGLE3_CACHE"


def cache_dir() -> Path:
    """Where we keep what can be made again: LLAMA_CPP_EAGLE3_CACHE, or a folder where this platform has such things."""
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
