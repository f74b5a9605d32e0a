"""Commands whose extra is not installed say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ("starlette", "uvicorn", "pydantic", "httptools")


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        *(("serve", names) for names in (MODULES, *((name,) for name in MODULES[:3]))),
        *(("batch", names) for names in (MODULES, ("pydantic",))),  # it needs no HTTP server
    ],
)
def test_serve(command: str, missing: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("hello\n")
    more = ["in.txt", "-o", "out.jsonl"] if command == "batch" else []
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n"
        f"from llama_cpp_eagle3.cli import main\nsys.exit(main({[command, *more]}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "pip install 'llama-cpp-eagle3[serve]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not (tmp_path / "out.jsonl").exists()
