"""The command line, as a user calls it."""

from __future__ import annotations

import io
import json
import os
import re
import select
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3 import Eagle3Llama, __version__
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.cli.speculative_simple import unescape
from llama_cpp_eagle3.cli.writer import Writer
from loading import load_plain, path_of, take

COMMAND = "speculative-simple"


@pytest.fixture
def flags(tiny_dir: Path) -> list[str]:
    """Return the flags of a pair whose drafts are all accepted, with few threads."""
    from tiny import write_perfect_pair

    target, head = write_perfect_pair(tiny_dir / "cli.gguf", tiny_dir / "cli-head.gguf")
    return ["-m", path_of(target), "-md", path_of(head), "-t", "1", "-c", "512"]


def run(*args: Any) -> int:
    return main([COMMAND, *(str(a) for a in args)])


def figure(text: str, name: str) -> float:
    """Return a figure from the block of figures."""
    found = re.search(rf"^{name} *= *([0-9.]+)", text, re.MULTILINE)
    assert found, f"no {name} in {text}"
    return float(found[1])


def test_text_and_figures(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*flags, "-p", "the self", "-n", 41, "--spec-draft-n-max", 4) == 0
    out, err = capsys.readouterr()
    with closing(load_plain(flags[1])) as plain:
        expected = plain.detokenize(take(plain, plain.tokenize(b"the self", special=True), 41))
    assert out == "the self" + expected.decode(errors="replace") + "\n"
    assert re.search(r"^encoded +\d+ tokens in +\d+\.\d{3} seconds, speed: +\d+\.\d{3} t/s$", err, re.MULTILINE)
    assert re.search(r"^decoded +41 tokens in +\d+\.\d{3} seconds, speed: +\d+\.\d{3} t/s$", err, re.MULTILINE)
    assert figure(err, "n_draft") == 4
    assert figure(err, "n_predict") == 41
    assert figure(err, "n_drafted") >= 32
    assert figure(err, "n_accept") >= 30
    assert figure(err, "accept") > 90
    assert figure(err, "mean acceptance length") > 4.4
    assert "accepted per position" in err
    for part in ("draft", "verify", "sample", "other"):
        assert figure(err, f"{part} ") >= 0
    assert re.search(r"weights read at \d+\.\d GB/s", err)


def test_trees(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*flags, "-p", "the self", "-n", 20, "--tree-depth", 3, "--tree-topk", 2, "--tree-tokens", 6) == 0
    err = capsys.readouterr().err
    assert "n_draft   = tree 3x2:6" in err
    assert figure(err, "n_drafted") >= 6


def test_json_and_baseline(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, reader = tmp_path / "figures.json", tmp_path / "reader"
    path.write_text("old")
    reader.hardlink_to(path)
    assert run(*flags, "-p", "the self", "-n", 20, "--baseline", "--json", path) == 0
    assert reader.read_text() == "old"  # a reader that has opened the old file sees it as a whole
    assert "times as fast" in capsys.readouterr().err
    document = json.loads(path.read_text())
    assert document["version"] == __version__
    assert document["tokens"] == document["baseline"]["tokens"] == 20
    assert document["same_text"] is True
    assert document["speedup"] > 0
    assert document["settings"]["draft_n_max"] is None
    assert document["draft"] == "auto"
    assert document["settings"]["prompt"] == "the self"
    assert document["draft_device"] == "CPU"
    assert document["finish_reason"] == "length"
    assert document["mean_acceptance_length"] > 1.5  # the number of drafted tokens depends on the costs of passes
    assert document["baseline"]["mean_acceptance_length"] == 1.0
    assert document["gb_per_second"] > 0

    assert run(*flags, "-p", "the self", "-n", 5, "--json", "-") == 0
    out = capsys.readouterr().out
    assert json.loads(out)["tokens"] == 5  # stdout has only JSON


@pytest.mark.parametrize("command", [[COMMAND, "-p", "a"], ["bench", "-n", "2", "-r", "1"]], ids=lambda c: c[0])
def test_reports_are_no_input(command: list[str], flags: list[str], tmp_path: Path, capsys: Any) -> None:
    """The error comes before anything runs."""
    pair = flags[:4]
    model = tmp_path / "model.gguf"
    model.write_bytes(Path(pair[1]).read_bytes())
    before = model.read_bytes()
    for name, word in ((str(model), "it is the input"), ("/dev/null", "no regular file")):
        assert main([*command, "-m", str(model), *pair[2:], "--json", name]) == 2
        out, err = capsys.readouterr()
        assert word in err
        assert not out
    assert model.read_bytes() == before


def test_prompt_from_a_file(flags: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("the\\n return\n")
    assert run(*flags, "-f", path, "-n", 3) == 0
    assert capsys.readouterr().out.startswith("the\\n return")  # files have no escapes; the last newline is dropped
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"of it")))
    assert run(*flags, "-f", "-", "-n", 3) == 0
    assert capsys.readouterr().out.startswith("of it")


