"""`llama-cpp-eagle3 batch`: formats, continuing after an end, errors of single requests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3 import serve
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.serve import batch_answers, batch_file
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
    # finished requests are not done again; a request whose line was cut off is
    text = output.read_text()
    output.write_text(text[:-40])
    assert run(pair, source, output) == 1
    assert set(read(output)) == set(found)
    assert output.read_text().startswith(text.splitlines()[0])
    assert run(pair, source, output, "--retry-errors", "--limit", "2") == 0


def test_it_needs_no_http_server(pair: Any, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules |= {'starlette': None, 'uvicorn': None}; from llama_cpp_eagle3.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    source, output = write(tmp_path / "in.jsonl", [{"prompt": "the self"}]), tmp_path / "out.jsonl"
    flags = [
        "-m",
        path_of(pair[0]),
        "-md",
        path_of(pair[1]),
        "-t",
        "1",
        "-c",
        "256",
        "-n",
        "2",
        "--spec-draft-n-max",
        "3",
    ]
    subprocess.run([sys.executable, "-c", program, "batch", str(source), "-o", str(output), *flags], check=True)
    assert read(output)["line-1"]["response"]["status_code"] == 200


def test_the_server_knows_nothing_of_commands() -> None:
    for path in Path(serve.__file__).parent.glob("*.py"):
        assert not re.search(r"^\s*(from|import) .*\bcli\b", path.read_text(encoding="utf-8"), re.M), path


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


def test_requests_in_a_file_of_prompts(tmp_path: Path) -> None:
    """A request is not taken for a prompt because of the file's name; other JSON may be one."""
    request = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "b"}}
    source = tmp_path / "in.txt"
    source.write_text(f'{{"a": 1}}\n{json.dumps(request)}\n')
    with pytest.raises(ValueError, match=r"in.txt', line 2: .*give the file a name that ends with .jsonl"):
        batch_file.read_requests(source)
    source.write_text('{"a": 1}\n{cut\n')
    assert [found.body["prompt"] for found in batch_file.read_requests(source)] == ['{"a": 1}', "{cut"]


def test_lines_end_with_newlines_alone(pair: Any, tmp_path: Path) -> None:
    """Other line ends of Unicode stand unchanged in JSON; a byte order mark is no part of the text."""
    prompts = ["a\u2028b", "c\u0085d", "e\u2029f"]
    lines = [json.dumps({"custom_id": repr(p), "prompt": p}, ensure_ascii=False) for p in prompts]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n\n" + b'"last"')
    found = batch_file.read_requests(source)
    assert [request.body["prompt"] for request in found] == [*prompts, "last"]
    assert [request.custom_id for request in found] == [*map(repr, prompts), "line-5"]
    (tmp_path / "in.txt").write_bytes("\ufeffone\u2028two\r\nthree\x0cfour".encode())
    found = batch_file.read_requests(tmp_path / "in.txt")
    assert [request.body["prompt"] for request in found] == ["one\u2028two", "three\x0cfour"]
    assert run(pair, source, tmp_path / "out.jsonl") == 0
    assert len((tmp_path / "out.jsonl").read_bytes().split(b"\n")) == 5
    # and in results: a name with such a character is found again
    before = (tmp_path / "out.jsonl").read_bytes()
    assert run(pair, source, tmp_path / "out.jsonl") == 0
    assert (tmp_path / "out.jsonl").read_bytes() == before


def result(custom_id: str, error: Any = None) -> bytes:
    metrics = {"speculative_decoding": {"num_steps": 1, "num_accepted_draft_tokens": 1}}
    body = {"usage": {"completion_tokens": 3}, "metrics": metrics}
    line = {"id": "batch_req_1", "custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": error}
    return json.dumps(line, separators=(",", ":")).encode()


