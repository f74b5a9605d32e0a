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
    """Whether the files that -md names, if it names any, draft."""
    types = getattr(args, "spec_type", None)  # not every command has it
    return types is None or not _MODELS.keys().isdisjoint(types)


def heads_of(args: argparse.Namespace) -> list[str]:
    """The files of heads, block drafters and small models that draft."""
    return (args.draft_model_path or []) if uses_head(args) else []


def drafts_by_block(args: argparse.Namespace) -> bool:
    """Whether the target's own block for multi-token prediction drafts."""
    types = getattr(args, "spec_type", None)
    if types is None:
        return not args.draft_model_path and has_block(args.model)
    return not set(MtpBlock.spec_types).isdisjoint(types)


def draft_paths(args: argparse.Namespace) -> list[str | None]:
    """The drafters' files: those that -md names, and None for the target's own block; empty without -md."""
    heads = heads_of(args)
    has_own = heads and drafts_by_block(args) and MtpBlock not in map(kind_of, heads)
    return [*heads, None] if has_own else [*heads]


def lacks_weights(args: argparse.Namespace) -> bool:
    """Whether n-grams alone draft, if anything does."""
    return not heads_of(args) and not drafts_by_block(args)


def lacks_head(args: argparse.Namespace) -> str:
    """The message if --spec-type names a head but -md is missing; else empty."""
    types = getattr(args, "spec_type", None) or ()
    head = next((name for name in types if name in Eagle3Head.spec_types), None)
    if head is None or args.draft_model_path:
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
    for kind in map(kind_of, args.draft_model_path or ()):  # files decide between kinds with one name in llama.cpp
        names |= dict.fromkeys(kind.spec_types, kind.source)
    models = dict.fromkeys(names[name] for name in types if name in names)
    sources = [*models, *([NGRAM] if text else []), *([GRAMMAR] if types else [])]
    mode = {"draft": "auto"} if text else {}
    return {"draft_sources": sources, "draft_ngram_store": "ngram-mod" in text, **corpus, **mode}
