"""--spec-type: where drafts come from."""

from __future__ import annotations

import argparse
from typing import Any

from ..mtp import has_block
from .flags.draft import TEXT_TYPES


def uses_head(args: argparse.Namespace) -> bool:
    """Whether what -md names is to draft, if it names something."""
    types = getattr(args, "spec_type", None)  # not every command has it
    return types is None or bool({"draft-eagle3", "draft-simple", "draft-mtp"} & set(types))


def head_of(args: argparse.Namespace) -> str | None:
    """The file of a head or a small model, if it is to draft."""
    return args.model_draft if uses_head(args) else None


def drafts_by_block(args: argparse.Namespace) -> bool:
    """Whether the target's own block for multi-token prediction is to draft."""
    types = getattr(args, "spec_type", None)
    if types is None:
        return args.model_draft is None and has_block(args.model)
    return "draft-mtp" in types


def source_options(args: argparse.Namespace) -> dict[str, Any]:
    """What --spec-type asks for, as arguments of `Eagle3Llama`; none where it says nothing of texts."""
    types = args.spec_type
    if types is None:
        return {}
    text = [name for name in types if name in TEXT_TYPES]
    models = {"draft-eagle3": "eagle3", "draft-mtp": "mtp", "draft-simple": "simple"}
    sources = [*(models[name] for name in models if name in types), *(["ngram"] if text else [])]
    mode = {"draft": "auto"} if text else {}
    return {"draft_sources": sources, "draft_ngram_store": "ngram-mod" in text, **mode}
