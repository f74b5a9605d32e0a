"""Does a draft fit its target? Answered from the two files' headers, before anything large is loaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ._core import TargetInfo, read_arch, read_target
from .drafters import DrafterFile, MtpBlock, kind_of, kind_of_arch
from .drafters.fit import check_boundaries, check_generates
from .errors import ModelFileError

_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and what drafts for it."""

    target: TargetInfo
    draft: DrafterFile | None
    boundaries: tuple[int, ...]
    """What is read of the target."""


def check_pair(
    model_path: str,
    draft_model_path: str | None,
    draft_target_layers: Sequence[int] | None = None,
    *,
    uses_own_block: bool = False,
) -> Pair:
    """Read both headers and check that they fit.

    uses_own_block: without a draft, the target's own block for multi-token prediction drafts.

    Raises:
        ModelFileError: one of the files cannot be read or is not what it should be.
        IncompatibleDraftError: the two do not belong together.
    """
    named = kind_of_arch(read_arch(model_path))
    if what := named.why_no_target if named else "":
        raise ModelFileError(f"'{model_path}' is {what}, not a target: give it as draft_model_path")
    target = read_target(model_path)
    if what := kind_of(model_path).why_no_target:
        raise ModelFileError(f"'{model_path}' is {what}, not a target: give it as draft_model_path")
    layers = None if draft_target_layers is None else tuple(int(b) for b in draft_target_layers)
    draft: DrafterFile | None = None
    if draft_model_path is not None:
        draft = kind_of(draft_model_path)(draft_model_path)
    elif uses_own_block:
        draft = MtpBlock(model_path)
    if draft is not None:
        return Pair(target, draft, draft.fit(model_path, target, layers))
    if layers is not None:
        check_generates(model_path, target, target.why_no_target)
        check_boundaries(model_path, target, "draft_target_layers", layers)
    return Pair(target, None, layers or ())


def fingerprint(path: str) -> str:
    """Identify a model file by its size, its first and its last 64 KiB: quick for any size."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        digest = hashlib.sha256(str(size).encode())
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
