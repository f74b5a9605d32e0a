"""Aider.

export OPENAI_API_KEY=none OPENAI_API_BASE=http://localhost:8080/v1
aider --model openai/any
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from checks import V1, program, run

TARGET = "qwen2.5-coder-1.5b"


def a_file_is_edited() -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    Path("area.py").write_text("def area(r):\n    pass\n")
    options = ["--model", "openai/any", "--edit-format", "whole", "--no-auto-commits", "--no-analytics", "--yes-always"]
    options += ["--no-show-model-warnings", "--no-check-update", "--no-gitignore", "--map-tokens", "0"]
    task = "Let area return 3.14 * r * r instead of pass."
    run(program("aider"), *options, "-m", task, "area.py", OPENAI_API_KEY="none", OPENAI_API_BASE=V1)
    assert "return 3.14" in Path("area.py").read_text()
