"""Files from the Hugging Face hub."""

from __future__ import annotations

from .flag import refuse

_NOT_YET = "download the file, and give its path with -m or -md"

HUB = (
    refuse("-hf -hfr --hf-repo", _NOT_YET, env="LLAMA_ARG_HF_REPO", metavar="USER/REPO[:QUANT]"),
    refuse("-hff --hf-file", _NOT_YET, env="LLAMA_ARG_HF_FILE", metavar="FILE"),
    refuse("-hft --hf-token", _NOT_YET, metavar="TOKEN"),
    refuse(
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf", _NOT_YET, env="LLAMA_ARG_SPEC_DRAFT_HF_REPO", metavar="USER/REPO"
    ),
    refuse("--offline", _NOT_YET, env="LLAMA_ARG_OFFLINE"),
)