def test_escapes(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert unescape(r"a\n\t\\n\'\"\q\\") == "a\n\t\\n'\"\\q\\"
    assert unescape("end\\") == "end\\"
    assert run(*flags, "-p", r"the\nself", "-n", 1) == 0
    assert capsys.readouterr().out.startswith("the\nself")
    assert run(*flags, "-p", r"the\nself", "-n", 1, "--no-escape") == 0
    assert capsys.readouterr().out.startswith(r"the\nself")


def test_colours(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*flags, "-p", "the self", "-n", "21", "--spec-draft-n-max", "4"]
    assert run(*flags, "--color", "on") == 0
    coloured = capsys.readouterr().out
    assert run(*flags) == 0
    plain = capsys.readouterr().out
    assert coloured.count("\x1b[36m") == coloured.count("\x1b[0m") >= 14
    assert re.sub("\x1b\\[[0-9]+m", "", coloured) == plain
    assert "\x1b" not in plain  # not a terminal


def test_characters_cut_by_tokens() -> None:
    out = io.StringIO()
    writer = Writer(out, "off")
    for i in range(len("aé€😀".encode())):
        writer.write_piece("aé€😀".encode()[i : i + 1], False)
    writer.write_piece("€".encode()[:2], False)
    writer.finish()
    assert out.getvalue() == "aé€😀\ufffd\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--temp", "0.8", "--seed", "3", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01"],
        ["--repeat-penalty", "1.2", "--presence-penalty", "0.1", "--frequency-penalty", "0.1"],
        ["-b", "16", "-ub", "8", "-fa", "on", "-ctk", "bf16", "-ctv", "f32"],
        ["-fa", "--spec-draft-type", "q4_0", "-ctkd", "f32", "-ctvd", "bf16", "-ngl", "0", "-ngld", "0"],
        ["--spec-draft-n-max", "5", "--spec-draft-n-min", "2", "--spec-draft-p-min", "0.5"],
        ["--spec-type", "none", "-tb", "2", "--no-mmap", "-ngl", "all", "-ngld", "auto"],
        ["--ignore-eos", "-n", "-1", "-c", "256"],
    ],
    ids=" ".join,
)
def test_flags(flags: list[str], options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*flags, "-p", "the self", "-n", 12, *options) == 0
    expected = 12 if "-n" not in options else 250
    assert figure(capsys.readouterr().err, "n_predict") >= expected


