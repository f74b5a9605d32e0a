"""Load a model by the flags, with a progress bar on a terminal."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from .._core import local_accelerators, local_devices, read_target
from ..config.eagle3_options import OPTIONS
from ..errors import HubError
from ..llama import Eagle3Llama
from ..log import log_to, progress_bar
from ..models import bundled_pair, smollm2
from .fetch_files import fetch_files, say
from .flag_names import errors_in_flags
from .flags.load import LOAD_MODES
from .sources import lacks_head, source_options

_N_CTX = 4096

# llama.cpp's patterns for -cmoe, -ncmoe and -ncffn
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."


BAR: dict[str, Any] = {"leave": False, "dynamic_ncols": True, "delay": 0.5}
"""Options of the commands' progress bars."""


def resolve_pair(args: argparse.Namespace) -> bool:
    """Set `model` and `draft_model_path`: named files, files of the hub, or ours; returns whether they are ours.

    Ours is SmolLM2-135M-Instruct, which is fetched once; if it cannot be fetched, the bundled pair.

    Raises:
        ValueError: flags contradict each other.
        HubError: see `fetch_pair`.
    """
    fetch_files(args)
    if args.model is not None:
        return False
    if args.draft_model_path:
        raise ValueError("-md needs a target, named with -m: without one a model of ours is loaded, with its own head")
    target, head = _our_pair()
    args.model, args.draft_model_path = str(target), None if head is None else [str(head)]
    return True


def _our_pair() -> tuple[Path, Path | None]:
    try:
        return smollm2(say)
    except (HubError, OSError) as e:
        say(f"{e}\nthe bundled pair is used instead: it writes Python, and does not chat")
        return bundled_pair()


def list_devices() -> int:
    """Print the devices for -dev, as llama.cpp does; an exit code."""
    print("Available devices:")
    for device in local_devices():
        free, total = (n >> 20 for n in device.memory)
        print(f"  {device.name}: {device.description} ({total} MiB, {free} MiB free)")
    return 0


def load_model(args: argparse.Namespace, drafts: Sequence[str], **more: Any) -> Eagle3Llama:
    """Load a target and drafters' files. more: options that no flag of the command sets."""
    if args.log_file is not None:
        log_to(args.log_file)
    missing = "" if drafts else lacks_head(args)
    if missing:
        say(missing)
    given = _given(args)
    if () in (args.spec_type, more.get("draft_sources")):  # nothing drafts
        given = {name: value for name, value in given.items() if not name.startswith("draft_")}
    flash_attn: bool | None = args.flash_attn == "on"
    if args.flash_attn == "auto":
        is_remote = bool((local_accelerators() and args.devices != ["none"]) or args.rpc_servers)
        # without flash attention each row reads the cells of all slots
        is_shared = bool(more.get("kv_unified")) and more.get("n_parallel", 1) > 1
        flash_attn = True if is_remote or is_shared else None
    options = {
        **given,
        "draft_model_path": drafts,
        "model_params": _model_params(args),
        "override_tensor": _overrides(args),
        "rope_freq_scale": _rope_freq_scale(args),
        "n_ctx": _ctx_size(args),
        "flash_attn": flash_attn,
        "seed": (-1 if args.seed is None else args.seed) & 0xFFFFFFFF,
        "lora": [*args.lora, *args.lora_scaled],
        "no_perf": True,
        **source_options(args),
        **more,
    }
    with closing(progress_bar(1.0, "", desc="loading", **BAR)) as bar, errors_in_flags():
        return Eagle3Llama(args.model, progress=lambda share: bar.update(share - bar.n), **options)


def calibrate(llm: Eagle3Llama) -> None:
    """Measure what passes cost, if drafts are planned by that; a message comes first, since it takes a while."""
    if llm.draft == "auto":
        llm.calibrate(log=say)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The options that have the names and values of this command's flags."""
    flags = {name: option.flag for name, option in OPTIONS.items() if option.flag is not None}
    return {name: getattr(args, name) for name, flag in flags.items() if not flag.dest and hasattr(args, name)}


def _model_params(args: argparse.Namespace) -> dict[str, Any]:
    load_mode = args.load_mode
    if args.no_mmap or args.mlock:  # flags of older versions of llama.cpp
        load_mode = {(True, False): "none", (False, True): "mmap+mlock", (True, True): "mlock"}[
            args.no_mmap, args.mlock
        ]
    return {
        "load_mode": LOAD_MODES.index(load_mode) - 1,
        "lazy_mode": {"off": 0, "auto": 1, "on": 2}[args.lazy_mode],
        "use_extra_bufts": args.repack,
        "no_host": args.no_host,
        "check_tensors": args.check_tensors,
    }


def _rope_freq_scale(args: argparse.Namespace) -> float:
    if args.rope_scale is None:
        return float(args.rope_freq_scale)
    if not args.rope_scale > 0:
        raise ValueError(f"expected --rope-scale > 0, found {args.rope_scale:g}")
    return float(1 / args.rope_scale)


def _overrides(args: argparse.Namespace) -> list[tuple[str, str]]:
    """(pattern, buffer type) of tensors that are not placed with their layer."""
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
    if args.n_ctx is not None:
        return int(args.n_ctx)
    return min(read_target(args.model).n_ctx_train or _N_CTX, _N_CTX)
