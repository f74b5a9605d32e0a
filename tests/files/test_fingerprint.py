"""Fingerprints of models' files: all bytes count, each file is read once, and what is kept is of this file."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.files import fingerprint as module
from llama_cpp_eagle3.files.cache_dir import ENV_CACHE
from llama_cpp_eagle3.files.fingerprint import file_key, fingerprint, header_fingerprint, once_fingerprinted
from tiny import write_head, write_target


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep digests of small files too, in a folder of their own; returns the files that were read."""
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_N_QUICK", -1)
    found: list[str] = []
    real = module._read

    def read(path: str, key: object) -> str:
        found.append(Path(path).name)
        return real(path, key)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_read", read)
    return found


def start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a process knows."""
    monkeypatch.setattr(module, "_known", {})


def test_every_byte_counts(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    first = fingerprint(path)
    assert first == hashlib.blake2b(data, digest_size=32).hexdigest()
    (tmp_path / "copy.gguf").write_bytes(data)
    assert fingerprint(str(tmp_path / "copy.gguf")) == first
    for at in (0, len(data) // 2, 300_000, len(data) - 1):
        (tmp_path / f"{at}.gguf").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert len({fingerprint(file) for file in tmp_path.iterdir()}) == 5
    with pytest.raises(FileNotFoundError):
        fingerprint(tmp_path / "none.gguf")


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-{i + 1:05}-of-00003.gguf" for i in range(3)]
    for i, part in enumerate(parts):
        part.write_bytes(b"%d" % i)
    found = {fingerprint(parts[0])}
    assert {fingerprint(part) for part in parts} == found
    for i, part in enumerate(parts):
        part.write_bytes(b"%d changed" % i)
        found.add(fingerprint(parts[0]))
    parts[2].unlink()
    found.add(fingerprint(parts[0]))
    alone = tmp_path / "m-00001-of-00001.gguf"
    alone.write_bytes(b"0")
    assert len(found) == 5
    assert fingerprint(alone) == hashlib.blake2b(b"0", digest_size=32).hexdigest()


def test_it_is_kept(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process does not read the file again, unless it was written anew, with any size and time."""
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    first = fingerprint(path)
    start_again(monkeypatch)
    assert fingerprint(path) == first
    assert reads == ["a.gguf"]
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    second = fingerprint(path)
    assert second != first
    start_again(monkeypatch)
    assert fingerprint(path) == second
    (tmp_path / "b.gguf").write_bytes(b"two")
    os.replace(tmp_path / "b.gguf", path)
    assert fingerprint(path) == second
    assert reads == ["a.gguf"] * 3


@pytest.mark.parametrize("text", ["", "[" * 100_000, "{}", '{"file": 1, "blake2b": 2}', "\x00"])
def test_what_was_kept_is_damaged(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    first = fingerprint(path)
    (kept,) = (tmp_path / "cache" / "fingerprints").iterdir()
    kept.write_text(text)
    start_again(monkeypatch)
    assert fingerprint(path) == first
    assert reads == ["a.gguf"] * 2


def test_nothing_can_be_kept(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file")
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    assert fingerprint(path) == fingerprint(path)
    assert reads == ["a.gguf"]


def test_a_thread_reads_what_is_large(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks meanwhile waits for it; what is known or small needs no thread, and errors come at once."""
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    go, real = threading.Event(), module._read
    monkeypatch.setattr(module, "_read", lambda *args: real(*args) if go.wait(60) else "")
    futures = [once_fingerprinted([str(path)], lambda: fingerprint(path)) for _ in range(3)]
    assert not any(future.done() for future in futures)
    go.set()
    assert {future.result(60) for future in futures} == {hashlib.blake2b(b"one", digest_size=32).hexdigest()}
    assert reads == ["a.gguf"]
    assert once_fingerprinted([str(path)], threading.current_thread).result(0) is threading.current_thread()
    start_again(monkeypatch)
    assert once_fingerprinted([str(path)], threading.current_thread).result(0) is threading.current_thread()
    failed = once_fingerprinted([str(tmp_path / "none")], lambda: fingerprint(tmp_path / "none"))
    assert isinstance(failed.exception(0), FileNotFoundError)
    monkeypatch.setattr(module, "_N_QUICK", 1 << 20)
    (tmp_path / "small").write_bytes(b"")
    assert once_fingerprinted([str(tmp_path / "small")], threading.current_thread).done()


def test_it_pauses_while_reading_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_N_QUICK", 1)
    path = tmp_path / "large"
    path.write_bytes(bytes(1000))
    with module.digest_lock:
        found = once_fingerprinted([str(path)], lambda: fingerprint(path))
        time.sleep(0.2)
        assert not found.done()
        assert fingerprint(__file__)  # the thread that holds it may read itself
    assert found.result(120) == hashlib.blake2b(bytes(1000), digest_size=32).hexdigest()


def test_an_error_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    with monkeypatch.context() as patch:

        def fail(*args: object) -> str:
            raise MemoryError

        patch.setattr(module, "_read", fail)
        with pytest.raises(MemoryError):
            fingerprint(path)
    assert fingerprint(path)


def test_an_interrupt_is_one_threads_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the main thread reads: threads that wait for the same file get an error of the system."""
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    start_again(monkeypatch)
    futures: list[Any] = []

    def interrupt(*args: object) -> str:
        futures.extend(module._known.values())
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fingerprint(path)
    (error,) = (future.exception(0) for future in futures)
    assert isinstance(error, OSError)
    assert "interrupted" in str(error)


def test_headers(tmp_path: Path) -> None:
    """Weights alone do not count, nor does the name; shapes, types and keys do."""
    paths = [write_target(tmp_path / f"{i}.gguf", seed=i).path for i in range(2)]
    assert header_fingerprint(paths[0]) == header_fingerprint(paths[1])
    assert fingerprint(paths[0]) != fingerprint(paths[1])
    target = write_target(tmp_path / "f16.gguf", ftype="f16")
    others = [target.path, write_target(tmp_path / "rms.gguf", rms_eps=1e-6).path]
    others.append(write_head(tmp_path / "head.gguf", target).path)
    assert len({header_fingerprint(path) for path in (paths[0], *others)}) == 4


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    (tmp_path / "link.gguf").symlink_to(path)
    assert file_key(path) == file_key(tmp_path / "link.gguf")
    before = file_key(path)
    path.write_bytes(b"two")
    assert file_key(path) != before
