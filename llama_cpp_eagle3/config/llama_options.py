"""The options of `llama_cpp.Llama`, and the flags that set them. Its signature has their defaults."""

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict

from llama_cpp import Llama
from llama_cpp.llama_chat_format import LlamaChatCompletionHandler
from llama_cpp.llama_speculative import LlamaDraftModel
from llama_cpp.llama_tokenizer import BaseLlamaTokenizer

from ..ggml_types import CACHE_TYPES
from ..machine import default_threads
from .flag import flag, integer, key_values, layers, numbers, on_off_auto, one_of, place_in
from .option import Check, Option, in_range

CONTEXT, DEVICES, LOG, MODELS = "context", "devices and memory", "log", "models"
"""Titles of the help."""

ROPE_SCALING = ("none", "linear", "yarn")
SPLIT_MODES = ("none", "layer", "row")
NUMA = ("distribute", "isolate", "numactl")

N_CTX_MAX = 2**31 - 1
n_threads: Check = in_range(1, 512, or_zero=True)  # ggml's GGML_MAX_N_THREADS


def _threads(text: str) -> int:
    n = integer(text)
    return n if n > 0 else default_threads()


def _in(title: str) -> Callable[..., Option]:
    def option(*args: Any, doc: str = "", check: Check | None = None, **more: Any) -> Option:
        return Option(doc, check=check, flag=flag(*args, title=title, **more))

    return option


_context, _devices, _log, _models = map(_in, (CONTEXT, DEVICES, LOG, MODELS))


