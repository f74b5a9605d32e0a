"""Errors of `Eagle3Llama` name its arguments; those of a command name its flags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..draft.kinds import KINDS, NGRAM

_FLAGS = {
    "draft_model_path": "-md",
    "draft_sources": "--spec-type",
    "draft_n_max": "--spec-draft-n-max",
    "draft_n_min": "--spec-draft-n-min",
    "draft_p_min": "--spec-draft-p-min",
    "draft_tree_depth": "--tree-depth",
    "draft_tree_topk": "--tree-topk",
    "draft_tree_tokens": "--tree-tokens",
    "draft_n_gpu_layers": "-ngld",
    "draft_device": "-devd",
    "draft_n_threads": "-td",
    "draft_n_ctx": "-cd",
    "draft_type": "--spec-draft-type",
    "draft_type_k": "-ctkd",
    "draft_type_v": "-ctvd",
    "n_ctx": "-c",
    "n_batch": "-b",
    "n_ubatch": "-ub",
    "n_parallel": "-np",
    "n_threads": "-t",
    "n_threads_batch": "-tb",
    "n_gpu_layers": "-ngl",
    "kv_unified": "-kvu",
    "swa_full": "--swa-full",
    "flash_attn": "-fa",
    "type_k": "-ctk",
    "type_v": "-ctv",
    "devices": "-dev",
    "rpc_servers": "--rpc",
    "split_mode": "-sm",
    "tensor_split": "-ts",
    "main_gpu": "-mg",
    "override_tensor": "-ot",
    "kv_overrides": "--override-kv",
    "lora": "--lora",
    "cpu_kernels": "--cpu-kernels",
    "mmproj_path": "--mmproj",
    "rope_freq_base": "--rope-freq-base",
    "rope_freq_scale": "--rope-freq-scale",
}
_SWITCHES = {
    "kv_unified": {"True": "-kvu", "False": "-no-kvu"},
    "swa_full": {"True": "--swa-full", "False": "--no-swa-full"},
    "flash_attn": {"True": "-fa on", "False": "-fa off"},
}
_SOURCES = {kind.source: kind.spec_types[0] for kind in KINDS} | {NGRAM: "ngram-simple"}
# names that are words too are arguments before a colon or a value alone; a part of a path is none
_NAMES = "|".join(rf"(?P<{name}>{name}{'' if '_' in name else '(?=[:=])'})" for name in _FLAGS)
_ARGUMENT = re.compile(rf"(?<![\w./\\'-])(?:{_NAMES})(?![\w/\\-])(?:=(?P<value>-?\w+(?:\.\w+)*))?")
_SOURCE = re.compile(rf"'({'|'.join(_SOURCES)})'")


def in_flags(text: str) -> str:
    """An error's text with flags in place of arguments, and --spec-type's names in place of sources."""
    return _SOURCE.sub(lambda found: _SOURCES[found[1]], _ARGUMENT.sub(_flag, text))


def _flag(found: re.Match[str]) -> str:
    name = next(name for name in _FLAGS if found[name])
    value = found["value"]
    if value is None:
        return _FLAGS[name]
    return _SWITCHES.get(name, {}).get(value, f"{_FLAGS[name]} {value}")


@contextmanager
def errors_in_flags() -> Iterator[None]:
    """Have errors about arguments name flags."""
    try:
        yield
    except (RuntimeError, ValueError) as e:
        if len(e.args) == 1 and isinstance(e.args[0], str):
            e.args = (in_flags(e.args[0]),)
        raise
