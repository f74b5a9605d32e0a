"""Optional dependencies: the package's extras, and the two packages beside it."""

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
"""The package that makes heads."""
MODELS = "llama-cpp-eagle3-models"
"""The package that has heads."""
_FOLDERS = {_NAME: "", HEADS: "heads", MODELS: "models"}
"""Each package -> its folder in the repository."""


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
        module = (e.name or "").partition(".")[0]
        if module == HEADS.replace("-", "_"):
            raise Eagle3Error(needs(what, HEADS)) from e
        raise Eagle3Error(f"{what} needs {module}, which is missing: {install_command(of=HEADS)}") from e


def needs(what: str, package: str) -> str:
    """A message: what needs a package that is not installed, and the command that installs it."""
    return f"{what} needs the package {package}: {install_command(of=package)}"


@contextmanager
def extra(name: str, of: str = _NAME) -> Iterator[None]:
    """Must be around imports of an extra's modules. of: the package that has the extra.

    Raises:
        Eagle3Error: a module is missing; the message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        raise Eagle3Error(f"{e.name} is missing: {install_command(name, of=of)}") from e


def install_command(*extras: str, of: str = _NAME) -> str:
    """The command that installs extras from where this copy came: a clone, an archive, an index.

    Args:
        extras: their names.
        of: the package that has them; each comes from the same place as this one, except if that is an archive.
    """
    names = f"[{','.join(extras)}]" if extras else ""
    origin = _origin()
    url = str(origin.get("url", ""))
    if of != _NAME and "archive_info" in origin:
        origin, url = {}, ""
    if "dir_info" in origin:
        folder = Path(url2pathname(urlsplit(url).path)) / _FOLDERS[of]
        if (folder / "pyproject.toml").is_file():
            editable = "--editable " if origin["dir_info"].get("editable") else ""
            return f"pip install {editable}{shlex.quote(f'{folder}{names}')}"
        url = ""  # the folder was removed
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}" + (f"#subdirectory={_FOLDERS[of]}" if _FOLDERS[of] else "")
    return f"pip install '{of}{names}{f' @ {url}' if url else ''}'"


def _origin() -> dict[str, Any]:
    """Where the package came from, as pip has recorded it; empty = from an index."""
    try:
        text = distribution(_NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # a folder that Python imports from
        return {"url": Path(__file__).parent.parent.as_uri(), "dir_info": {}}
    return dict(json.loads(text)) if text else {}
