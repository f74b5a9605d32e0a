"""Load a model by the flags, with a progress bar on a terminal."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from .._core import local_accelerators, local_devices, read_target
from ..errors import HubError
from ..llama import Eagle3Llama
from ..models import bundled_pair, smollm2
from .flag_names import errors_in_flags
from .flags.model import LOAD_MODES, NUMA, ROPE_SCALING, SPLIT_MODES
from .hub import fetch_files
from .log import log_to
from .sources import drafts_by_block, lacks_head, source_options

_N_CTX = 4096

# llama.cpp's patterns for -cmoe, -ncmoe and -ncffn
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."


def progress_bar(total: float, desc: str, unit: str = "") -> Any:
    """Return a tqdm bar on a terminal; None anywhere else, or without tqdm (extra `cli`)."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc=desc, unit=unit, leave=False, dynamic_ncols=True, delay=0.5)


def resolve_pair(args: argparse.Namespace, *, chats: bool = False) -> bool:
    """Set `model` and `model_draft`: files as named, from the hub, or a pair of ours; returns whether it is that.

    Args:
        args: the flags.
        chats: ours is SmolLM2, which is fetched once, and the bundled pair only where that cannot be.

    Raises:
        ValueError: flags contradict each other.
        HubError: see `fetch_pair`.
    """
    fetch_files(args)
    if args.model is not None:
        return False
    if args.model_draft is not None:
        raise ValueError("-md needs a target, named with -m: without one a model of ours is loaded, with its own head")
    target, head = _chat_pair() if chats else bundled_pair()
    args.model, args.model_draft = str(target), head and str(head)
    if head is None and args.spec_type is None:
        args.spec_type = ("ngram-simple",)
    return True


def _chat_pair() -> tuple[Path, Path | None]:
    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        return smollm2(log)
    except (HubError, OSError) as e:
        log(f"{e}\nthe bundled pair is used instead: it writes Python, and does not chat")
        return bundled_pair()


def list_devices() -> int:
    """Print the devices for -dev, as llama.cpp does; an exit code."""
    print("Available devices:")
    for device in local_devices():
        free, total = (n >> 20 for n in device.memory)
        print(f"  {device.name}: {device.description} ({total} MiB, {free} MiB free)")
    return 0


def load_model(args: argparse.Namespace, draft: str | None, **more: Any) -> Eagle3Llama:
    """Load target and head (None: the target alone); more: options of `Eagle3Llama` that have no flag."""
    if args.log_file is not None:
        log_to(args.log_file)
    if draft is None and (missing := lacks_head(args)):
        print(missing, file=sys.stderr, flush=True)
    draft_options = {
        "draft_model_path": draft,
        "draft_n_max": args.spec_draft_n_max,
        "draft_n_min": args.spec_draft_n_min,
        "draft_p_min": args.spec_draft_p_min,
        "draft_tree_depth": args.tree_depth,
        "draft_tree_topk": args.tree_topk,
        "draft_tree_tokens": args.tree_tokens,
        "draft_n_gpu_layers": args.gpu_layers_draft,
        "draft_device": args.device_draft,
        "draft_n_threads": args.threads_draft,
        "draft_n_ctx": args.ctx_size_draft,
        "draft_type": args.spec_draft_type,
        "draft_type_k": args.cache_type_k_draft,
        "draft_type_v": args.cache_type_v_draft,
    }
    # on a CPU it brings nothing, and logits would differ from those of plain llama_cpp in their third digit
    is_remote = bool((local_accelerators() and args.device != ["none"]) or args.rpc)
    flash_attn = is_remote if args.flash_attn == "auto" else args.flash_attn == "on"
    # the V cache can be quantized under flash attention only
    flash_attn = flash_attn or (args.flash_attn == "auto" and args.cache_type_v not in (None, "f32", "f16", "bf16"))
    bar = progress_bar(1.0, "loading")
    options = {
        **_placement(args),
        **_context(args),
        "seed": (-1 if args.seed is None else args.seed) & 0xFFFFFFFF,
        "flash_attn": bool(flash_attn),
        "kv_overrides": args.override_kv,
        "lora": [*args.lora, *args.lora_scaled],
        "no_perf": True,
        "mmproj_path": getattr(args, "mmproj", None),
        "verbose": args.verbose,
        **(
            draft_options
            if draft is not None or drafts_by_block(args) or source_options(args).get("draft_sources")
            else {}
        ),
        **source_options(args),
        **more,
    }
    try:
        progress = None if bar is None else lambda share: bar.update(share - bar.n)
        with errors_in_flags():
            return Eagle3Llama(args.model, progress=progress, **options)
    finally:
        if bar is not None:
            bar.close()


