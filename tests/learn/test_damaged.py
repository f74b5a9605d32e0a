"""Files of `--learn` that are damaged, or that others have put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llama_cpp_eagle3.draft.learn import Folder, Texts
from llama_cpp_eagle3.draft.learn.folder import HEADS_JSON, TEXTS
from llama_cpp_eagle3.draft.learn.heads import Heads


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "learned")
    folder.make()
    return folder


@pytest.mark.parametrize("text", ["", "null", "{}", "[" * 100_000, '{"heads": 5}'])
def test_heads_that_cannot_be_read_are_said(folder: Folder, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """What was learned is not lost in silence; without such a file nothing was learned yet."""
    assert (list(Heads(folder).entries), caplog.messages) == ([0], [])
    path = folder.path / HEADS_JSON
    path.write_text(text)
    assert list(Heads(folder).entries) == [0]
    (said,) = caplog.messages
    assert said.startswith(f"'{path}' is damaged (")


def test_lines_that_are_no_texts(folder: Folder) -> None:
    (folder.path / TEXTS).write_text("[" * 100_000 + "\n5\n{}\n")
    assert list(Texts(folder)) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes FIFOs")
def test_a_fifo_is_not_waited_for(folder: Folder) -> None:
    os.mkfifo(folder.path / TEXTS)
    with pytest.raises(OSError, match="expected a regular file"):
        list(Texts(folder))
