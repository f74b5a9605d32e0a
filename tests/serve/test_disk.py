"""A server whose conversations survive it."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3.model import loaded
from loading import load, path_of
from serving import Running

PROMPT = [60 + 7 * i % 200 for i in range(150)]


def wait_for_files(folder: Path, n: int) -> list[Path]:
    until = time.monotonic() + 120
    while len(found := sorted(folder.glob("*.prefix"))) < n:
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def metric(running: Running, name: str) -> float:
    found = re.search(rf"^llamacpp:prefix_cache_{re.escape(name)} (\S+)$", running.client.get("/metrics").text, re.M)
    assert found, name
    return float(found[1])


def test_while_it_is_idle(pair: Any, tmp_path: Path) -> None:
    """The prompts are in files soon, and then nothing is written until the next request."""
    with Running(*pair, draft_n_max=4, prefix_cache_dir=tmp_path) as running:
        answer = running.ask(
            "/completion", {"prompt": PROMPT, "n_predict": 20, "temperature": 0.0, "return_tokens": True}
        )
        file = wait_for_files(tmp_path, 1)[0]
        data = file.read_bytes()  # as it would be found if the process were killed now
        time.sleep(1.0)
        assert metric(running, "disk_prefixes") == 1
        assert metric(running, "disk_bytes") == len(data)
        assert file.read_bytes() == data
    longer = PROMPT + answer["tokens"]
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / file.name).write_bytes(data)
    for folder in (tmp_path, tmp_path / "killed"):
        with Running(*pair, draft_n_max=4, prefix_cache_dir=folder) as running:
            again = running.ask("/completion", {"prompt": longer, "n_predict": 8, "temperature": 0.0})
            assert again["timings"]["cache_n"] >= len(longer) - 3
            assert again["timings"]["draft_n_accepted"] == again["timings"]["draft_n"] > 0
            assert metric(running, 'reused_tokens_total{tier="disk"}') == again["timings"]["cache_n"]


def test_the_next_start_reads_what_was_used_last(pair: Any, tmp_path: Path) -> None:
    """Before anybody asks for it: the first request finds it even if its file is gone by then."""
    with Running(*pair, prefix_cache_dir=tmp_path) as running:
        running.ask("/completion", {"prompt": PROMPT, "n_predict": 4, "temperature": 0.0})
    (file,) = wait_for_files(tmp_path, 1)
    with Running(*pair, prefix_cache_dir=tmp_path) as running:
        until = time.monotonic() + 120
        while metric(running, "prefixes") < 1:
            assert time.monotonic() < until
            time.sleep(0.02)
        file.unlink()
        again = running.ask("/completion", {"prompt": [*PROMPT, 61], "n_predict": 4, "temperature": 0.0})
        assert again["timings"]["cache_n"] >= len(PROMPT) - 1
        assert metric(running, 'reused_tokens_total{tier="disk"}') == again["timings"]["cache_n"]


@pytest.mark.parametrize("n_bytes", [0, 1 << 20])
def test_a_folder_without_host_memory(
    pair: Any, tmp_path: Path, n_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(load(*pair, prefix_cache_dir=tmp_path, prefix_cache_bytes=n_bytes)):
        pass
    assert sum("nothing is kept over restarts" in text for text in caplog.messages) == (n_bytes == 0)


def test_flags(pair: Any, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["serve", "-m", path_of(pair[0]), "--port", "0"]
    for more in (["--cache-disk-size", "5"], ["--cache-disk", "x", "--cache-disk-size", "0"]):
        assert main([*files, *more]) != 0
        assert "--cache-disk-size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("free", "expected"), [(64 << 30, 8 << 30), (32 << 30, 8 << 30), (8 << 30, 2 << 30), (None, 8 << 30)]
)
def test_default_of_host_memory(monkeypatch: pytest.MonkeyPatch, free: int | None, expected: int) -> None:
    """--cache-ram: 8,192 MiB, or a quarter of the free memory if that is less; a given value holds."""
    monkeypatch.setattr(loaded, "free_memory", lambda: free)
    assert loaded.cache_bytes(None) == expected
    assert loaded.cache_bytes(0) == 0
    assert loaded.cache_bytes(1 << 40) == 1 << 40
