"""Flags of the Hugging Face hub."""

from __future__ import annotations

from ...config.flag import flag

HUB = (
    flag(
        "-hf -hfr --hf-repo USER/REPO[:QUANT] LLAMA_ARG_HF_REPO",
        "target of the Hugging Face hub (default type: Q4_K_M, else Q8_0, else the first)",
    ),
    flag("-hff --hf-file FILE LLAMA_ARG_HF_FILE", "the target's file in it, instead of QUANT"),
    flag(
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf USER/REPO[:QUANT] LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        "head: a GGUF, or a checkpoint that is converted and kept (default: the eagle3-*.gguf in the target's "
        "repository, if there is one)",
    ),
    flag("-hft --hf-token TOKEN", "access token (default: HF_TOKEN)"),
    flag("--offline LLAMA_ARG_OFFLINE", "take what is on this machine already (HF_HUB_OFFLINE)"),
)