def calibrate(llm: Eagle3Llama) -> None:
    """Measure what passes cost, if drafts are planned by that; a message comes first, since it takes a while."""
    if llm.draft == "auto":
        llm.calibrate(log=lambda text: print(text, file=sys.stderr, flush=True))


def _placement(args: argparse.Namespace) -> dict[str, Any]:
    """Where the target's weights go, and how they get there."""
    load_mode = args.load_mode
    if args.no_mmap or args.mlock:  # flags of older versions of llama.cpp
        load_mode = {(True, False): "none", (False, True): "mmap+mlock", (True, True): "mlock"}[
            args.no_mmap, args.mlock
        ]
    params = {
        "load_mode": LOAD_MODES.index(load_mode) - 1,
        "lazy_mode": {"off": 0, "auto": 1, "on": 2}[args.lazy_mode],
        "use_extra_bufts": args.repack,
        "no_host": args.no_host,
        "check_tensors": args.check_tensors,
    }
    return {
        "n_gpu_layers": args.gpu_layers,
        "devices": args.device,
        "rpc_servers": args.rpc,
        "override_tensor": _overrides(args),
        "split_mode": SPLIT_MODES.index(args.split_mode),
        "tensor_split": args.tensor_split,
        "main_gpu": args.main_gpu,
        "numa": 0 if args.numa is None else NUMA.index(args.numa) + 1,
        "offload_kqv": args.kv_offload,
        "op_offload": args.op_offload,
        "model_params": params,
        "cpu_kernels": args.cpu_kernels,
        "n_threads": args.threads,
        "n_threads_batch": args.threads_batch or args.threads,
    }


def _context(args: argparse.Namespace) -> dict[str, Any]:
    rope_freq_scale = args.rope_freq_scale
    if args.rope_scale is not None:
        if not args.rope_scale > 0:
            raise ValueError(f"expected --rope-scale > 0, found {args.rope_scale:g}")
        rope_freq_scale = 1 / args.rope_scale
    return {
        "n_ctx": _ctx_size(args),
        "n_batch": args.batch_size,
        "n_ubatch": args.ubatch_size,
        "swa_full": args.swa_full,
        "type_k": args.cache_type_k,
        "type_v": args.cache_type_v,
        "rope_scaling_type": -1 if args.rope_scaling is None else ROPE_SCALING.index(args.rope_scaling),
        "rope_freq_base": args.rope_freq_base,
        "rope_freq_scale": rope_freq_scale,
        "yarn_orig_ctx": args.yarn_orig_ctx,
        "yarn_ext_factor": args.yarn_ext_factor,
        "yarn_attn_factor": args.yarn_attn_factor,
        "yarn_beta_slow": args.yarn_beta_slow,
        "yarn_beta_fast": args.yarn_beta_fast,
    }


def _overrides(args: argparse.Namespace) -> list[tuple[str, str]]:
    """(pattern, buffer type) of tensors that do not go where their layer goes."""
    for name in ("n_cpu_moe", "n_cpu_ffn"):
        if getattr(args, name) < 0:
            raise ValueError(f"expected --{name.replace('_', '-')} >= 0, found {getattr(args, name)}")
    found = list(args.override_tensor)
    for pattern, _ in found:
        try:
            re.compile(pattern)
        except re.error as e:
            raise ValueError(f"-ot: {pattern!r} is no regular expression: {e}") from None
    if args.cpu_moe:
        found.append((_EXPERTS, "CPU"))
    for n, pattern in ((args.n_cpu_moe, _EXPERTS), (args.n_cpu_ffn, _DENSE)):
        found += [(rf"blk\.{i}{pattern}", "CPU") for i in range(n)]
    return found


def _ctx_size(args: argparse.Namespace) -> int:
    """-c, or a default that any machine can hold and the target was trained for."""
    if args.ctx_size is not None:
        return int(args.ctx_size)
    return min(read_target(args.model).n_ctx_train or _N_CTX, _N_CTX)
