"""Shells complete commands and their flags."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("argcomplete")


def completions(line: str, folder: Path) -> set[str]:
    """Return what argcomplete offers after a line, asked as bash asks: the answer comes on descriptor 8."""
    answer = folder / "answer"
    descriptor = os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    try:
        code = "import sys; sys.argv[0] = 'llama-cpp-eagle3'; from llama_cpp_eagle3.cli import main; main([])"
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, check=False, timeout=60)
    finally:
        os.close(descriptor)
    return set(answer.read_text().split("\n"))


def test_commands(tmp_path: Path) -> None:
    assert {"serve", "speculative-simple"} <= completions("llama-cpp-eagle3 s", tmp_path)


def test_flags_and_files(tmp_path: Path) -> None:
    found = completions("llama-cpp-eagle3 calibrate --hf-", tmp_path)
    assert {"--hf-repo", "--hf-file", "--hf-repo-draft"} <= found
    assert "--model" not in found
    (tmp_path / "target.gguf").write_text("")
    assert "target.gguf" in {name.strip() for name in completions("llama-cpp-eagle3 calibrate -m ta", tmp_path)}
