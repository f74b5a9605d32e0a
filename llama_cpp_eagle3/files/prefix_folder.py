"""The folder of the prefix cache: files of prefixes and states that outlive the process.

A file's name has digests of its maker and of its tokens, so processes with the same model and settings give the same
content the same name. Processes and models may share a folder: a file is replaced as a whole, a missing file was
removed by another process, and when there is no room, other makers' files are removed first. Only their owner can read
the files, as they are texts of conversations. Files of other owners are not read.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..engine import FolderEntry, StoredFile, StoredPrefix
from .prefix_file import Maker, PrefixFileError, read_head, read_prefix, size_of, write_prefix
from .whole_file import is_abandoned

_N_BYTES = 8 << 30
_FLAGS = "(--cache-disk, prefix_cache_dir)"
_PART_SECONDS = 600.0  # an unfinished file of a killed process stays so long
_NAME = re.compile(r"([0-9a-f]{16})-[0-9a-f]{24}\.(prefix|state)")
_PART = re.compile(r"\.[0-9a-f]{16}-[0-9a-f]{24}\.(prefix|state)\.[0-9a-f]{16}\.part")
_log = logging.getLogger("llama_cpp_eagle3")
T = TypeVar("T")


def open_folder(path: str | os.PathLike[str], n_bytes_max: int | None, maker: Maker) -> PrefixFolder | None:
    """Open a folder, or make it; None and a warning if it cannot be used.

    n_bytes_max: limit of all files. None: 8 GiB, or a quarter of the disk's free space if that is less.
    """
    folder = Path(path).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and folder.stat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user")
        if n_bytes_max is None:
            held = sum(status.st_size for _, status in _files(folder))
            n_bytes_max = min(_N_BYTES, (shutil.disk_usage(folder).free + held) // 4)
    except OSError as e:
        _log.warning("nothing is kept over restarts: cannot use the folder '%s': %s %s", folder, e.strerror, _FLAGS)
        return None
    return PrefixFolder(folder, n_bytes_max, maker)


class PrefixFolder:
    """Reads and writes the files of one maker; `PrefixFiles` of the engine documents its methods."""

    def __init__(self, path: Path, n_bytes_max: int, maker: Maker):
        """path: an existing folder. n_bytes_max: limit of all files. maker: whose files they are."""
        self.path, self.n_bytes_max = path, n_bytes_max
        self._maker = maker
        self._key = maker.key
        self._n_refused = 0  # bytes of a file that could not be written, which was logged
        self._writer = ThreadPoolExecutor(1, "prefix-writer")
        self._reader = ThreadPoolExecutor(1, "prefix-reader")
        self._probe()

    def _probe(self) -> None:
        """Warn at once if nothing can be written."""
        part = self.path / f".{secrets.token_hex(8)}.part"
        try:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            part.unlink()
        except OSError as e:
            self._warn(e, 1)

    def use_drafters(self, draft: str) -> None:
        """Note that other drafters' states are written from now on: their fingerprint."""
        self._maker = replace(self._maker, draft=draft)

    # the engine's

    def entries(self) -> Iterator[FolderEntry]:
        """The files that fit target and settings, the most recently used first. Damaged ones are removed."""
        found = [(status.st_mtime, name, status.st_size) for name, status in _files(self.path)]
        others = [n_bytes for _, name, n_bytes in found if not name.startswith(self._key[:16])]
        if others:
            _log.info(
                "of the prefix cache's folder '%s', %d files (%.1f MiB) are of other models, settings or versions: "
                "they are not used, and go first when there is no room %s",
                *(self.path, len(others), sum(others) / 2**20, _FLAGS),
            )
        for _, name, n_bytes in sorted(found, reverse=True):
            if not name.startswith(self._key[:16]):
                continue
            path = self.path / name
            try:
                head = read_head(path)
                if head.maker.key != self._key:
                    raise PrefixFileError("it was made by another target, or with other settings")
                if name != self._name_of(head.tokens, is_state=head.n_target == 0):
                    raise PrefixFileError("its name is that of another prefix")
            except PrefixFileError as e:
                self._drop_damaged(name, e)
                continue
            except OSError:  # another process has removed it
                continue
            n_memory_bytes = head.n_target + head.n_draft + sum(n for _, _, n in head.states)
            yield FolderEntry(StoredFile(name, n_bytes), head.tokens, head.n_turn, n_memory_bytes, head.n_target == 0)

    def size_of(self, stored: StoredPrefix) -> int:
        """Bytes of a file."""
        return size_of(self._maker, stored)

    def write(self, stored: StoredPrefix, kept: Collection[str]) -> Future[StoredFile | None]:
        """Write a file; None: it cannot be written, which is logged once. kept: files that stay."""
        return _run(self._writer, lambda: self._write(stored, kept))

    def read(self, file: StoredFile) -> Future[StoredPrefix | None]:
        """Read a file; None: it does not exist any more, or is damaged, which is logged."""
        return _run(self._reader, lambda: self._read(file))

    def remove(self, files: SequenceOf[StoredFile]) -> None:
        """Remove files, once those that are being written are written; missing ones are no error."""
        names = [file.name for file in files]
        _run(self._writer, lambda: self._remove(names))

    def touch(self, file: StoredFile) -> None:
        """Note that a file was used now."""
        _run(self._writer, lambda: self._touch(file.name))

    def close(self) -> None:
        """Wait until all reading and writing has ended."""
        self._writer.shutdown()
        self._reader.shutdown()

    # in threads

    def _write(self, stored: StoredPrefix, kept: Collection[str]) -> StoredFile | None:
        name = self._name_of(stored.tokens, is_state=not stored.target)
        n_bytes = size_of(self._maker, stored)
        try:
            if not self._make_room(n_bytes, kept):
                return None
            if shutil.disk_usage(self.path).free < n_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            n_bytes = write_prefix(self.path / name, self._maker, stored)
        except (OSError, MemoryError) as e:
            self._warn(e, n_bytes)
            return None
        if n_bytes >= self._n_refused:  # smaller ones may fit in what a full disk has left
            self._n_refused = 0
        return StoredFile(name, n_bytes)

    def _read(self, file: StoredFile) -> StoredPrefix | None:
        try:
            head, stored = read_prefix(self.path / file.name)
            if head.maker.key != self._key:
                raise PrefixFileError("it was made by another target, or with other settings")
        except PrefixFileError as e:
            self._drop_damaged(file.name, e)
            return None
        except FileNotFoundError:  # another process has removed it
            return None
        except (OSError, MemoryError) as e:
            _log.warning("cannot read '%s' of the prefix cache: %s", self.path / file.name, _reason(e))
            return None
        if self._maker.has_draft_of(head.maker):
            return stored
        return StoredPrefix(stored.tokens, stored.target, b"", stored.states, stored.n_turn)

    def _remove(self, names: SequenceOf[str]) -> None:
        for name in names:
            with suppress(OSError):
                os.unlink(self.path / name)

    def _touch(self, name: str) -> None:
        with suppress(OSError):
            os.utime(self.path / name, follow_symlinks=os.utime not in os.supports_follow_symlinks)

    def _make_room(self, n_bytes: int, kept: Collection[str]) -> bool:
        """Remove other files, the least recently used first, until a file of this size has room.

        False: there is no room, as the kept files are larger than when they were written.
        """
        files = [(status.st_mtime, name, status.st_size) for name, status in _files(self.path)]
        n_all = sum(size for _, _, size in files)
        for _, name, size in sorted(files):
            if n_all + n_bytes <= self.n_bytes_max:
                break
            if name not in kept and _NAME.fullmatch(name) is not None:
                self._remove([name])
                n_all -= size
        return n_all + n_bytes <= self.n_bytes_max

    def _drop_damaged(self, name: str, e: Exception) -> None:
        _log.warning("'%s' of the prefix cache is dropped: %s", self.path / name, e)
        self._remove([name])

    def _warn(self, e: BaseException, n_bytes: int) -> None:
        if not self._n_refused:
            self._n_refused = n_bytes
            _log.warning("cannot write to the prefix cache's folder '%s': %s %s", self.path, _reason(e), _FLAGS)

    def _name_of(self, tokens: SequenceOf[int], *, is_state: bool) -> str:
        digest = hashlib.sha256(struct.pack(f"<{len(tokens)}i", *tokens)).hexdigest()
        return f"{self._key[:16]}-{digest[:24]}.{'state' if is_state else 'prefix'}"  # short enough for `whole_file`


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Names of this user's files of prefixes, of all makers. Removes unfinished files of killed processes."""
    with os.scandir(folder) as entries:
        for entry in entries:
            is_part = _PART.fullmatch(entry.name) is not None
            if not is_part and _NAME.fullmatch(entry.name) is None:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode) or (os.name == "posix" and status.st_uid != os.geteuid()):
                    continue
                if is_part and time.time() - status.st_mtime > _PART_SECONDS and is_abandoned(entry.path):
                    os.unlink(entry.path)
                    continue
            except OSError:
                continue
            yield entry.name, status


def _run(pool: ThreadPoolExecutor, function: Callable[[], T]) -> Future[T]:
    """Run a function in a thread, or now if the interpreter is about to end and starts none."""
    try:
        return pool.submit(function)
    except RuntimeError:
        future: Future[T] = Future()
        future.set_result(function())
        return future


def _reason(e: BaseException) -> str:
    return (e.strerror or str(e)) if isinstance(e, OSError) else "out of memory"
