"""Fixtures: a pair whose head is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiny import write_perfect_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return a target and a head that is always right."""
    folder: Path = tmp_path_factory.mktemp("learn")
    return write_perfect_pair(folder / "target.gguf", folder / "head.gguf")
