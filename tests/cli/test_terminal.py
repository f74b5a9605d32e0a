"""What the terminal sees: errors without the whole usage, colours only where they are wanted."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from llama_cpp_eagle3.cli import COMMANDS, main
from llama_cpp_eagle3.cli.writer import is_coloured


@pytest.mark.parametrize("args", [[], ["serv"], *([name, "--nonsense"] for name in COMMANDS)], ids=str)
def test_an_error_stands_alone(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        main(args)
    assert info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert "error: " in lines[0]
    assert "--help" in lines[0]


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("serve", "[flags]"),
        ("batch", "[flags] -o FNAME input"),
        ("quantize", "[flags] IN.gguf OUT.gguf type"),
    ],
)
def test_usage_is_short(command: str, usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        main([command, "--help"])
    assert info.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"usage: llama-cpp-eagle3 {command} {usage}", ""]


def test_types_in_capitals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "nothing.gguf")
    assert main(["quantize", missing, str(tmp_path / "out.gguf"), "Q4_0"]) == 2
    assert missing in capsys.readouterr().err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert is_coloured(_Terminal(), "auto")
    assert not is_coloured(io.StringIO(), "auto")
    monkeypatch.setenv("NO_COLOR", "")  # empty: as if it were not there
    assert is_coloured(_Terminal(), "auto")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_coloured(_Terminal(), "auto")
    assert is_coloured(_Terminal(), "on")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not is_coloured(_Terminal(), "auto")
    assert is_coloured(io.StringIO(), "on")
    assert not is_coloured(_Terminal(), "off")