def test_ignore_eos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tiny import write_head, write_target

    target = write_target(tmp_path / "t.gguf", eos_scale=4.0)
    head = write_head(tmp_path / "h.gguf", target)
    options = ["-m", path_of(target), "-md", path_of(head), "-t", 1, "-p", "the self", "-n", 100]
    assert run(*options) == 0
    assert figure(capsys.readouterr().err, "n_predict") < 100
    for sampling in (["--temp", 0], ["--temp", 0.8], ["--temp", 0.8, "--top-k", 1]):
        assert run(*options, "--ignore-eos", *sampling) == 0
        assert figure(capsys.readouterr().err, "n_predict") == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-m", "nowhere.gguf", "-p", "x"], "nowhere.gguf"),
        (["-md", "nowhere.gguf", "-p", "x"], "-md needs a target"),
        (["-m", "TARGET", "-md", "nowhere.gguf", "-p", "x"], "nowhere.gguf"),
        (["-m", "HEAD", "-p", "x"], "is an EAGLE-3 head, not a target"),
        (["-m", "TARGET", "-md", "HEAD"], "-p TEXT or -f FNAME"),
        (["-m", "TARGET", "-md", "HEAD", "-p", "x", "-f", "y"], "-p TEXT or -f FNAME"),
        (["-m", "TARGET", "-md", "HEAD", "-f", "nowhere.txt"], "nowhere.txt"),
        (["-m", "TARGET", "-p", "x", "--baseline", "--spec-type", "none"], "leave --spec-type none out"),
        (["-m", "TARGET", "-p", "x", "-n", "-5"], "-n >= -1"),
        (["-m", "TARGET", "-p", "x" * 600, "-c", "256"], "use a larger -c"),
        (["-m", "TARGET", "-md", "HEAD", "-p", "x", "--spec-draft-n-min", "9"], "--spec-draft-n-min 9"),
        (["-m", "TARGET", "-p", "x", "--lora", "nowhere.gguf"], "nowhere.gguf"),
    ],
    ids=str,
)
def test_errors_are_one_readable_line(
    options: list[str], message: str, tiny_target: Any, tiny_head: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"TARGET": path_of(tiny_target), "HEAD": path_of(tiny_head)}
    assert run("-t", 1, *(named.get(o, o) for o in options)) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("llama-cpp-eagle3: error: ")
    assert len(err.splitlines()) == 1
    assert not out.strip()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--version"], 0, __version__),
        (["--help"], 0, COMMAND),
        ([COMMAND, "--help"], 0, "--spec-draft-n-max"),
        ([], 2, "required"),
        (["nonsense"], 2, "unknown command 'nonsense', there are batch, bench,"),
        (["caht"], 2, "unknown command 'caht', did you mean chat?"),
        ([COMMAND, "--nonsense"], 2, "unknown flag --nonsense"),
        ([COMMAND, "--draft-max", "4"], 2, "--draft-max is not possible here: it is called --spec-draft-n-max now"),
        ([COMMAND, "-ngl", "many"], 2, "expected a number, auto or all"),
    ],
    ids=str,
)
def test_usage(args: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        main(args)
    assert info.value.code == code
    assert message in "".join(capsys.readouterr())


def test_bench_without_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-m", "nowhere.gguf"]) == 2
    assert "error: 'nowhere.gguf': no such file: the folder" in capsys.readouterr().err


def test_as_a_module(flags: list[str]) -> None:
    command = [sys.executable, "-m", "llama_cpp_eagle3", COMMAND, *flags, "-p", "the self", "-n", "8"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"the self")
    assert b"mean acceptance length" in done.stderr
    # an error without a traceback, and a reader that leaves
    done = subprocess.run([*command[:4], "-m", "nowhere"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_on_a_terminal(flags: list[str], tmp_path: Path) -> None:
    """Colours and progress bars appear on a terminal; the text is the same."""
    path = tmp_path / "prompt.txt"
    path.write_text("the self " * 40)
    options = [*flags, "-f", str(path), "-n", "21", "-ub", "16", "--spec-draft-n-max", "4"]
    command = [sys.executable, "-m", "llama_cpp_eagle3", COMMAND, *options]
    ours, theirs = os.openpty()
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": ""}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    chunks = []
    while select.select([ours], [], [], 120.0)[0]:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(ours)
    assert process.wait(120) == 0
    output = b"".join(chunks).decode(errors="replace")
    assert output.count("\x1b[36m") >= 14
    assert "mean acceptance length" in output


def test_bundled_pair(capsys: pytest.CaptureFixture[str]) -> None:
    from loading import bundled_pair

    bundled_pair()
    assert run("-n", 64, "-t", 1) == 0
    out, err = capsys.readouterr()
    assert out.startswith("class Stack:")
    assert figure(err, "mean acceptance length") > 1.5


def test_measuring_is_logged_beforehand(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measuring is logged if no costs are known yet; a run that generates nothing measures nothing."""
    monkeypatch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path))
    line = "measuring what passes cost on this machine"
    assert run(*flags, "-p", "the self", "-n", 0) == 0
    err = capsys.readouterr().err
    assert line not in err
    assert "measured for" not in err
    assert not list(tmp_path.rglob("*.*"))
    with monkeypatch.context() as patch:
        patch.setenv("LLAMA_CPP_EAGLE3_CACHE", str(tmp_path / "other"))
        assert run(*flags, "-p", "the self", "-n", 1) == 0
    err = capsys.readouterr().err
    assert "measured for" in err
    assert "once" not in err.replace("once more", "")  # measuring may happen again; once more on a busy machine
    monkeypatch.setattr(Eagle3Llama, "generate", lambda *_, **__: pytest.fail("it generates before it is logged"))
    with pytest.raises(pytest.fail.Exception, match="before it is logged"):
        run(*flags, "-p", "the self", "-n", 1)
    assert line in capsys.readouterr().err
