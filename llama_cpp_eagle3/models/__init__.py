"""The bundled pair: a small language model of Python code and its EAGLE-3 head.

``PROVENANCE.md`` beside this file says what both were trained on.
"""

from __future__ import annotations

import json
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
TARGET_NAME = "pystdlib-8m-f16.gguf"
DRAFT_NAME = "pystdlib-8m-eagle3-f16.gguf"


def bundled_pair() -> tuple[Path, Path]:
    """Paths of the target and of its head.

    Raises:
        FileNotFoundError: a file is missing, as in a checkout without them.
    """
    pair = _FOLDER / TARGET_NAME, _FOLDER / DRAFT_NAME
    for path in pair:
        if not path.is_file():
            raise FileNotFoundError(f"the bundled model '{path}' is missing; docs/training.md tells how to make it")
    return pair


def heldout_prompts() -> list[str]:
    """The 40 prompts behind the recorded figures, cut from modules that the pair was not trained on."""
    prompts = json.loads((_FOLDER / "prompts.json").read_text(encoding="utf-8"))
    return [prompt["text"] for prompt in prompts]
