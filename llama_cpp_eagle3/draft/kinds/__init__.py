"""Drafters with weights of their own: a class for each kind of file, and one table of them."""

from __future__ import annotations

from typing import Literal

from ..._core import TargetInfo, find_other_kind, read_arch, read_target
from ...engine.request import GRAMMAR, NGRAM, WITHOUT_MODEL
from ...errors import ModelFileError
from .assistant import GemmaAssistant
from .dflash import BlockDrafter
from .eagle3 import Eagle3Head
from .kind import DrafterFile, Place
from .mtp import MtpBlock
from .simple import SmallModel

__all__ = [
    "GRAMMAR", "KINDS", "NGRAM", "WITHOUT_MODEL", "DraftSource", "DrafterFile", "MtpBlock", "Place", "SmallModel",
    "check_kind", "kind_of", "kind_of_arch", "kind_of_model", "kind_of_source",
]  # fmt: skip

KINDS: tuple[type[DrafterFile], ...] = (Eagle3Head, BlockDrafter, MtpBlock, GemmaAssistant, SmallModel)
"""A new drafter is a class, a line here, and its name in `DraftSource`."""

DraftSource = Literal["eagle3", "mtp", "assistant", "simple", "dflash", "ngram", "grammar"]
"""Names of all sources, for type checkers."""


def kind_of_source(source: str) -> type[DrafterFile]:
    """The kind with this name in `draft_sources`."""
    return next(kind for kind in KINDS if kind.source == source)


def kind_of_arch(arch: str) -> type[DrafterFile] | None:
    """The kind whose files have this architecture; None: it is one of targets."""
    return next((kind for kind in KINDS if arch in kind.archs), None)


def kind_of_model(info: TargetInfo) -> type[DrafterFile]:
    """The kind of a file that has an architecture of targets."""
    return next(kind for kind in KINDS if kind.matches(info))


def check_kind(path: str) -> None:
    """Raise ModelFileError for a GGUF file that holds no model: an adapter, a projector."""
    try:
        what = find_other_kind(path)
    except ModelFileError:
        return  # it cannot be read: loading it will say why
    if what:
        raise ModelFileError(f"'{path}' is {what}")


def kind_of(path: str) -> type[DrafterFile]:
    """The kind of a drafter's file, by its header; a head if it cannot be read, as loading it will say why.

    Raises:
        ModelFileError: it is a file of another kind, which holds no model.
    """
    check_kind(path)
    try:
        if named := kind_of_arch(read_arch(path)):
            return named
        return kind_of_model(read_target(path))
    except ModelFileError:
        return Eagle3Head
