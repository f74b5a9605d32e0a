"""Flags of drafting: llama.cpp's speculative flags, and ours for trees."""

from __future__ import annotations

import argparse

from ...draft.kinds import KINDS
from ...ggml_types import CACHE_TYPES, WEIGHT_TYPES
from .flag import NO_OTHER_DRAFTS, flag, layers, one_of

TEXT_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
"""llama.cpp's names for drafts from text. Its kinds differ in how they search; ours is the same for all."""


_DRAFTERS = "; ".join(f"{', '.join(kind.spec_types)}: a {kind.title}" for kind in KINDS)
_DEFAULTS = ", ".join(f"{kind.spec_types[0]},ngram-simple with a {kind.title}" for kind in KINDS)


def _spec_types(text: str) -> tuple[str, ...]:
    kinds = tuple(kind for kind in text.split(",") if kind and kind != "none")
    known = (*dict.fromkeys(name for kind in KINDS for name in kind.spec_types), *TEXT_TYPES)
    for kind in kinds:
        if kind not in known:
            raise argparse.ArgumentTypeError(
                f"expected none or some of {', '.join(known)}, found {kind!r}: {NO_OTHER_DRAFTS}"
            )
    return kinds


HEAD = (
    flag(
        "-md --model-draft --spec-draft-model",
        "FNAME",
        "EAGLE-3 head, block drafter (dflash), Gemma 4 assistant, a small model of the same vocabulary, or a block for "
        "multi-token prediction: a GGUF file (default: none)",
        env="LLAMA_ARG_SPEC_DRAFT_MODEL",
        dest="model_draft",
    ),
    flag(
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl",
        "N",
        "0: head on the CPU, auto: where the target's output is",
        layers,
        default=-1,
        env="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
    ),
    flag(
        "-devd --device-draft --spec-draft-device",
        "DEV",
        "run the head on this ggml device, or on this one of the rpc servers; none = CPU",
        lambda text: "CPU" if text == "none" else text,
    ),
    flag("-td --threads-draft --spec-draft-threads", "N", "CPU threads of the head (default: as -t)", int),
    flag(
        "-cd --ctx-size-draft",
        "N",
        "tokens of a slot that a small model reads, which limits its memory; it drafts nothing after them (default: "
        "all)",
        int,
        is_ours=True,
    ),
    *(
        flag(
            f"-ct{what}d --cache-type-{what}-draft --spec-draft-type-{what}",
            "TYPE",
            f"type of the head's {what.upper()} cache (default: f16)",
            one_of(CACHE_TYPES),
            env=f"LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_{what.upper()}",
        )
        for what in "kv"
    ),
    flag(
        "--spec-draft-type",
        "TYPE",
        "convert the head's wider matrices to this while loading, f32: none (default: to q4_0, if that was measured "
        "to pay)",
        one_of(WEIGHT_TYPES),
        is_ours=True,
    ),
)

SPECULATIVE = (
    flag(
        "--spec-type",
        "TYPE,...",
        f"what drafts; {_DRAFTERS}: what -md names, or a block in the model's own file, or both (fixed settings are "
        "the first one's); ngram-simple, ngram-map-k, "
        "ngram-map-k4v: what followed before in the text; ngram-mod: in all texts of the process; none: nothing "
        f"(default: {_DEFAULTS}, else none)",
        _spec_types,
        lacks="ngram-cache; the kinds of ngram search alike",
        env="LLAMA_ARG_SPEC_TYPE",
        differs=f"{_DEFAULTS}, llama.cpp none: what there is is used",
    ),
    flag(
        "--draft-corpus",
        "PATH",
        "search for n-grams in this text file, or in the text files of this folder, too: a project's sources",
        is_ours=True,
    ),
    flag(
        "--spec-draft-n-max",
        "N",
        "tokens to draft (default: what pays best on this machine)",
        int,
        env="LLAMA_ARG_SPEC_DRAFT_N_MAX",
        differs="what was measured to pay best on this machine, llama.cpp 3",
    ),
    flag(
        "--spec-draft-n-min",
        "N",
        "drop shorter drafts (default: 0)",
        int,
        default=0,
        env="LLAMA_ARG_SPEC_DRAFT_N_MIN",
    ),
    flag(
        "--spec-draft-p-min --draft-p-min",
        "P",
        "end the draft before a token less likely than this (default: 0.0)",
        float,
        default=0.0,
        env="LLAMA_ARG_SPEC_DRAFT_P_MIN",
    ),
    flag("--tree-depth", "N", "draft trees of that many levels", int, is_ours=True),
    flag("--tree-topk", "N", "with that many successors after each node", int, is_ours=True),
    flag("--tree-tokens", "N", "and verify that many nodes", int, is_ours=True),
)
