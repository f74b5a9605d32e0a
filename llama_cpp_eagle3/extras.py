"""Optional dependencies: the package's extras, and the package that makes heads."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .errors import Eagle3Error

_NAME = "llama-cpp-eagle3"
HEADS = "llama-cpp-eagle3-heads"
_HEADS_FOLDER = "heads"
"""The folder of the repository with the package that makes heads."""


@contextmanager
def heads(what: str) -> Iterator[None]:
    """Must be around imports of the package that makes heads, which only this allows (tests/test_layers.py).

    what: the feature that needs it.

    Raises:
        Eagle3Error: it is not installed; the message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] != HEADS.replace("-", "_"):
            raise
        raise Eagle3Error(f"{what} needs the package {HEADS}: {install_command(of_heads=True)}") from e


@contextmanager
def extra(name: str, of_heads: bool = False) -> Iterator[None]:
    """Must be around imports of an extra's modules. of_heads: an extra of the package that makes heads.

    Raises:
        Eagle3Error: a module is missing; the message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        raise Eagle3Error(f"{e.name} is missing: {install_command(name, of_heads=of_heads)}") from e


def install_command(*extras: str, of_heads: bool = False) -> str:
    """The command that installs extras from where this copy came: a clone, an archive, an index.

    Args:
        extras: their names.
        of_heads: extras of the package that makes heads, which comes from the same place, except if that is an archive.
    """
    names = f"[{','.join(extras)}]" if extras else ""
    origin = _origin()
    url = str(origin.get("url", ""))
    if of_heads and "archive_info" in origin:
        origin, url = {}, ""
    if "dir_info" in origin:
        folder = Path(url2pathname(urlsplit(url).path)) / (_HEADS_FOLDER if of_heads else "")
        if (folder / "pyproject.toml").is_file():
            editable = "--editable " if origin["dir_info"].get("editable") else ""
            return f"pip install {editable}{shlex.quote(f'{folder}{names}')}"
        url = ""  # the folder was removed
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}" + (f"#subdirectory={_HEADS_FOLDER}" if of_heads else "")
    return f"pip install '{HEADS if of_heads else _NAME}{names}{f' @ {url}' if url else ''}'"


def _origin() -> dict[str, Any]:
    """Where the package came from, as pip has recorded it; empty = from an index."""
    try:
        text = distribution(_NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # a folder that Python imports from
        return {"url": Path(__file__).parent.parent.as_uri(), "dir_info": {}}
    return dict(json.loads(text)) if text else {}
