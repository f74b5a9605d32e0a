"""Flags of loading: llama.cpp's common flags."""

from __future__ import annotations

from pathlib import Path

from ...cpu_kernels import MODES as KERNEL_MODES
from ...ggml_types import CACHE_TYPES
from ...options import default_threads
from .flag import (
    NO_FIT,
    TEXT_LOG,
    flag,
    items,
    key_values,
    layers,
    numbers,
    on_off_auto,
    one_of,
    only,
    overrides,
    scaled,
)

LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
LAZY_MODES = ("auto", "on", "off")
NUMA = ("distribute", "isolate", "numactl")
ROPE_SCALING = ("none", "linear", "yarn")
SPLIT_MODES = ("none", "layer", "row")


def _threads(text: str) -> int:
    n = int(text)
    return n if n > 0 else default_threads()


MMPROJ = flag("-mm --mmproj", "FILE", "multimodal projector, a GGUF file: images or sounds", env="LLAMA_ARG_MMPROJ")

FILES = (
    flag(
        "-m --model",
        "FNAME",
        "target: a GGUF file, or a name as qwen2.5-coder-1.5b (default: a small one)",
        env="LLAMA_ARG_MODEL",
    ),
    flag("--lora", "FNAME,...", "LoRA adapters for the target", items, default=(), dest="lora"),
    flag("--lora-scaled", "FNAME:SCALE,...", "LoRA adapters with a scale", scaled, default=(), dest="lora_scaled"),
    flag("--override-kv", "KEY=TYPE:VALUE,...", "override the header: int, float, bool, str", key_values, default=None),
    flag("--check-tensors", help="look for invalid values in the weights"),
)

CONTEXT = (
    flag(
        "-c --ctx-size",
        "N",
        "context size (default: the model's, at most 4096; 0 = the model's)",
        int,
        env="LLAMA_ARG_CTX_SIZE",
        differs="at most 4096, llama.cpp the model's: options are not reduced to fit the memory",
    ),
    flag("-b --batch-size", "N", "logical batch size (default: 2048)", int, default=2048, env="LLAMA_ARG_BATCH"),
    flag("-ub --ubatch-size", "N", "physical batch size (default: 512)", int, default=512, env="LLAMA_ARG_UBATCH"),
    flag("--keep", "0", "0 alone: a context is never shifted", only("0", "a context is never shifted"), default="0"),
    flag(
        "--swa-full",
        no="--no-swa-full",
        help="keep all of a sliding window's cache; without it there are no trees",
        default=True,
        env="LLAMA_ARG_SWA_FULL",
        differs="on, llama.cpp off: prefixes can be reused, and trees drafted. `--no-swa-full` is ours",
    ),
    flag(
        "-fa --flash-attn",
        "on|off|auto",
        "flash attention (default: auto)",
        on_off_auto,
        default="auto",
        bare="on",
        env="LLAMA_ARG_FLASH_ATTN",
        differs="auto is on where there may be an accelerator, or the V cache is quantized; llama.cpp tries its graph",
    ),
    flag(
        "--rope-scaling",
        "{none,linear,yarn}",
        "(default: the model's)",
        one_of(ROPE_SCALING),
        env="LLAMA_ARG_ROPE_SCALING_TYPE",
    ),
    flag("--rope-scale", "N", "expand the context by this factor", float, env="LLAMA_ARG_ROPE_SCALE"),
    flag("--rope-freq-base", "N", "(default: the model's)", float, default=0.0, env="LLAMA_ARG_ROPE_FREQ_BASE"),
    flag("--rope-freq-scale", "N", "expand the context by 1/N", float, default=0.0, env="LLAMA_ARG_ROPE_FREQ_SCALE"),
    flag("--yarn-orig-ctx", "N", "(default: 0, the model's)", int, default=0, env="LLAMA_ARG_YARN_ORIG_CTX"),
    flag("--yarn-ext-factor", "N", "(default: the model's)", float, default=-1.0, env="LLAMA_ARG_YARN_EXT_FACTOR"),
    flag("--yarn-attn-factor", "N", "(default: the model's)", float, default=-1.0, env="LLAMA_ARG_YARN_ATTN_FACTOR"),
    flag("--yarn-beta-slow", "N", "(default: the model's)", float, default=-1.0, env="LLAMA_ARG_YARN_BETA_SLOW"),
    flag("--yarn-beta-fast", "N", "(default: the model's)", float, default=-1.0, env="LLAMA_ARG_YARN_BETA_FAST"),
    flag(
        "-kvo --kv-offload",
        no="-nkvo --no-kv-offload",
        help="keep the cache where the layers are (default: on)",
        default=True,
        env="LLAMA_ARG_KV_OFFLOAD",
    ),
    flag(
        "-ctk --cache-type-k",
        "TYPE",
        f"type of the target's K cache: {', '.join(CACHE_TYPES)} (default: f16)",
        one_of(CACHE_TYPES),
        env="LLAMA_ARG_CACHE_TYPE_K",
    ),
    flag(
        "-ctv --cache-type-v",
        "TYPE",
        "type of the target's V cache (default: f16)",
        one_of(CACHE_TYPES),
        env="LLAMA_ARG_CACHE_TYPE_V",
    ),
)

