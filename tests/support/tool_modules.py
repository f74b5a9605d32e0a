"""Programs of `tools/` and `benchmarks/` as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


def load_tool(name: str, folder: str = "tools") -> Any:
    """The module of `FOLDER/NAME.py`."""
    spec = importlib.util.spec_from_file_location(f"{name}_tool", _ROOT / folder / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