def test_foreign_outputs_are_left_alone(pair: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = write(tmp_path / "in.jsonl", ["x"]), tmp_path / "out.jsonl"
    for text, line in (
        (b"my notes", 1),
        (b"my notes\n", 1),
        (result("a") + b"\nmy notes", 2),
        (result("a") + b"\n[1]\n" + result("b") + b"\n", 2),
        (b"5\n", 1),
        (b'{"custom_id": "a", "error": null, "response": {"body": {"usage": {}}}}\n', 1),
        (b'{"custom_id": "a", "error": null, "response": null}\n', 1),
        (b'{"custom_id": ["a"], "error": {}}\n', 1),
        (b"[" * 100_000 + b"\n", 1),
        (b"\xff\xfe\n", 1),
    ):
        output.write_bytes(text)
        assert run(pair, source, output, "--retry-errors") == 2, text[:80]
        err = capsys.readouterr().err
        assert f"'{output}', line {line}: expected a result of this command" in err, err[-500:]
        assert output.read_bytes() == text
    # nor is it a device, or the input
    os.mkfifo(tmp_path / "fifo")
    for path, match in (("/dev/null", "no regular file"), (tmp_path / "fifo", "no regular file"), (source, "input")):
        assert run(pair, source, Path(path)) == 2
        assert match in capsys.readouterr().err


@pytest.mark.parametrize("n", [1, 10, 17, 18, 40, -2, -1])
def test_cut_off_results_are_dropped(tmp_path: Path, n: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The results before keep every byte. A result that lacks only its newline is whole."""
    output = tmp_path / "out.jsonl"
    kept = result("\u2028").replace(b"\\u2028", "\u2028".encode()) + b"\n"
    output.write_bytes(kept + result("cut")[:n])
    ids, lines = batch_file.read_done(output, retry_errors=False)
    assert (ids, len(lines)) == ({"\u2028"}, 1)
    assert output.read_bytes() == kept
    assert "cut off" in capsys.readouterr().err
    output.write_bytes(kept + result("whole"))
    assert batch_file.read_done(output, retry_errors=False)[0] == {"\u2028", "whole"}
    assert output.read_bytes() == kept + result("whole") + b"\n"


def test_results_outlive_a_kill_while_they_are_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a kill comes, the file has all of the old results or all that are kept."""
    output = tmp_path / "out.jsonl"
    good = [result(f"{i}") + b"\n" for i in range(5)]
    old = b"".join(good) + result("bad", {"code": "x", "message": "y"}) + b"\n"
    output.write_bytes(old)

    def die(*args: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", die)
        with pytest.raises(KeyboardInterrupt):
            batch_file.read_done(output, retry_errors=True)
    assert output.read_bytes() == old
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(output.read_bytes()), replace(a, b)))
    batch_file.read_done(output, retry_errors=True)
    assert seen == [old]
    assert output.read_bytes() == b"".join(good)


def test_an_unexpected_error_is_an_answer(pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = batch_answers.prepare_openai

    def fails(server: Any, body: dict[str, Any], admission: Any) -> Any:
        if body["prompt"] == "fail":
            raise ZeroDivisionError("a bug")
        return prepare(server, body, admission)

    monkeypatch.setattr(batch_answers, "prepare_openai", fails)
    lines = [{"custom_id": name, "prompt": name} for name in ("one", "fail", "two")]
    lines += [{"custom_id": "\ud800", "prompt": "\ud800"}]  # a lone surrogate is valid JSON
    output = tmp_path / "out.jsonl"
    assert run(pair, write(tmp_path / "in.jsonl", lines), output) == 1
    found = read(output)
    assert set(found) == {"one", "fail", "two", "\ud800"}
    assert found["one"]["error"] is found["two"]["error"] is None
    assert found["fail"]["response"]["status_code"] == 500
    assert found["fail"]["error"] == {"code": "server_error", "message": "ZeroDivisionError: a bug"}
    before = output.read_bytes()
    assert run(pair, tmp_path / "in.jsonl", output) == 1
    assert output.read_bytes() == before
