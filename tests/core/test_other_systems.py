"""Replacements on Windows and macOS for Linux' functions are tested with stand-ins, without such a system."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3 import _library
from llama_cpp_eagle3.errors import Eagle3Error
from llama_cpp_eagle3.files import file_lock
from llama_cpp_eagle3.files.line_file import LineFile
from llama_cpp_eagle3.model.rpc import RpcServers

ROOT = Path(__file__).parents[2]


class Msvcrt(types.ModuleType):
    """A stand-in for Windows' locks: of bytes from the file's position on, in a table of the process."""

    LK_LOCK, LK_UNLCK = 1, 0

    def __init__(self, n_busy: int = 0):
        super().__init__("msvcrt")
        self.locked: set[int] = set()
        self.n_busy = n_busy

    def locking(self, fd: int, mode: int, n_bytes: int) -> None:
        assert n_bytes == 1
        byte = os.lseek(fd, 0, os.SEEK_CUR)
        if mode == self.LK_UNLCK:
            self.locked.remove(byte)
            return
        if self.n_busy:
            self.n_busy -= 1
            raise OSError(errno.EDEADLK, "it was tried ten times")
        assert byte not in self.locked
        self.locked.add(byte)


@pytest.fixture
def msvcrt(monkeypatch: pytest.MonkeyPatch) -> Msvcrt:
    stand_in = Msvcrt()
    monkeypatch.setitem(sys.modules, "msvcrt", stand_in)
    monkeypatch.setattr(file_lock.sys, "platform", "win32")
    return stand_in


def test_files_are_locked_on_windows(tmp_path: Path, msvcrt: Msvcrt) -> None:
    """The lock is after all bytes of a file, is held during the work, and the position in the file stays."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    msvcrt.n_busy = 3
    with path.open("r+b", buffering=0) as f:
        f.seek(4)
        with file_lock.locked(f.fileno()):
            (byte,) = msvcrt.locked
            assert byte > 1 << 30
            assert f.read(2) == b"45"
        assert msvcrt.locked == set()
        assert f.read() == b"6789"
        with pytest.raises(KeyError), file_lock.locked(f.fileno()):
            raise KeyError
        assert msvcrt.locked == set()


def test_other_errors_of_a_lock_are_errors(tmp_path: Path, msvcrt: Msvcrt, monkeypatch: pytest.MonkeyPatch) -> None:
    def locking(*_: int) -> None:
        raise OSError(errno.EBADF, "no such file")

    monkeypatch.setattr(msvcrt, "locking", locking)
    with (tmp_path / "file").open("w") as f, pytest.raises(OSError, match="no such file"), file_lock.locked(f.fileno()):
        pass


def test_records_on_windows(tmp_path: Path, msvcrt: Msvcrt) -> None:
    path = tmp_path / "record.jsonl"
    path.write_bytes(b'{"a": 1}\n{"cut o')
    file = LineFile(path, 1 << 20)
    assert file.append(b'{"b": 2}\n')
    file.close()
    assert path.read_bytes() == b'{"a": 1}\n{"b": 2}\n'
    assert msvcrt.locked == set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that share a file")
def test_one_process_at_a_time(tmp_path: Path) -> None:
    """On this system, a child that adds to a number waits for its turn."""
    path = tmp_path / "n"
    path.write_text("0")
    code = (
        "import sys\n"
        "from llama_cpp_eagle3.files.file_lock import locked\n"
        "for _ in range(200):\n"
        "    with open(sys.argv[1], 'r+') as f, locked(f.fileno()):\n"
        "        n = int(f.read())\n"
        "        f.seek(0)\n"
        "        f.write(str(n + 1))\n"
        "        f.flush()\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(3)]
    assert [child.wait(120) for child in children] == [0, 0, 0]
    assert path.read_text() == "600"


@pytest.mark.parametrize(("platform", "is_opened"), [("darwin", True), ("linux", False), ("win32", False)])
def test_libllama_is_opened_globally_on_macos(monkeypatch: pytest.MonkeyPatch, platform: str, is_opened: bool) -> None:
    """Only on macOS must libraries be open globally for our module to find symbols; elsewhere it finds them by name."""
    opened: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(_library.sys, "platform", platform)
    monkeypatch.setattr(_library.ctypes, "CDLL", lambda path, **options: opened.append((path, options)))
    _library.open_globally("/lib/libllama.dylib")
    assert opened == ([("/lib/libllama.dylib", {"mode": ctypes.RTLD_GLOBAL})] if is_opened else [])


def test_rpc_is_refused_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Eagle3Error, match="cannot be used on Windows"):
        RpcServers("127.0.0.1:50052")


def test_every_module_imports_without_what_windows_lacks() -> None:
    """Modules import without the modules and functions that Windows' Python lacks."""
    code = """
        import builtins, importlib, os, pkgutil, select, signal, socket
        import asyncio, concurrent.futures, huggingface_hub.utils, multiprocessing, subprocess, tempfile, uvicorn
        import llama_cpp, numpy

        import_ = builtins.__import__

        def import_of_windows(name, globals=None, *rest, **named):
            asks = (globals or {}).get("__package__") or ""
            if name in ("fcntl", "resource", "termios", "pwd", "grp") and asks.startswith("llama_cpp_eagle3"):
                raise ModuleNotFoundError(f"{asks} imports {name}")
            return import_(name, globals, *rest, **named)

        builtins.__import__ = import_of_windows
        for module, names in (
            (os, "sched_getaffinity pread pwrite O_CLOEXEC O_NOFOLLOW O_DIRECTORY geteuid getuid fork uname statvfs"),
            (select, "poll POLLHUP POLLERR POLLNVAL POLLRDHUP"),
            (signal, "SIGKILL SIGHUP SIGALRM SIGUSR1 SIGUSR2 SIGSTOP setitimer pthread_sigmask"),
            (socket, "AF_UNIX SO_REUSEPORT"),
        ):
            for name in names.split():
                module.__dict__.pop(name, None)
        import llama_cpp_eagle3
        for found in pkgutil.walk_packages(llama_cpp_eagle3.__path__, "llama_cpp_eagle3."):
            if found.name.split(".")[-1] not in ("__main__", "_trial_child"):
                importlib.import_module(found.name)
        from llama_cpp_eagle3.machine import default_threads
        assert default_threads() >= 1
        print("done")
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
