"""Every Python snippet of the README runs, in order, as one program."""

import re
import runpy
from pathlib import Path

from llama_cpp_eagle3 import models
from tiny import write_perfect_pair

README = Path(__file__).parents[2] / "README.md"


def test_readme_snippets(tmp_path, capsys, monkeypatch):
    """The snippets run with a tiny pair in place of the one that pip fetches."""
    pair = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf")
    monkeypatch.setattr(models, "smollm2", lambda say: tuple(model.path for model in pair))
    snippets = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)
    assert len(snippets) >= 2
    script = tmp_path / "readme.py"
    script.write_text("\n".join(snippets))
    names = runpy.run_path(str(script))
    names["llm"].close()
    assert "tokens/s" in capsys.readouterr().out


def test_readme_commands_exist():
    from llama_cpp_eagle3.cli import COMMANDS

    used = set(re.findall(r"^llama-cpp-eagle3 ([a-z-]+)", README.read_text(), re.M))
    assert used
    assert used <= set(COMMANDS)
