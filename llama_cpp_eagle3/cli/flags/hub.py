"""Flags of the Hugging Face hub."""

from __future__ import annotations

from ...config.flag import flag

_NAME = "USER/REPO[:QUANT]"

HUB = (
    flag(
        "-hf -hfr --hf-repo",
        _NAME,
        "target of the Hugging Face hub (default type: Q4_K_M, else Q8_0, else the first)",
        env="LLAMA_ARG_HF_REPO",
    ),
    flag("-hff --hf-file", "FILE", "the target's file in it, instead of QUANT", env="LLAMA_ARG_HF_FILE"),
    flag(
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
        _NAME,
        "head: a GGUF, or a checkpoint that is converted and kept (default: the eagle3-*.gguf in the target's "
        "repository, if there is one)",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO",
    ),
    flag("-hft --hf-token", "TOKEN", "access token (default: HF_TOKEN)"),
    flag("--offline", help="take what is on this machine already (HF_HUB_OFFLINE)", env="LLAMA_ARG_OFFLINE"),
)
