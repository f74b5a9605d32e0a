"""What identifies a model's files: all of their bytes.

Reading them takes about a second per gigabyte, so it is done once per process and file, and what was found is kept in
the cache folder, under the file's path, inode, size and times in nanoseconds.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from .._core import header_size
from ..errors import ModelFileError
from .cache_dir import cache_dir, keep
from .json_file import read_json

_N_DIGEST = 32
_N_BLOCK = 1 << 22
_N_QUICK = 1 << 26  # files of at most so many bytes are read in a tenth of a second: no thread, and nothing is kept
digest_lock = threading.RLock()
"""Held while a part of a file is digested: whoever holds it measures times without that thread beside."""
_PART = re.compile(r"(.*-)(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_Key = tuple[str, int, int, int, int]
_known: dict[_Key, Future[str]] = {}
_known_headers: dict[_Key, str] = {}
_lock = threading.Lock()
T = TypeVar("T")


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Identify a model by all bytes of its file, or of all files of a split one: BLAKE2b, 64 hexadecimal digits.

    Of one file it is what `b2sum -l 256` prints. Two exports that differ in one weight differ in it; a copy, or a file
    with another name, has the same. The first call for a file reads all of it; calls in other threads wait for that.

    Raises:
        OSError: the system's.
    """
    return _joined([_digest(part) for part in _parts(os.fspath(path))])


def header_fingerprint(path: str | os.PathLike[str]) -> str:
    """Identify what a GGUF file's header says: shapes and types of all tensors, and all keys, but no weights.

    Raises:
        ModelFileError: it is no GGUF file.
    """
    return _joined([_header_digest(part) for part in _parts(os.fspath(path))])


def file_key(path: str | os.PathLike[str]) -> _Key:
    """Identify a file at once, on this machine: its bytes do not change without one of these.

    Its path, inode, size, when it was written, and when its inode was changed, which no program sets back.

    Raises:
        OSError: the system's.
    """
    found = os.stat(path)
    return os.path.realpath(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Stamps:
    """What files were before something read them, by which a replaced or changed one is found afterwards.

    A model's file is identified by its name, which may be another file's by then.
    """

    def __init__(self, paths: Iterable[str]):
        """Look at these files, and at all parts of split ones. A file that is missing is another reader's to report."""
        self._of: dict[str, tuple[int, int, int] | None] = {
            part: _stamp(part) for path in paths for part in _parts(path)
        }

    def check(self) -> None:
        """Make sure that the files are what they were.

        Raises:
            ModelFileError: one is not.
        """
        for path, stamp in self._of.items():
            if _stamp(path) != stamp:
                raise ModelFileError(
                    f"'{path}' was replaced or changed while it was loaded, so it is not known which bytes were: "
                    "load it again"
                )


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        return file_key(path)[1:4]
    except OSError:
        return None


def once_fingerprinted(paths: Iterable[str], function: Callable[[], T]) -> Future[T]:
    """Call a function that needs the fingerprints of these files: now if they are known, or small, else in a thread.

    The thread has a low priority, and the end of the process does not wait for it.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as e:
            future.set_exception(e)

    def run_behind() -> None:
        if sys.platform == "linux":  # there a thread has a priority of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        run()

    if all(_is_quick(part) for path in paths for part in _parts(path)):
        run()
    else:
        threading.Thread(target=run_behind, name="fingerprint", daemon=True).start()
    return future


def _parts(path: str) -> list[str]:
    """All files of a split model, as llama.cpp names them; else the file alone."""
    found = _PART.fullmatch(path)
    if found is None:
        return [path]
    names = (f"{found[1]}{i + 1:05}-of-{found[3]}.gguf" for i in range(int(found[3])))
    return [name for name in names if os.path.exists(name)] or [path]


def _joined(digests: list[str]) -> str:
    return digests[0] if len(digests) == 1 else _blake2b("".join(digests).encode()).hexdigest()


def _is_quick(path: str) -> bool:
    try:
        key = file_key(path)
    except OSError:
        return True  # the error comes at once
    known = _known.get(key)
    return key[2] <= _N_QUICK or (known is not None and known.done()) or _kept(key) is not None


def _digest(path: str) -> str:
    key = file_key(path)
    with _lock:
        future = _known.get(key)
        is_mine = future is None
        if future is None:
            future = _known[key] = Future()
    if is_mine:
        try:
            future.set_result(_kept(key) or _read(path, key))
        except BaseException as e:  # an interrupt is this thread's alone
            del _known[key]
            future.set_exception(
                e if isinstance(e, Exception) else OSError(errno.EINTR, "reading was interrupted", path)
            )
            raise
    return future.result()


def _header_digest(path: str) -> str:
    key = file_key(path)
    if key not in _known_headers:
        with open(path, "rb") as file:
            _known_headers[key] = _blake2b(file.read(header_size(path))).hexdigest()
    return _known_headers[key]


def _read(path: str, key: _Key) -> str:
    digest = _blake2b()
    with open(path, "rb") as file:
        while block := file.read(_N_BLOCK):
            with digest_lock:
                digest.update(block)
    found = digest.hexdigest()
    if key[2] > _N_QUICK and file_key(path) == key:
        _keep(key, found)
    return found


def _kept_in(key: _Key) -> Path:
    return cache_dir() / "fingerprints" / f"{_blake2b(os.fsencode(key[0])).hexdigest()[:24]}.json"


def _kept(key: _Key) -> str | None:
    """The digest that a process has kept of a file."""
    if key[2] <= _N_QUICK:
        return None
    try:
        found = read_json(_kept_in(key))
        digest = found["blake2b"]
        is_whole = found["file"] == list(key) and isinstance(digest, str) and len(digest) == 2 * _N_DIGEST
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # the last one: there is no home
        return None
    return digest if is_whole else None


def _keep(key: _Key, digest: str) -> None:
    with suppress(RuntimeError):  # there is no home
        keep(_kept_in(key), json.dumps({"file": key, "blake2b": digest}))


def _blake2b(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=_N_DIGEST, usedforsecurity=False)
