"""Parts of the package that need more than it installs by itself."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

_NAME = "llama-cpp-eagle3"


def install_command(*extras: str) -> str:
    """The command that installs extras of this copy, from where it came itself: a clone, an archive, an index."""
    names = f"[{','.join(extras)}]"
    origin = _origin()
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        folder = Path(url2pathname(urlsplit(url).path))
        if (folder / "pyproject.toml").is_file():
            editable = "--editable " if origin["dir_info"].get("editable") else ""
            return f"pip install {editable}{shlex.quote(f'{folder}{names}')}"
        url = ""  # the folder is gone
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}"
    return f"pip install '{_NAME}{names}{f' @ {url}' if url else ''}'"


def _origin() -> dict[str, Any]:
    """What pip has written down of where the package came from; empty = from an index."""
    try:
        text = distribution(_NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # a folder that Python imports from
        return {"url": Path(__file__).parent.parent.as_uri(), "dir_info": {}}
    return dict(json.loads(text)) if text else {}
