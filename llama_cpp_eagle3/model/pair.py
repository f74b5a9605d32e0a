"""Whether drafters fit their target, by the headers of their files, before anything large is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._core import TargetInfo, read_arch, read_target
from ..draft.kinds import DrafterFile, MtpBlock, check_kind, kind_of, kind_of_arch, kind_of_model
from ..draft.kinds.fit import check_boundaries, check_generates
from ..draft.kinds.mtp import why_no_block
from ..errors import IncompatibleDraftError, ModelFileError
from ..files.model_file import check_file


@dataclass(frozen=True, slots=True)
class Headers:
    """What the files say that are given."""

    target: TargetInfo
    drafts: tuple[DrafterFile, ...]
    """The drafters' files that are given."""
    block: DrafterFile
    """The target's own block for multi-token prediction."""
    has_block: bool
    """Whether there is such a block, and it can draft."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and its drafters, if there are any."""

    target: TargetInfo
    drafts: tuple[DrafterFile, ...]
    boundaries: tuple[int, ...] = ()
    """The target's boundaries that any of them reads."""


def read_headers(model_path: str, draft_paths: Sequence[str]) -> Headers:
    """Read the headers of a target's and of drafters' files.

    Raises:
        ModelFileError: a file cannot be read, or is damaged or of another kind.
    """
    target = _read_target(model_path)
    drafts = tuple(kind_of(path)(path) for path in draft_paths)
    return Headers(target, drafts, MtpBlock(model_path, target), not why_no_block(target))


def fit(target: TargetInfo, drafts: Sequence[DrafterFile], draft_target_layers: Sequence[int] | None = None) -> Pair:
    """Check that drafters fit a target.

    Raises:
        ModelFileError: one cannot be used at all.
        IncompatibleDraftError: they do not belong together.
    """
    layers = None if draft_target_layers is None else tuple(int(b) for b in draft_target_layers)
    if not drafts and layers is not None:
        check_generates(target.path, target, target.why_no_target)
        check_boundaries(target.path, target, "draft_target_layers", layers)
    read = [draft.fit(target.path, target, layers) for draft in drafts] or [layers or ()]
    boundaries = tuple(dict.fromkeys(b for of_one in read for b in of_one))
    if len(boundaries) > 1 and max(boundaries) > target.n_layer + 1:
        raise IncompatibleDraftError(
            f"the {' and the '.join(draft.title for draft in drafts)} cannot draft together for '{target.path}': its "
            "block reads all residual streams of the target, which has several"
        )
    return Pair(target, tuple(drafts), boundaries)


def check_files(pair: Pair, options: Mapping[str, Any], checked: bool, *, is_all: bool = False) -> None:
    """Check what the headers of a pair's files do not tell.

    options: the constructor's arguments, of which the target's matter. checked, is_all: see `check_file`.

    Raises:
        ModelFileError, IncompatibleDraftError: see `fit`.
    """
    check_file(pair.target.path, options, checked, is_all=is_all)
    for draft in pair.drafts:
        draft.check(pair.target, checked, is_all)


def check_loadable(model_path: str, draft_paths: Sequence[str | None] = ()) -> Pair:
    """Check that files can be loaded together, as loading does.

    draft_paths: the drafters' files; None for the target's own block for multi-token prediction.

    Raises:
        ModelFileError, IncompatibleDraftError: see `fit`.
    """
    target = _read_target(model_path)
    pair = fit(target, [MtpBlock(model_path, target) if path is None else kind_of(path)(path) for path in draft_paths])
    check_files(pair, {}, True, is_all=True)
    return pair


def _read_target(model_path: str) -> TargetInfo:
    check_kind(model_path)
    kind = kind_of_arch(read_arch(model_path))
    if kind is None:
        target = read_target(model_path)
        kind = kind_of_model(target)
        if not kind.why_no_target:
            return target
    raise ModelFileError(f"'{model_path}' is {kind.why_no_target}, not a target: give it as draft_model_path")
