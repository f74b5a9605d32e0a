"""Load a model as the flags say, with a progress bar on a terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .._core import local_accelerators, read_target
from ..llama import Eagle3Llama
from ..models import bundled_pair

_N_CTX = 4096


def progress_bar(total: float, desc: str, unit: str = "") -> Any:
    """Return a tqdm bar on a terminal; None anywhere else, or without tqdm (extra `cli`)."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc=desc, unit=unit, leave=False, dynamic_ncols=True, delay=0.5)


def fill_in_bundled_pair(args: argparse.Namespace) -> bool:
    """Take the bundled pair if no target was named; returns whether it was."""
    if args.model is not None:
        return False
    if args.model_draft is not None:
        raise ValueError("-md needs a target: the bundled pair has a head of its own")
    args.model, args.model_draft = (str(path) for path in bundled_pair())
    return True


def load_model(args: argparse.Namespace, draft: str | None, **more: Any) -> Eagle3Llama:
    """Load target and head (None: the target alone); more: options of `Eagle3Llama` that have no flag."""
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
        "draft_type": args.spec_draft_type,
        "draft_type_k": args.cache_type_k_draft,
        "draft_type_v": args.cache_type_v_draft,
    }
    # on a CPU it brings nothing, and logits would differ from those of plain llama_cpp in their third digit
    is_remote = bool(local_accelerators() or args.rpc)
    flash_attn = is_remote if args.flash_attn == "auto" else args.flash_attn == "on"
    # the V cache can be quantized under flash attention only
    flash_attn = flash_attn or (args.flash_attn == "auto" and args.cache_type_v not in (None, "f32", "f16", "bf16"))
    bar = progress_bar(1.0, "loading")
    options = {
        "n_gpu_layers": args.gpu_layers,
        "rpc_servers": args.rpc,
        "use_mmap": not args.no_mmap,
        "use_mlock": args.mlock,
        "seed": (-1 if args.seed is None else args.seed) & 0xFFFFFFFF,
        "n_ctx": _ctx_size(args),
        "n_batch": args.batch_size,
        "n_ubatch": args.ubatch_size,
        "n_threads": args.threads,
        "n_threads_batch": args.threads_batch or args.threads,
        "flash_attn": bool(flash_attn),
        "type_k": args.cache_type_k,
        "type_v": args.cache_type_v,
        "lora_path": args.lora,
        "mmproj_path": getattr(args, "mmproj", None),
        "verbose": args.verbose,
        **(draft_options if draft is not None else {}),
        **more,
    }
    try:
        progress = None if bar is None else lambda share: bar.update(share - bar.n)
        return Eagle3Llama(args.model, progress=progress, **options)
    finally:
        if bar is not None:
            bar.close()


def _ctx_size(args: argparse.Namespace) -> int:
    """-c, or a default that any machine can hold and the target was trained for."""
    if args.ctx_size is not None:
        return int(args.ctx_size)
    return min(read_target(args.model).n_ctx_train or _N_CTX, _N_CTX)