MACHINE = (
    flag(
        "-t --threads",
        "N",
        f"CPU threads (default: {default_threads()}, this machine's cores)",
        _threads,
        default=default_threads(),
        env="LLAMA_ARG_THREADS",
    ),
    flag("-tb --threads-batch", "N", "CPU threads for batches (default: as -t)", _threads),
    flag(
        "-ngl --gpu-layers --n-gpu-layers",
        "N",
        "layers on accelerators: a number, auto or all (default: all)",
        layers,
        default=-1,
        env="LLAMA_ARG_N_GPU_LAYERS",
        differs="auto is all: options are not reduced to fit the memory",
    ),
    flag("-dev --device", "DEV,...", "devices for the target, none = CPU", items, env="LLAMA_ARG_DEVICE"),
    flag("--list-devices", help="print the devices and exit"),
    flag(
        "-ot --override-tensor",
        "PATTERN=BUFFER,...",
        "put tensors whose name matches into a device's buffers",
        overrides,
        default=(),
        env="LLAMA_ARG_OVERRIDE_TENSOR",
    ),
    flag("-cmoe --cpu-moe", help="keep all experts on the CPU", env="LLAMA_ARG_CPU_MOE"),
    flag(
        "-ncmoe --n-cpu-moe",
        "N",
        "keep the experts of the first N layers on the CPU",
        int,
        default=0,
        env="LLAMA_ARG_N_CPU_MOE",
    ),
    flag(
        "-ncffn --n-cpu-ffn",
        "N",
        "keep the dense FFN weights of the first N layers on the CPU",
        int,
        default=0,
        env="LLAMA_ARG_N_CPU_FFN",
    ),
    flag(
        "-sm --split-mode",
        "{none,layer,row}",
        "how several GPUs share the target (default: layer)",
        one_of(SPLIT_MODES),
        default="layer",
        lacks="tensor, which is untried with a head",
        env="LLAMA_ARG_SPLIT_MODE",
    ),
    flag("-ts --tensor-split", "N0,N1,...", "each GPU's share", numbers, env="LLAMA_ARG_TENSOR_SPLIT"),
    flag("-mg --main-gpu", "INDEX", "(default: 0)", int, default=0, env="LLAMA_ARG_MAIN_GPU"),
    flag(
        "-fit --fit",
        "off",
        f"off alone: {NO_FIT}",
        only("off", NO_FIT),
        default="off",
        env="LLAMA_ARG_FIT",
        differs=NO_FIT,
    ),
    flag("--rpc", "SERVERS", "ggml-rpc servers for the target, HOST:PORT,HOST:PORT,...", env="LLAMA_ARG_RPC"),
    flag(
        "--repack",
        no="-nr --no-repack",
        help="lay weights out anew where that is faster (default: on)",
        default=True,
        env="LLAMA_ARG_REPACK",
    ),
    flag(
        "--cpu-kernels",
        "MODE",
        "our kernels on a CPU: auto (where they were measured to be faster, once per machine), on, off (default: auto)",
        one_of(KERNEL_MODES),
        default="auto",
        env="LLAMA_ARG_CPU_KERNELS",
        is_ours=True,
    ),
    flag("--no-host", help="bypass the host buffers", env="LLAMA_ARG_NO_HOST"),
    flag(
        "--op-offload",
        no="--no-op-offload",
        help="do operations on host tensors on the device (default: on)",
        default=True,
    ),
    flag(
        "-lm --load-mode",
        "MODE",
        f"{', '.join(LOAD_MODES)} (default: auto)",
        one_of(LOAD_MODES),
        default="auto",
        env="LLAMA_ARG_LOAD_MODE",
    ),
    flag(
        "-lzm --lazy-mode",
        "MODE",
        "read rows of some large tensors on demand: auto, on, off (default: auto)",
        one_of(LAZY_MODES),
        default="auto",
        env="LLAMA_ARG_LAZY_MODE",
    ),
    flag("--no-mmap", help="read the target instead of mapping it", is_ours=True),
    flag("--mlock", help="keep the target in RAM", is_ours=True),
    flag("--numa", "TYPE", f"{', '.join(NUMA)}", one_of(NUMA), env="LLAMA_ARG_NUMA"),
)

LOG = (
    flag("-v --verbose --log-verbose", help="show llama.cpp's own messages"),
    flag("--log-file", "FNAME", "write the log to a file too", Path, env="LLAMA_ARG_LOG_FILE"),
    flag(
        "--log-colors",
        "off",
        f"off alone: {TEXT_LOG}",
        only("off", TEXT_LOG),
        default="off",
        env="LLAMA_ARG_LOG_COLORS",
    ),
)
