"""A perfect pair, served."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Running
from tiny import write_perfect_pair


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Undo what the command does to the server's log."""
    logger = logging.getLogger("llama_cpp_eagle3.serve")
    yield
    logger.handlers.clear()
    logger.propagate = True


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A target and a head that is always right."""
    folder: Path = tmp_path_factory.mktemp("serve")
    return write_perfect_pair(folder / "target.gguf", folder / "head.gguf")


@pytest.fixture(scope="module")
def running(pair: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The pair, served with two slots; drafts are chains of four."""
    folder = tmp_path_factory.mktemp("slots")
    with Running(*pair, draft_n_max=4, options={"slot_save_path": folder}) as running:
        yield running
