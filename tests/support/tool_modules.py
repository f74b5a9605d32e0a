"""Programs of `tools/` as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[2] / "tools"


def load_tool(name: str) -> Any:
    """The module of `tools/NAME.py`."""
    spec = importlib.util.spec_from_file_location(f"{name}_tool", _FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
