"""Every Python snippet of the README runs, in order, as one program."""

import re
import runpy
from pathlib import Path

from llama_cpp_eagle3 import models
from tiny import write_perfect_pair

README = Path(__file__).parents[2] / "README.md"


def test_readme_snippets(tmp_path, capsys, monkeypatch):
    """The snippets run with a tiny pair in place of those that are fetched; the names that they use are ours."""
    pair = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf")
    text = README.read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(snippets) >= 2
    assert len(snippets[0].strip().splitlines()) <= 4
    assert text.index(snippets[0]) < text.index("\n|")  # before any table
    named = re.findall(r'Eagle3Llama\("([^"]+)", "([^"]+)"', text)
    assert named
    assert {name for names in named for name in names} <= set(models.names())
    monkeypatch.setattr(models, "fetched", lambda name, log: pair[name.endswith("eagle3")].path)
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
