"""Does a draft fit its target? Answered from the two files' headers, before anything large is loaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ._core import Head, TargetInfo, compare_tokens, read_head, read_target
from .engine import DraftSource
from .errors import IncompatibleDraftError, ModelFileError
from .mtp import check_block
from .simple import check_model

_SAMPLE_BYTES = 1 << 16
_HEADS = ("eagle3", "eagle3-ext")


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and what reads its hidden states."""

    target: TargetInfo
    head: Head | None
    boundaries: tuple[int, ...]
    small: TargetInfo | None = None
    """A small model that drafts in place of a head."""
    block: TargetInfo | None = None
    """A block for multi-token prediction in a file of its own."""


def draft_kind(path: str) -> DraftSource:
    """What a draft's file is, by its header: a head also if it cannot be read, which loading it explains."""
    try:
        info = read_target(path)
    except ModelFileError:
        return "eagle3"
    if info.arch in _HEADS:
        return "eagle3"
    return "simple" if info.has_trunk else "mtp"


def check_pair(model_path: str, draft_model_path: str | None, draft_target_layers: Sequence[int] | None = None) -> Pair:
    """Read both headers and check that they fit.

    Raises:
        ModelFileError: one of the files cannot be read or is not what it should be.
        IncompatibleDraftError: the two do not belong together.
    """
    target = read_target(model_path)
    if target.arch in _HEADS:
        raise ModelFileError(f"'{model_path}' is an EAGLE-3 head, not a target: give it as draft_model_path")
    if not target.has_trunk:
        raise ModelFileError(
            f"'{model_path}' is a block for multi-token prediction alone, not a target: give it as draft_model_path"
        )
    small = block = None
    kind = None if draft_model_path is None else draft_kind(draft_model_path)
    if draft_model_path is not None and kind == "mtp":
        block, draft_model_path = check_block(model_path, target, draft_model_path), None
    if draft_model_path is not None and kind == "simple":
        if target.why_no_text:
            raise IncompatibleDraftError(
                f"'{model_path}' ({target.arch}) cannot be the target of a draft: {target.why_no_text}. "
                "Load it without a draft, or use a model that generates text."
            )
        small, draft_model_path = check_model(model_path, draft_model_path), None
    head = None if draft_model_path is None else read_head(draft_model_path)
    if draft_target_layers is not None:
        boundaries = tuple(int(b) for b in draft_target_layers)
    elif head is not None:
        # without auxiliary hidden states a head reads the target's final normed one
        boundaries = tuple(head.boundaries) if head.use_aux_hidden_state else (target.n_layer + 1,)
    else:
        boundaries = ()
    if head is not None or draft_target_layers is not None:
        _check_target(model_path, target)
    if head is not None:
        _check_fit(model_path, target, head, boundaries)
    _check_boundaries(model_path, target, head, boundaries)
    return Pair(target, head, boundaries, small, block)


def _check_target(model_path: str, target: TargetInfo) -> None:
    if target.why_no_target:
        raise IncompatibleDraftError(
            f"'{model_path}' ({target.arch}) cannot be the target of a draft: {target.why_no_target}. "
            "Load it without a draft, or use a model that generates text."
        )


def _check_fit(model_path: str, target: TargetInfo, head: Head, boundaries: tuple[int, ...]) -> None:
    if head.n_embd_tgt != target.n_embd:
        raise IncompatibleDraftError(
            f"the draft '{head.path}' reads hidden states of {head.n_embd_tgt} values, the target '{model_path}' "
            f"has {target.n_embd}. Use the head that was trained for this target."
        )
    if head.n_vocab and head.n_vocab != target.n_vocab:
        raise IncompatibleDraftError(
            f"the draft '{head.path}' was made for a vocabulary of {head.n_vocab} tokens, the target '{model_path}' "
            f"has {target.n_vocab}. Use the head that was trained for this target."
        )
    n_different, first, text_target, text_draft = compare_tokens(model_path, head.path)
    # fine-tunes rename a few reserved tokens; more than that is another tokenizer
    if n_different > target.n_vocab // 100:
        raise IncompatibleDraftError(
            f"the draft '{head.path}' was made for another tokenizer than '{model_path}' has: {n_different} of "
            f"{target.n_vocab} tokens differ, the first is {first}: {text_draft!r} instead of {text_target!r}. "
            "Use the head that was trained for this target."
        )
    if head.use_aux_hidden_state and len(boundaries) != len(head.boundaries):
        raise IncompatibleDraftError(
            f"the draft '{head.path}' reads {len(head.boundaries)} hidden states, draft_target_layers names "
            f"{len(boundaries)}: {list(boundaries)}. Name as many layers as the head reads. {_offer(target)}"
        )


def _check_boundaries(model_path: str, target: TargetInfo, head: Head | None, boundaries: tuple[int, ...]) -> None:
    reader = "draft_target_layers" if head is None else f"the draft '{head.path}'"
    for i, b in enumerate(boundaries):
        if b not in target.boundaries:
            raise IncompatibleDraftError(
                f"{reader} reads the hidden state after {b} layers, which the target '{model_path}' ({target.arch}) "
                f"does not offer. {_offer(target)} Use the head that was trained for this target, or say "
                "draft_target_layers."
            )
        if b in boundaries[:i]:
            raise IncompatibleDraftError(
                f"{reader} reads the hidden state after {b} layers twice: {list(boundaries)}. {_offer(target)}"
            )


def _offer(target: TargetInfo) -> str:
    """What can be read of a target, as a sentence."""
    layers = [b for b in target.boundaries if b <= target.n_layer]
    after = f", and {target.n_layer + 1} is the state after the final norm" if layers != target.boundaries else ""
    return f"It has {target.n_layer} layers: {layers[0]} to {layers[-1]} can be read{after}."


def fingerprint(path: str) -> str:
    """Tell one model file from another by its size, its first and its last 64 KiB: quick for any size."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        digest = hashlib.sha256(str(size).encode())
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
