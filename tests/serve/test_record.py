"""`--record`: the requests that are written, their form, and their use as training data."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.files import line_file
from llama_cpp_eagle3.files.line_file import LineFile
from llama_cpp_eagle3_heads.train.data import file_prompts
from serving import Running

CHAT = {"messages": [{"role": "user", "content": "the self"}], "max_tokens": 8}


def _is_of_record(r: logging.LogRecord) -> bool:
    return "record" in r.getMessage() and r.name.startswith("llama_cpp_eagle3")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file; each line is whole."""
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def test_the_trainer_takes_it(pair: Any, tmp_path: Path) -> None:
    """Each endpoint's request becomes the same tokens for `train -f`, with the answer that was given."""
    path = tmp_path / "record.jsonl"
    with Running(*pair, options={"record": path}) as running:
        asked: list[list[int]] = []
        answers: list[str] = []

        def note(prompt: str, answer: str) -> None:
            asked.append(running.server.tokenizer.tokenize(prompt, True))
            answers.append(answer)

        rendered = running.ask("/apply-template", CHAT)["prompt"]
        note(rendered, running.ask("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"])
        note(rendered, "".join(e["choices"][0]["delta"].get("content") or ""
                               for e in running.stream("/v1/chat/completions", CHAT)[:-1]))  # fmt: skip
        note(rendered, running.ask("/v1/messages", CHAT)["content"][0]["text"])
        texts = ["def f(x):\n", " with a space before"]
        body = {"prompt": texts, "n": 2, "max_tokens": 6}
        for choice in running.ask("/v1/completions", body)["choices"]:
            note(texts[choice["index"] // 2], choice["text"])
        note("plain", running.ask("/completion", {"prompt": "plain", "n_predict": 5})["content"])
        llm = running.server.llm
        _wait_for(path, len(asked))
        found = [prompt.tokens for prompt in file_prompts(llm, [path], 200)]
    assert [line["answer"] for line in lines_of(path)] == answers
    unique = [tokens for i, tokens in enumerate(asked) if tokens not in asked[:i]]
    assert found == unique
    assert path.stat().st_mode & 0o077 == 0


def _wait_for(path: Path, n: int) -> None:
    deadline = time.monotonic() + 120
    while path.read_bytes().count(b"\n") < n:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_left_out(pair: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Errors, cancelled answers and empty ones are left out; the log says so at the start, and counts at the end."""
    path = tmp_path / "record.jsonl"
    caplog.set_level(logging.INFO)
    with Running(*pair, options={"record": path, "n_record_max": 3 << 20}) as running:
        assert running.post("/completion", {"prompt": "x" * 5000}).status_code == 400
        running.ask("/completion", {"prompt": "nothing", "n_predict": 0})
        # slow enough to be cancelled in the middle
        running.server.engine.stepper.on_sample = lambda part, token: time.sleep(0.005) or token
        with running.client.stream(
            "POST", "/completion", json={"prompt": "the", "n_predict": 400, "stream": True, "ignore_eos": True}
        ) as response:
            next(response.iter_lines())
        running.server.engine.stepper.on_sample = None
        running.ask("/completion", {"prompt": "one", "n_predict": 3})
    assert [line["text"] for line in lines_of(path)] == ["one"]
    said = [r.getMessage() for r in caplog.records if _is_of_record(r)]
    assert "0.0 MiB of at most 3.0 (--record-max-size)" in said[0]
    assert "images, errors, and answers that were cancelled" in said[0]
    assert said[1:] == [f"1 answers were recorded in '{path}'"]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if _is_of_record(r) and r.levelno == logging.WARNING]


def test_the_limit(pair: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file never exceeds the limit; the log says once that recording has ended, and serving continues."""
    path = tmp_path / "record.jsonl"
    path.write_text('{"text": "from before", "answer": "x"}\n')
    with Running(*pair, options={"record": path, "n_record_max": 200}) as running:
        for i in range(12):
            assert running.ask("/completion", {"prompt": f"text {i}", "n_predict": 3})["content"]
    assert 120 < path.stat().st_size <= 200
    assert lines_of(path)[0]["text"] == "from before"
    (said,) = _warnings(caplog)
    assert "nothing more is recorded, serving goes on" in said
    assert "--record-max-size" in said


def test_a_full_disk(
    pair: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a line is removed, the log says so once, and serving continues."""
    path = tmp_path / "record.jsonl"
    write, n_written = os.write, []

    def full(fd: int, data: bytes) -> int:
        n_written.append(len(data))
        if len(n_written) < 3:
            return write(fd, data)
        if len(n_written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[: len(data) // 2])

    with Running(*pair, options={"record": path}) as running, monkeypatch.context() as patch:
        patch.setattr(line_file.os, "write", full)
        for i in range(6):
            assert running.ask("/completion", {"prompt": f"text {i}", "n_predict": 3})["content"]
        running.server.recorder.close()
        running.server.recorder = None
    assert [line["text"] for line in lines_of(path)] == ["text 0", "text 1"]
    (said,) = _warnings(caplog)
    assert "No space left on device" in said


def test_what_a_crash_cut_off(tmp_path: Path) -> None:
    """A partial line is removed when the file is opened again; whole lines stay, long ones too."""
    path = tmp_path / "record.jsonl"
    for whole in (b"", b'{"text": "a"}\n', b'{"text": "' + b"a" * 200_000 + b'"}\n'):
        for cut in (b"", b'{"text": "b', b"b" * 200_000):
            path.write_bytes(whole + cut)
            LineFile(path, 1 << 20).close()
            assert path.read_bytes() == whole


WORKER = """
import sys
from pathlib import Path
from llama_cpp_eagle3.files.line_file import LineFile
file = LineFile(Path(sys.argv[1]), 150_000)
line = (b'"' + sys.argv[2].encode() * 997 + b'"\\n')
print(sum(file.append(line) for _ in range(100)))
"""


def test_several_workers(tmp_path: Path) -> None:
    """Processes that append to one file keep its limit together, and none cuts another's lines."""
    path = tmp_path / "record.jsonl"
    command = [sys.executable, "-c", WORKER, str(path)]
    workers = [subprocess.Popen([*command, c], stdout=subprocess.PIPE, text=True) for c in "abc"]
    counts = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [sum(line[0] == c for line in lines) for c in "abc"] == counts
    assert all(line == line[0] * 997 for line in lines)
    assert sum(counts) == 150


def test_off_unless_asked(running: Running) -> None:
    assert running.server.recorder is None


def test_a_file_that_cannot_be(pair: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before a port is open and a model loaded."""
    from llama_cpp_eagle3.cli import main

    target, head = pair
    for name, said in ((str(tmp_path), "folder"), ("/dev/null", "regular file"), (target.path, "input")):
        command = ["serve", "-m", str(target.path), "-md", str(head.path), "--port", "0", "--record", name]
        assert main(command) == 2
        assert said in capsys.readouterr().err
    assert main([*command[:-2], "--record-max-size", "0"]) == 2
    assert "--record-max-size >= 1, found 0" in capsys.readouterr().err
