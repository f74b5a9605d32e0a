"""A terminal gets errors without the whole usage, and colours only where they are wanted."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from llama_cpp_eagle3.cli import COMMANDS, main
from llama_cpp_eagle3.cli.flags import COMMON, CONVERSATION, HUB, LOAD, LOG, PROMPT, SAMPLING, SERVER
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


def help_of(command: str, flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as info:
        main([command, flag])
    assert info.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_of(command, "--help", capsys).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines[5:])) <= 80
    assert not any("LLAMA_ARG_" in line for line in lines)


@pytest.mark.parametrize("command", ["serve", "chat", "batch", "bench", "calibrate", "doctor", "speculative-simple"])
def test_help_of_all_flags(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The short help names the common flags, the long one every usable flag, in groups."""
    short, long = help_of(command, "--help", capsys), help_of(command, "--help-all", capsys)
    for name in ("-m, --model", "-md, --model-draft", "-c, --ctx-size", "--help-all"):
        assert name in short
    names = [name for line in short.splitlines() for name in re.findall(r"^  (?:-[a-z]+, )?(--[a-z-]+)", line)]
    assert len(names) > 10
    assert all(name in long for name in names)
    assert (long.splitlines()[0], long.count("options:")) == (short.splitlines()[0], 1)
    if command != "bench":
        assert "(env: LLAMA_ARG_CTX_SIZE)" in " ".join(long.split())
        assert "--yarn-orig-ctx" in long
        assert "--yarn-orig-ctx" not in short


def test_no_common_flag_is_forgotten() -> None:
    """Each common name is a flag's."""
    groups = [CONVERSATION, HUB, LOG, PROMPT, SAMPLING, SERVER, *LOAD.values()]
    assert {flag.attribute for flags in groups for flag in flags if not flag.why_not} >= COMMON


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
    monkeypatch.setenv("NO_COLOR", "")  # an empty value is like none
    assert is_coloured(_Terminal(), "auto")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_coloured(_Terminal(), "auto")
    assert is_coloured(_Terminal(), "on")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not is_coloured(_Terminal(), "auto")
    assert is_coloured(io.StringIO(), "on")
    assert not is_coloured(_Terminal(), "off")
