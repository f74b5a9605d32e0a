"""Flags of all commands that load a model: llama.cpp's common flags, and those of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from ...config.eagle3_options import OPTIONS
from ...config.flag import NO_FIT, TEXT_LOG, flag, one_of, only, scaled
from ...config.llama_options import CONTEXT as CONTEXT_TITLE
from ...config.llama_options import DEVICES, MODELS
from ...config.llama_options import LOG as LOG_TITLE
from ...config.option import flags_of

LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
LAZY_MODES = ("auto", "on", "off")

FILES = (
    flag(
        "-m --model FNAME LLAMA_ARG_MODEL",
        "target: a file or name (default: SmolLM2-135M)",
    ),
    *flags_of(OPTIONS, MODELS),
    flag("--lora-scaled FNAME:SCALE,...", "LoRA adapters with a scale", scaled, default=()),
    flag("--check-tensors", "look for invalid values in the weights"),
)

HUB = (
    flag(
        "-hf -hfr --hf-repo USER/REPO[:QUANT] LLAMA_ARG_HF_REPO",
        "target of the Hugging Face hub (default type: Q4_K_M, else Q8_0, else the first)",
    ),
    flag("-hff --hf-file FILE LLAMA_ARG_HF_FILE", "the target's file in it, instead of QUANT"),
    flag(
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf USER/REPO[:QUANT] LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        "head: a GGUF, or a checkpoint that is converted and kept; auto: the small model of the target's family "
        "(default: the eagle3-*.gguf in the target's repository, if there is one)",
    ),
    flag("-hft --hf-token TOKEN", "access token (default: HF_TOKEN)"),
    flag("--offline LLAMA_ARG_OFFLINE", "take what is on this machine already (HF_HUB_OFFLINE)"),
)

CONTEXT = (
    *flags_of(OPTIONS, CONTEXT_TITLE),
    flag("--keep 0", "0 alone: a context is never shifted", only("0", "a context is never shifted"), default="0"),
    flag("--rope-scale N LLAMA_ARG_ROPE_SCALE", "expand the context by this factor", float),
)

MACHINE = (
    *flags_of(OPTIONS, DEVICES),
    flag("--list-devices", "print the devices and exit"),
    flag("-cmoe --cpu-moe LLAMA_ARG_CPU_MOE", "keep all experts on the CPU"),
    flag(
        "-ncmoe --n-cpu-moe N LLAMA_ARG_N_CPU_MOE", "keep the experts of the first N layers on the CPU", int, default=0
    ),
    flag(
        "-ncffn --n-cpu-ffn N LLAMA_ARG_N_CPU_FFN",
        "keep the dense FFN weights of the first N layers on the CPU",
        int,
        default=0,
    ),
    flag("-fit --fit off LLAMA_ARG_FIT", f"off alone: {NO_FIT}", only("off", NO_FIT), default="off", differs=NO_FIT),
    flag(
        "--repack LLAMA_ARG_REPACK | -nr --no-repack",
        "lay weights out anew where that is faster (default: on)",
        default=True,
    ),
    flag("--no-host LLAMA_ARG_NO_HOST", "bypass the host buffers"),
    flag(
        "-lm --load-mode MODE LLAMA_ARG_LOAD_MODE",
        f"{', '.join(LOAD_MODES)} (default: auto)",
        one_of(LOAD_MODES),
        default="auto",
    ),
    flag(
        "-lzm --lazy-mode MODE LLAMA_ARG_LAZY_MODE",
        "read rows of some large tensors on demand: auto, on, off (default: auto)",
        one_of(LAZY_MODES),
        default="auto",
    ),
    flag("--no-mmap", "read the target instead of mapping it", is_ours=True),
    flag("--mlock", "keep the target in RAM", is_ours=True),
)

LOG = (
    *flags_of(OPTIONS, LOG_TITLE),
    flag("--log-file FNAME LLAMA_ARG_LOG_FILE", "write the log to a file too", Path),
    flag("--log-colors off LLAMA_ARG_LOG_COLORS", f"off alone: {TEXT_LOG}", only("off", TEXT_LOG), default="off"),
)
