"""Checks that a drafter was made for a target: width, tokens, layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..._core import TargetInfo, compare_vocabularies, has_nearly
from ...errors import IncompatibleDraftError


def check_generates(model_path: str, target: TargetInfo, why_not: str) -> None:
    """Raise IncompatibleDraftError if there is a reason why a model cannot be a target."""
    if why_not:
        raise IncompatibleDraftError(
            f"'{model_path}' ({target.arch}) cannot be the target of a draft: {why_not}. "
            "Load it without a draft, or use a model that generates text."
        )


def check_width(model_path: str, target: TargetInfo, path: str, n_embd_tgt: int) -> None:
    """Raise IncompatibleDraftError if a draft was made for another width."""
    if n_embd_tgt != target.n_embd:
        raise IncompatibleDraftError(
            f"the draft '{path}' reads hidden states of {n_embd_tgt} values, the target '{model_path}' "
            f"has {target.n_embd}. {_USE_ITS_OWN}"
        )


_USE_ITS_OWN = "Use the head that was trained for this target."


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The differences between a drafter's vocabulary and its target's, if they are small."""

    left_out: tuple[int, ...] = ()
    """Tokens with another text in each: they are not drafted."""
    warning: str = ""


def check_vocabulary(
    model_path: str,
    target: TargetInfo,
    path: str,
    n_vocab: int,
    *,
    needs_texts: bool = False,
    is_exact: bool = False,
    advice: str = _USE_ITS_OWN,
) -> Vocabulary:
    """Compare a drafter's tokens with its target's: log small differences, refuse other tokenizers.

    Small differences are other texts of up to a hundredth of the tokens (fine-tunes rename reserved ones), as many more
    tokens at the end of one of them, or 128 (`has_nearly`), and other rules for BOS and EOS.

    Args:
        model_path: the target's file.
        target: its header.
        path: the draft's file.
        n_vocab: number of tokens if the draft's file has no texts; 0 if it does not tell.
        needs_texts: the draft must have a tokenizer: it is a model.
        is_exact: both must have the same number of tokens.
        advice: what to do with a draft that is refused.

    Raises:
        IncompatibleDraftError: the tokens are those of another tokenizer.
    """
    found = compare_vocabularies(model_path, path, target.n_vocab, n_vocab)
    kinds = [kind for kind in (found.model_tgt, found.model_dft) if needs_texts or kind not in ("", "none")]
    pair = f"the draft '{path}' was made for another tokenizer than the target '{model_path}' has"
    if len(set(kinds)) > 1:
        raise IncompatibleDraftError(
            f"{pair}: tokenizer.ggml.model is '{found.model_tgt}' of the target and '{found.model_dft}' of the draft. "
            f"{advice}"
        )
    n_tgt, n_dft = found.n_tgt, found.n_dft
    if n_tgt and n_dft and (n_tgt != n_dft if is_exact else not has_nearly(n_dft, n_tgt)):
        raise IncompatibleDraftError(
            f"the draft '{path}' was made for a vocabulary of {n_dft} tokens, the target '{model_path}' has {n_tgt}. "
            f"{advice}"
        )
    n_others = len(found.others)
    first = ""
    if n_others:
        texts = [text[:64].decode(errors="replace") for text in (found.text_tgt, found.text_dft)]
        first = f"token {found.others[0]} is {texts[0]!r} of the target and {texts[1]!r} of the draft"
    if n_others > max(n_tgt, n_dft) // 100:
        raise IncompatibleDraftError(f"{pair}: {n_others} of {n_tgt} tokens differ, the first one: {first}. {advice}")
    parts = []
    if n_others:
        parts.append(f"{n_others} tokens have other texts ({first})" if n_others > 1 else first)
    if found.n_more:
        parts.append(f"{found.n_more} tokens are in one of both alone ({n_tgt} and {n_dft} in all)")
    parts += found.flags
    if not parts:
        return Vocabulary()
    return Vocabulary(
        tuple(found.others),
        f"the vocabulary of the draft '{path}' is nearly that of '{model_path}': {'; '.join(parts)}. Only tokens of "
        "both are drafted",
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


def offer(target: TargetInfo) -> str:
    """The boundaries that can be read of a target, as a sentence."""
    layers = [b for b in target.boundaries if b <= target.n_layer]
    after = f", and {target.n_layer + 1} is the state after the final norm" if layers != target.boundaries else ""
    return f"It has {target.n_layer} layers: {layers[0]} to {layers[-1]} can be read{after}."
