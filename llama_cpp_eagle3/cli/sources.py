"""--spec-type: where drafts come from."""

from __future__ import annotations

import argparse
from typing import Any

from ..config.drafting_options import TEXT_TYPES
from ..draft.kinds import GRAMMAR, KINDS, NGRAM, kind_of
from ..draft.kinds.eagle3 import Eagle3Head
from ..draft.kinds.mtp import MtpBlock, has_block

_MODELS = {name: kind.source for kind in reversed(KINDS) for name in kind.spec_types}
"""llama.cpp's names for drafters -> ours; if llama.cpp has one name for two, the first one in the table."""


def uses_head(args: argparse.Namespace) -> bool:
    """Whether the file that -md names, if it names one, drafts."""
    types = getattr(args, "spec_type", None)  # not every command has it
    return types is None or not _MODELS.keys().isdisjoint(types)


def head_of(args: argparse.Namespace) -> str | None:
    """The file of a head, a block drafter or a small model that drafts."""
    return args.draft_model_path if uses_head(args) else None


def drafts_by_block(args: argparse.Namespace) -> bool:
    """Whether the target's own block for multi-token prediction drafts."""
    types = getattr(args, "spec_type", None)
    if types is None:
        return args.draft_model_path is None and has_block(args.model)
    return not set(MtpBlock.spec_types).isdisjoint(types)


def draft_paths(args: argparse.Namespace) -> list[str | None]:
    """The drafters' files: the one that -md names, and None for the target's own block; empty without -md."""
    head = head_of(args)
    if head is None:
        return []
    return [head, None] if drafts_by_block(args) and kind_of(head) is not MtpBlock else [head]


def lacks_weights(args: argparse.Namespace) -> bool:
    """Whether n-grams alone draft, if anything does."""
    return head_of(args) is None and not drafts_by_block(args)


def lacks_head(args: argparse.Namespace) -> str:
    """The message if --spec-type names a head but -md is missing; else empty."""
    types = getattr(args, "spec_type", None) or ()
    head = next((name for name in types if name in Eagle3Head.spec_types), None)
    if head is None or args.draft_model_path is not None:
        return ""
    others = [name for name in types if name not in Eagle3Head.spec_types]
    rest = f"{', '.join(others)} alone may draft" if others else "nothing drafts"
    return f"--spec-type names {head}, but no head is given (-md): {rest}"


def source_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Eagle3Llama` that --spec-type sets; without it what there is drafts."""
    types = args.spec_type
    corpus = {} if getattr(args, "draft_corpus", None) is None else {"draft_corpus": args.draft_corpus}
    if types is None:
        return corpus
    text = [name for name in types if name in TEXT_TYPES]
    names = dict(_MODELS)
    if args.draft_model_path is not None:  # the file decides between kinds with one name in llama.cpp
        kind = kind_of(args.draft_model_path)
        names |= dict.fromkeys(kind.spec_types, kind.source)
    models = dict.fromkeys(names[name] for name in types if name in names)
    sources = [*models, *([NGRAM] if text else []), *([GRAMMAR] if types else [])]
    mode = {"draft": "auto"} if text else {}
    return {"draft_sources": sources, "draft_ngram_store": "ngram-mod" in text, **corpus, **mode}
