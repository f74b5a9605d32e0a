"""All flags of llama.cpp that the commands know, supported or refused. docs/flags.md is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...config.drafting_options import DRAFTS
from ...config.eagle3_options import OPTIONS
from ...config.flag import Flag
from ...config.option import flags_of
from .llama_server import SERVER
from .load import CONTEXT, FILES, HUB, LOG, MACHINE
from .prompt import CONVERSATION, PROMPT
from .refused import REFUSED, REFUSED_BY_CHAT, REFUSED_BY_SERVER
from .samplers import SAMPLING
from .template import TEMPLATE

__all__ = [
    "COMMON", "CONVERSATION", "HUB", "LOAD", "LOG", "PROMPT", "REFUSED", "REFUSED_BY_CHAT", "REFUSED_BY_SERVER",
    "SAMPLING", "SERVER", "TEMPLATE", "VARIABLES", "Flag", "changed", "pick",
]  # fmt: skip

LOAD = {
    "models": (*FILES, *HUB),
    "context": CONTEXT,
    "devices and memory": MACHINE,
    DRAFTS: flags_of(OPTIONS, DRAFTS),
    "refused": REFUSED,
}
"""Title -> flags of all commands that load a pair."""

COMMON = frozenset(
    (
        *("model", "draft_model_path", "hf_repo", "hf_repo_draft", "mmproj_path", "n_ctx", "n_threads", "n_gpu_layers"),
        *("spec_type", "draft_n_max", "prompt", "file", "media", "predict", "color", "json", "baseline"),
        *("system_prompt", "single_turn", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed"),
        *("host", "port", "n_parallel", "parallel", "alias", "api_key", "metrics", "embeddings", "verbose"),
    )
)
"""Attributes of the flags that `--help` shows; `--help-all` shows all."""

VARIABLES = frozenset(
    flag.env
    for flags in (
        *(*LOAD.values(), LOG, PROMPT, CONVERSATION, SAMPLING, TEMPLATE, SERVER),
        *(REFUSED_BY_SERVER, REFUSED_BY_CHAT),
    )
    for flag in flags
)
"""The variables of the environment that stand for flags."""


def changed(flags: Iterable[Flag], dest: str, **fields: Any) -> tuple[Flag, ...]:
    """The flags, with other fields for the one of this attribute."""
    return tuple(replace(flag, **fields) if flag.attribute == dest else flag for flag in flags)


def pick(*attributes: str) -> tuple[Flag, ...]:
    """Those of the flags for loading a pair that set these attributes, in this order."""
    known = {flag.attribute: flag for flags in LOAD.values() for flag in flags if not flag.why_not}
    return tuple(known[name] for name in attributes)
