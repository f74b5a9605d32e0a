"""Kinds of drafters: one class for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..._core import Device, Drafter, TargetInfo, local_accelerators
from ...files.model_file import check_file
from .fit import Vocabulary

_ALL_LAYERS = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a drafter is loaded: beside which target, on which device, and how large."""

    model: Any
    """The llama_model, which outlives the drafter."""
    ctx: Any
    """The llama_context, which outlives the drafter too."""
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
    has_servers: bool = False
    """Whether the target has devices of other machines."""

    @property
    def n_layers(self) -> int:
        """Layers of a drafter's own model that are put on a device: 0, all, or as many as were asked for."""
        if self.device is not None and self.device.name == "CPU":
            return 0
        if self.n_gpu_layers >= 0:
            return self.n_gpu_layers
        return _ALL_LAYERS if self.device is not None or self.model_params.n_gpu_layers else 0

    @property
    def is_on_cpu(self) -> bool:
        """Whether a CPU computes a drafter's own model."""
        return self.n_layers == 0 or (self.device is None and not self.has_servers and not local_accelerators())


class DrafterFile(ABC):
    """A drafter's file, as its header describes it. Class attributes are those of all files of its kind."""

    source: ClassVar[str]
    """Its name in `draft_sources`, figures and metrics."""
    spec_types: ClassVar[tuple[str, ...]]
    """llama.cpp's names for it in --spec-type; the first one is the usual one."""
    title: ClassVar[str]
    """Its name in texts: "head"."""
    why_no_target: ClassVar[str] = ""
    """What the file is and why it cannot be a target; empty: it can."""
    n_max_auto: ClassVar[int] = 8
    """Tokens that "auto" drafts at most, by default."""
    takes_type: ClassVar[bool] = False
    """Whether draft_type holds for it."""
    takes_layers: ClassVar[bool] = False
    """Whether draft_target_layers holds for it."""
    takes_n_ctx: ClassVar[bool] = False
    """Whether draft_n_ctx holds for it."""
    needs_file: ClassVar[bool] = True
    """Whether it is an error to name it as a source without a file."""
    is_model: ClassVar[bool] = False
    """Whether llama.cpp can load the file by itself, to try it or to convert its weights."""
    has_own_rotation: ClassVar[bool] = False
    """Whether it rotates as its file says, whatever RoPE arguments the target's context has."""
    of_media: ClassVar[str] = ""
    """What users should know of it about images and sounds."""

    path: str
    copy: str | None = None
    """A copy of the file with its weights in another type, which is loaded in its place; None: there is none."""
    n_embd_tgt: int = 0
    """Width of the target that it was made for; 0: any, or the header does not have it."""
    n_vocab: int = 0
    """Tokens of the target that it was made for; 0: the header does not have the number."""
    boundaries: tuple[int, ...] = ()
    """The target's boundaries that it reads, by its header."""
    n_draft_max: int | None = None
    """Tokens of a draft, if the file limits them."""
    note: str = ""
    """What users should know of it."""
    vocabulary: Vocabulary = Vocabulary()
    """How its tokens differ from those of the target that `fit` has compared it with."""

    archs: ClassVar[tuple[str, ...]] = ()
    """Architectures of its files; empty: those of targets."""

    @property
    def is_in_target(self) -> bool:
        """Whether it is a part of the target's file that `fit` has compared it with."""
        return False

    @property
    def weights(self) -> str:
        """The file that is loaded: the copy, if there is one."""
        return self.path if self.copy is None else self.copy

    @classmethod
    def matches(cls, info: TargetInfo) -> bool:
        """Whether a file is of this kind, if no earlier kind in the table matches."""
        return False

    @abstractmethod
    def __init__(self, path: str):
        """Read the header.

        Raises:
            ModelFileError: the file cannot be read, or is damaged or of another kind.
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
        """Check what the header does not tell, as far as that is possible without the target.

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
    def make(self, place: Place, draft_type: int | None) -> Drafter:
        """Load it for a target that it fits. draft_type: ggml type to convert wider matrices to; None: none are.

        Raises:
            ModelFileError, IncompatibleDraftError: it cannot be run.
        """
