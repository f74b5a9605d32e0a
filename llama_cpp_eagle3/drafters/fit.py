"""Checks that a drafter was made for a target: width, tokens, layers."""

from __future__ import annotations

from collections.abc import Sequence

from .._core import TargetInfo, compare_tokens, find_vocab_difference
from ..errors import IncompatibleDraftError


def check_generates(model_path: str, target: TargetInfo, why_not: str) -> None:
    """Raise IncompatibleDraftError if there is a reason why a model cannot be a target."""
    if why_not:
        raise IncompatibleDraftError(
            f"'{model_path}' ({target.arch}) cannot be the target of a draft: {why_not}. "
            "Load it without a draft, or use a model that generates text."
        )


def check_made_for(model_path: str, target: TargetInfo, path: str, n_embd_tgt: int, n_vocab: int) -> None:
    """Raise IncompatibleDraftError if a draft was made for another width or vocabulary.

    n_vocab: 0 if the draft's file does not have it.
    """
    if n_embd_tgt != target.n_embd:
        raise IncompatibleDraftError(
            f"the draft '{path}' reads hidden states of {n_embd_tgt} values, the target '{model_path}' "
            f"has {target.n_embd}. Use the head that was trained for this target."
        )
    if n_vocab and n_vocab != target.n_vocab:
        raise IncompatibleDraftError(
            f"the draft '{path}' was made for a vocabulary of {n_vocab} tokens, the target '{model_path}' "
            f"has {target.n_vocab}. Use the head that was trained for this target."
        )
    n_different, first, text_target, text_draft = compare_tokens(model_path, path)
    # fine-tunes rename a few reserved tokens; more than that is another tokenizer
    if n_different > target.n_vocab // 100:
        raise IncompatibleDraftError(
            f"the draft '{path}' was made for another tokenizer than '{model_path}' has: {n_different} of "
            f"{target.n_vocab} tokens differ, the first is {first}: {text_draft!r} instead of {text_target!r}. "
            "Use the head that was trained for this target."
        )


def check_boundaries(model_path: str, target: TargetInfo, reader: str, boundaries: Sequence[int]) -> None:
    """Raise IncompatibleDraftError for boundaries that a target cannot give. reader: the drafter, for the message."""
    for i, b in enumerate(boundaries):
        if b not in target.boundaries:
            raise IncompatibleDraftError(
                f"{reader} reads the hidden state after {b} layers, which the target '{model_path}' ({target.arch}) "
                f"does not offer. {offer(target)} Use the head that was trained for this target, or give "
                "draft_target_layers."
            )
        if b in boundaries[:i]:
            raise IncompatibleDraftError(
                f"{reader} reads the hidden state after {b} layers twice: {list(boundaries)}. {offer(target)}"
            )


def check_same_vocabulary(model_path: str, path: str, reader: str, advice: str = "") -> None:
    """Raise IncompatibleDraftError if two models have other tokens. reader: what the second one is."""
    if difference := find_vocab_difference(model_path, path).decode(errors="replace"):
        raise IncompatibleDraftError(f"{reader} has other tokens than the target '{model_path}': {difference}{advice}")


def offer(target: TargetInfo) -> str:
    """What can be read of a target, as a sentence."""
    layers = [b for b in target.boundaries if b <= target.n_layer]
    after = f", and {target.n_layer + 1} is the state after the final norm" if layers != target.boundaries else ""
    return f"It has {target.n_layer} layers: {layers[0]} to {layers[-1]} can be read{after}."
