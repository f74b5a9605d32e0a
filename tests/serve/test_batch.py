"""`llama-cpp-eagle3 batch`: formats, going on where it was ended, errors of single requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.cli import main
from loading import path_of
from serving import Running


def run(pair: Any, source: Path, output: Path, *more: str) -> int:
    flags = ["-m", path_of(pair[0]), "-md", path_of(pair[1]), "-t", "1", "-c", "1024", "-np", "2", "--temp", "0"]
    flags += ["--spec-draft-n-max", "3", "-n", "12", "-ctk", "f32", "-ctv", "f32"]
    return main(["batch", str(source), "-o", str(output), *flags, *more])


def read(path: Path) -> dict[str, Any]:
    return {line["custom_id"]: line for line in map(json.loads, path.read_text().splitlines())}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_openais_format(pair: Any, running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[Any] = [
        {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "the self"}},
        {"custom_id": "b", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "hi"}]}},
        {"custom_id": "bad", "url": "/v1/completions", "body": {"prompt": 5}},
        {"custom_id": "long", "url": "/v1/completions", "body": {"prompt": [3] * 5000}},
        {"custom_id": "s", "url": "/v1/completions", "body": {"prompt": "a", "stream": True}},
    ]
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert run(pair, source, output) == 1
    found = read(output)
    assert set(found) == {"c", "b", "bad", "long", "s"}
    expected = running.ask("/v1/completions", {"prompt": "the self", "max_tokens": 12, "temperature": 0})
    assert found["c"]["response"]["body"]["choices"] == expected["choices"]
    assert found["c"]["error"] is None
    assert found["b"]["response"]["body"]["choices"][0]["message"]["content"]
    for name in ("bad", "long", "s"):
        assert found[name]["response"]["status_code"] == 400
        assert found[name]["error"]["message"]
    err = capsys.readouterr().err
    assert "5 requests, 3 errors" in err
    # what is there is not done again; a line that was cut off is
    text = output.read_text()
    output.write_text(text[:-40])
    assert run(pair, source, output) == 1
    assert set(read(output)) == set(found)
    assert output.read_text().startswith(text.splitlines()[0])
    assert run(pair, source, output, "--retry-errors", "--limit", "2") == 0


def test_questions_and_texts(pair: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = [
        {"question_id": 81, "category": "writing", "turns": ["the self", "again"]},
        {"question_id": 82, "category": "math", "turns": ["one"]},
    ]
    output = tmp_path / "out.jsonl"
    assert run(pair, write(tmp_path / "question.jsonl", questions), output) == 0
    found = read(output)
    assert len(found["81"]["turns"]) == 2
    assert found["81"]["turns"][1]["usage"]["prompt_tokens"] > found["81"]["turns"][0]["usage"]["prompt_tokens"]
    err = capsys.readouterr().err
    for category in ("writing", "math"):
        line = next(line for line in err.splitlines() if line.startswith(f"{category}: "))
        assert float(line.rsplit(" ", 1)[1]) > 2.0  # the head is always right
    (tmp_path / "prompts.txt").write_text("the self\n\nanother\n")
    assert run(pair, tmp_path / "prompts.txt", tmp_path / "texts.jsonl") == 0
    assert set(read(tmp_path / "texts.jsonl")) == {"line-1", "line-3"}


def test_bad_files(pair: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lines, word in (
        ([{"custom_id": "a", "prompt": "x"}, {"custom_id": "a", "prompt": "y"}], "twice"),
        ([{"custom_id": "a"}], "line 1"),
        ([{"custom_id": "a", "url": "/nowhere", "body": {}}], "/nowhere"),
        ([5], "line 1"),
        ([{"turns": "x"}], "turns"),
    ):
        assert run(pair, write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl") == 2
        assert word in capsys.readouterr().err
    assert run(pair, tmp_path / "nothing.jsonl", tmp_path / "out.jsonl") == 2