class LlamaOptions(TypedDict, total=False):
    """The arguments of `llama_cpp.Llama` besides `model_path`; `Eagle3Llama` takes wider types for some."""

    n_gpu_layers: Annotated[
        int,
        _devices(
            "-ngl --gpu-layers --n-gpu-layers N LLAMA_ARG_N_GPU_LAYERS",
            "layers on accelerators: a number, auto or all (default: all)",
            layers,
            default=-1,
            differs="auto is all: options are not reduced to fit the memory",
        ),
    ]
    split_mode: Annotated[
        int,
        _devices(
            "-sm --split-mode {none,layer,row} LLAMA_ARG_SPLIT_MODE",
            "how several GPUs share the target (default: layer)",
            place_in(SPLIT_MODES),
            default=SPLIT_MODES.index("layer"),
            lacks="tensor, which is untried with a head",
        ),
    ]
    main_gpu: Annotated[int, _devices("-mg --main-gpu INDEX LLAMA_ARG_MAIN_GPU", "(default: 0)", int, default=0)]
    tensor_split: Annotated[
        list[float] | None, _devices("-ts --tensor-split N0,N1,... LLAMA_ARG_TENSOR_SPLIT", "each GPU's share", numbers)
    ]
    vocab_only: bool
    use_mmap: bool
    use_mlock: bool
    kv_overrides: Annotated[
        dict[str, bool | int | float | str] | None,
        _models("--override-kv KEY=TYPE:VALUE,...", "override the header: int, float, bool, str", key_values),
    ]
    seed: int
    n_ctx: Annotated[
        int,
        _context(
            "-c --ctx-size N LLAMA_ARG_CTX_SIZE",
            "context size (default: the model's, at most 4096; 0 = the model's)",
            int,
            differs="at most 4096, llama.cpp the model's: options are not reduced to fit the memory",
        ),
    ]
    n_batch: Annotated[
        int, _context("-b --batch-size N LLAMA_ARG_BATCH", "logical batch size (default: 2048)", int, default=2048)
    ]
    n_ubatch: Annotated[
        int, _context("-ub --ubatch-size N LLAMA_ARG_UBATCH", "physical batch size (default: 512)", int, default=512)
    ]
    n_threads: Annotated[
        int | None,
        _devices(
            "-t --threads N LLAMA_ARG_THREADS",
            f"CPU threads (default: {default_threads()}, this machine's cores)",
            _threads,
            default=default_threads(),
            doc="CPU threads. `None`: the physical cores that the process may use, by affinity and a container's quota",
            check=n_threads,
        ),
    ]
    n_threads_batch: Annotated[
        int | None,
        _devices(
            "-tb --threads-batch N",
            "CPU threads for batches (default: as -t)",
            _threads,
            doc="CPU threads for passes of several tokens. `None`: `n_threads`",
            check=n_threads,
        ),
    ]
    rope_scaling_type: Annotated[
        int | None,
        _context(
            "--rope-scaling {none,linear,yarn} LLAMA_ARG_ROPE_SCALING_TYPE",
            "(default: the model's)",
            place_in(ROPE_SCALING),
            default=-1,
        ),
    ]
    pooling_type: int
    attention_type: int
    rope_freq_base: Annotated[
        float, _context("--rope-freq-base N LLAMA_ARG_ROPE_FREQ_BASE", "(default: the model's)", float, default=0.0)
    ]
    rope_freq_scale: Annotated[
        float,
        _context("--rope-freq-scale N LLAMA_ARG_ROPE_FREQ_SCALE", "expand the context by 1/N", float, default=0.0),
    ]
    yarn_ext_factor: Annotated[
        float, _context("--yarn-ext-factor N LLAMA_ARG_YARN_EXT_FACTOR", "(default: the model's)", float, default=-1.0)
    ]
    yarn_attn_factor: Annotated[
        float,
        _context("--yarn-attn-factor N LLAMA_ARG_YARN_ATTN_FACTOR", "(default: the model's)", float, default=-1.0),
    ]
    yarn_beta_fast: Annotated[
        float, _context("--yarn-beta-fast N LLAMA_ARG_YARN_BETA_FAST", "(default: the model's)", float, default=-1.0)
    ]
    yarn_beta_slow: Annotated[
        float, _context("--yarn-beta-slow N LLAMA_ARG_YARN_BETA_SLOW", "(default: the model's)", float, default=-1.0)
    ]
    yarn_orig_ctx: Annotated[
        int, _context("--yarn-orig-ctx N LLAMA_ARG_YARN_ORIG_CTX", "(default: 0, the model's)", int, default=0)
    ]
    logits_all: bool
    embedding: bool
    offload_kqv: Annotated[
        bool,
        _context(
            "-kvo --kv-offload LLAMA_ARG_KV_OFFLOAD | -nkvo --no-kv-offload",
            "keep the cache where the layers are (default: on)",
            default=True,
        ),
    ]
    flash_attn: Annotated[
        bool | None,
        _context(
            "-fa --flash-attn on|off|auto LLAMA_ARG_FLASH_ATTN",
            "flash attention (default: auto)",
            on_off_auto,
            default="auto",
            bare="on",
            differs="auto is on where our CPU kernels compute the attention, where there may be an accelerator, where "
            "slots share their cells, or the V cache is quantized; llama.cpp tries its graph",
            doc="flash attention. `None`: on where our CPU kernels compute the attention, unless K or V are F32 "
            "(it rounds them to F16) or the model embeds; and where V is quantized. Else off, as in llama_cpp. "
            "`loaded.attention` says what holds",
        ),
    ]
    op_offload: Annotated[
        bool | None,
        _devices(
            "--op-offload | --no-op-offload", "do operations on host tensors on the device (default: on)", default=True
        ),
    ]
    swa_full: Annotated[
        bool | None,
        _context(
            "--swa-full LLAMA_ARG_SWA_FULL | --no-swa-full",
            "keep all of a sliding window's cache; without it there are no trees",
            default=True,
            differs="on, llama.cpp off: prefixes can be reused, and trees drafted. `--no-swa-full` is ours",
        ),
    ]
    no_perf: bool
    last_n_tokens_size: int
    lora_base: str | None
    lora_scale: float
    lora_path: str | os.PathLike[str] | None
    numa: Annotated[bool | int, _devices("--numa TYPE LLAMA_ARG_NUMA", ", ".join(NUMA), place_in(NUMA, 1), default=0)]
    chat_format: str | None
    chat_handler: LlamaChatCompletionHandler | None
    draft_model: LlamaDraftModel | None
    tokenizer: BaseLlamaTokenizer | None
    type_k: Annotated[
        int | str | None,
        _context(
            "-ctk --cache-type-k TYPE LLAMA_ARG_CACHE_TYPE_K",
            f"type of the target's K cache: {', '.join(CACHE_TYPES)} (default: f16)",
            one_of(CACHE_TYPES),
            doc="ggml type of the target's K cache, also by name. `None`: F16",
        ),
    ]
    type_v: Annotated[
        int | str | None,
        _context(
            "-ctv --cache-type-v TYPE LLAMA_ARG_CACHE_TYPE_V",
            "type of the target's V cache (default: f16)",
            one_of(CACHE_TYPES),
            doc="ggml type of its V cache; only flash attention reads a quantized one. `None`: F16",
        ),
    ]
    spm_infill: bool
    verbose: Annotated[bool, _log("-v --verbose --log-verbose", "show llama.cpp's own messages")]


LLAMA_DEFAULTS: Mapping[str, Any] = {
    name: inspect.signature(Llama.__init__).parameters[name].default for name in LlamaOptions.__annotations__
} | {"flash_attn": None}
