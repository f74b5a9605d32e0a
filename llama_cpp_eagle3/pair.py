"""Does a draft fit its target? Answered from the two files' headers, before anything large is loaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ._core import Head, TargetInfo, compare_tokens, read_head, read_target
from .errors import IncompatibleDraftError, ModelFileError

_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and what reads its hidden states."""

    target: TargetInfo
    head: Head | None
    boundaries: tuple[int, ...]


def check_pair(model_path: str, draft_model_path: str | None, draft_target_layers: Sequence[int] | None = None) -> Pair:
    """Read both headers and check that they fit.

    Raises:
        ModelFileError: one of the files cannot be read or is not what it should be.
        IncompatibleDraftError: the two do not belong together.
    """
    target = read_target(model_path)
    if target.arch in ("eagle3", "eagle3-ext"):
        raise ModelFileError(f"'{model_path}' is an EAGLE-3 head, not a target: give it as draft_model_path")
    head = None if draft_model_path is None else read_head(draft_model_path)
    if draft_target_layers is not None:
        boundaries = tuple(int(b) for b in draft_target_layers)
    elif head is not None:
        # without auxiliary hidden states a head reads the target's final normed one
        boundaries = tuple(head.boundaries) if head.use_aux_hidden_state else (target.n_layer + 1,)
    else:
        boundaries = ()
    if head is not None:
        _check_fit(model_path, target, head, boundaries)
    return Pair(target, head, boundaries)


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
            f"{len(boundaries)}: {list(boundaries)}. Name as many layers as the head reads."
        )
    for b in boundaries:
        if not 0 <= b <= target.n_layer + 1:
            raise IncompatibleDraftError(
                f"the draft '{head.path}' reads the hidden state after {b} layers, the target '{model_path}' has "
                f"{target.n_layer} layers. Use the head that was trained for this target, or say draft_target_layers."
            )


def fingerprint(path: str) -> str:
    """Tell one model file from another by its size, its first and its last 64 KiB: quick for any size."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        digest = hashlib.sha256(str(size).encode())
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
