"""Kinds of drafters: one class for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..._core import Device, Drafter, TargetInfo
from ...files.model_file import check_file
from .fit import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A loaded target, and the options of its drafter."""

    model: Any
    """The llama_model, which outlives the drafter."""
    ctx: Any
    """The llama_context, which does too."""
    model_params: Any
    context_params: Any
    n_vocab: int
    """Tokens of the target."""
    n_ctx: int
    """Positions, of each sequence unless they share their cells."""
    n_seq: int
    is_pooled: bool
    """Whether the sequences share their cells."""
    has_trees: bool
    """Whether trees can be verified."""
    n_threads: int
    """Threads of the drafter, on a CPU."""
    draft_n_ctx: int | None = None
    """Positions of each sequence that a small model reads; None: all."""
    n_gpu_layers: int = -1
    """Layers of the drafter on a GPU; < 0: it runs where the target does."""
    device: Device | None = None
    """Where the drafter runs; None: by n_gpu_layers."""
    type_k: int | None = None
    """ggml type of the drafter's cache; None: F16."""
    type_v: int | None = None


class DrafterFile(ABC):
    """A file with weights that draft, by its header. The class has what all files of its kind have in common."""

    source: ClassVar[str]
    """Its name in `draft_sources`, figures and metrics."""
    spec_types: ClassVar[tuple[str, ...]]
    """llama.cpp's names for it in --spec-type; the first one is the usual one."""
    title: ClassVar[str]
    """What it is called: "head"."""
    why_no_target: ClassVar[str] = ""
    """What the file is, if it cannot be a target; empty: it can."""
    n_max_auto: ClassVar[int] = 8
    """Tokens that "auto" drafts at most, by default."""
    takes_head_options: ClassVar[bool] = False
    """Whether draft_type and draft_target_layers hold for it."""
    takes_n_ctx: ClassVar[bool] = False
    """Whether draft_n_ctx holds for it."""
    needs_file: ClassVar[bool] = True
    """Whether it is an error to name it as a source without a file."""
    is_model: ClassVar[bool] = False
    """Whether llama.cpp can load the file by itself, to try it."""
    has_own_rotation: ClassVar[bool] = False
    """Whether it rotates as its file says, whatever the target's context is told of RoPE."""
    of_media: ClassVar[str] = ""
    """What a user should know of images and sounds."""

    path: str
    n_embd_tgt: int = 0
    """Width of the target that it was made for; 0: any, or the header does not have it."""
    n_vocab: int = 0
    """Tokens of the target that it was made for; 0: the header does not have the number."""
    boundaries: tuple[int, ...] = ()
    """What it reads of the target, by its header."""
    n_draft_max: int | None = None
    """Tokens of a draft, if the file limits them."""
    note: str = ""
    """What should be known of it."""
    vocabulary: Vocabulary = Vocabulary()
    """What its tokens have beside those of the target that it was held against."""

    archs: ClassVar[tuple[str, ...]] = ()
    """Architectures of its files; empty: those of targets."""

    @classmethod
    def matches(cls, info: TargetInfo) -> bool:
        """Whether a file is of this kind, if it is of none before it in the table."""
        return False

    @abstractmethod
    def __init__(self, path: str):
        """Read the header.

        Raises:
            ModelFileError: the file cannot be read or is not what it should be.
        """

    @abstractmethod
    def fit(self, model_path: str, target: TargetInfo, layers: Sequence[int] | None) -> tuple[int, ...]:
        """Check that it belongs to a target.

        layers: boundaries in place of those that its header names.

        Returns:
            The boundaries of the target that it reads.

        Raises:
            ModelFileError: it cannot be used at all.
            IncompatibleDraftError: it belongs to another target, or cannot draft here.
        """

    def check(self, target: TargetInfo | None, checked: bool, is_all: bool) -> None:
        """Check what the header alone does not tell, as far as that is possible without the target.

        target: None if there is none yet. checked, is_all: see `check_file`.

        Raises:
            ModelFileError, IncompatibleDraftError: loading would be refused.
        """
        if self.is_model:
            check_file(self.path, {}, checked, is_all=is_all)

    @abstractmethod
    def describe(self) -> str:
        """What it is, in a few words that begin with the title."""

    @abstractmethod
    def make(self, target: LoadedTarget, draft_type: int | None) -> Drafter:
        """Load it for a target that it fits, wider matrices converted to a ggml type if that is not None.

        Raises:
            ModelFileError, IncompatibleDraftError: it cannot be run.
        """
