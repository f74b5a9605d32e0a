"""The costs of a loaded pair, and what they depend on."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp

from .._core import local_accelerators
from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..pair import fingerprint

if TYPE_CHECKING:
    from ..context import DraftedContext

GGML_TYPE_NARROW = llama_cpp.GGML_TYPE_Q4_0
"""The head is tried in this type too: the CPU has its fastest kernels for it, on other devices it reads the least."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured microseconds."""

    target: dict[int, float]
    """Of a pass of the target over n rows, logits and hidden states included."""
    draft_begin: dict[int, float]
    """Of the draft's first graph over n waiting rows. Empty without a head, as is `draft_step`."""
    draft_step: dict[int, float]
    """Of a later graph over n nodes."""
    draft_type: int | None = None
    """The ggml type that the head's matrices were converted to; None = as in the file."""


def costs_key(llm: DraftedContext) -> dict[str, Any]:
    """Everything that the costs of a loaded pair depend on, ready for JSON."""
    params = llm.context_params
    draft = llm.draft_model_path
    return {
        "target": fingerprint(llm.model_path),
        "draft": None if draft is None else fingerprint(draft),
        "lora": llm.lora_path and fingerprint(llm.lora_path),
        "boundaries": None if llm.tap is None else llm.tap.boundaries,
        "tap": None if llm.tap is None else llm.tap.kind,
        "n_gpu_layers": llm.model_params.n_gpu_layers,
        "tensor_split": llm.tensor_split,
        "rpc_servers": llm._rpc_servers,
        "draft_device": None if llm.drafter is None else llm.drafter.device,
        "machine": _machine(),
        "n_threads": [params.n_threads, params.n_threads_batch],
        "n_ubatch": params.n_ubatch,
        "flash_attn": int(params.flash_attn_type),
        "offload_kqv": bool(params.offload_kqv),
        "draft_type": llm._draft_options.type,
        "types": [params.type_k, params.type_v, llm._draft_options.type_k, llm._draft_options.type_v],
        "versions": [__version__, LLAMA_CPP_PYTHON_VERSION],
    }


@cache
def _machine() -> list[str | int]:
    """Processor, its features as ggml uses them, and accelerators."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    name = found[1].strip() if found else platform.processor()
    devices = [f"{device.name}: {device.description}" for device in local_accelerators()]
    return [platform.machine(), name, os.cpu_count() or 0, llama_cpp.llama_print_system_info().decode(), *devices]
