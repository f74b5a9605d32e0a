"""Load a target with the arguments of `llama_cpp.Llama`: parameters, model, context and chat formats."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as lib
from llama_cpp import llama_chat_format
from llama_cpp._internals import LlamaContext, LlamaModel

from .._core import has_lost_threads
from ..errors import Eagle3Error
from ..files.model_file import guard_tokenizer, kv_overrides
from ..ggml_types import FLOAT_TYPES
from .loading import Loading

_MODEL_FIELDS = ("split_mode", "main_gpu", "vocab_only")
_CONTEXT_FIELDS = (
    "n_ctx", "n_threads", "n_threads_batch", "rope_scaling_type", "pooling_type", "attention_type", "rope_freq_base",
    "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx",
    "offload_kqv", "op_offload", "swa_full", "type_k", "type_v", "no_perf",
)  # fmt: skip
_ALL_LAYERS = 0x7FFFFFFF
_LOAD_MODES = {
    (True, True): lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
    (True, False): lib.LLAMA_LOAD_MODE_MMAP,
    (False, True): lib.LLAMA_LOAD_MODE_MLOCK,
    (False, False): lib.LLAMA_LOAD_MODE_NONE,
}  # (use_mmap, use_mlock)


@dataclass(frozen=True, slots=True)
class LoadedLlama:
    """A target's model and context, as llama_cpp's objects."""

    path: str
    options: Mapping[str, Any]
    """All arguments of `llama_cpp.Llama`; n_ctx and n_batch are those of the context."""
    model: LlamaModel
    ctx: LlamaContext


def load_llama(
    path: str, arguments: Mapping[str, Any], loading: Loading, stack: ExitStack, log: Callable[[str], None]
) -> LoadedLlama:
    """Load a target's model with all arguments of `llama_cpp.Llama`, and make its context.

    loading: sets the parameters that drafting needs. stack: frees the model, which frees its contexts.

    Raises:
        ValueError: an argument cannot work, or llama.cpp does not load the model or makes no context; see
            `file_errors`.
        ModelFileError: an adapter does not fit this model.
        Eagle3Error: the threads that would compute are lost.
    """
    options = dict(arguments)
    n_threads = max(options["n_threads"], options["n_threads_batch"], loading.draft.given["draft_n_threads"] or 0)
    if n_threads > 1 and has_lost_threads() and b"OPENMP = 1" in lib.llama_print_system_info():
        raise Eagle3Error(
            "this process was forked from one that had used a model, whose threads llama.cpp would wait for for ever "
            "(OpenMP): load it with n_threads=1, in a new thread, or start processes in another way (multiprocessing: "
            "'spawn' or 'forkserver')"
        )
    lib.llama_backend_init()
    if options["numa"]:
        lib.llama_numa_init(numa_strategy(options["numa"]))
    model_params = _model_params(options)
    loading.preset_model(model_params)
    model = LlamaModel(path_model=_Path(path), params=model_params, verbose=options["verbose"])
    stack.enter_context(closing(model))
    guard_tokenizer(model)
    options["n_ctx"] = options["n_ctx"] or model.n_ctx_train()
    options["n_batch"] = min(options["n_ctx"], options["n_batch"])
    context_params = _context_params(options)
    loading.register_kernels(model.model, max(1, context_params.n_threads), log)
    if options["flash_attn"] is None and _suits_flash(context_params, loading):
        context_params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
    loading.preset_context(context_params)
    loading.load_adapters(model.model)
    loading.fit_context(context_params, model.model)
    if options["embedding"]:  # one call embeds many texts
        context_params.n_seq_max = min(options["n_batch"], lib.llama_max_parallel_sequences())
        context_params.kv_unified = True
    ctx = LlamaContext(model=model, params=context_params, verbose=options["verbose"])
    return LoadedLlama(path, options, model, ctx)


class _Path(str):
    """A path that `LlamaModel` encodes as the system has it, which need not be UTF-8."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Its bytes."""
        return os.fsencode(str(self))


def numa_strategy(numa: bool | int) -> int:
    """The ggml_numa_strategy of the argument `numa`."""
    return lib.GGML_NUMA_STRATEGY_DISTRIBUTE if numa is True else int(numa)


def _model_params(options: Mapping[str, Any]) -> Any:
    """A llama_model_params, which holds the arrays that it points to."""
    params = lib.llama_model_default_params()
    params.n_gpu_layers = _ALL_LAYERS if options["n_gpu_layers"] == -1 else options["n_gpu_layers"]
    for name in _MODEL_FIELDS:
        setattr(params, name, options[name])
    params.load_mode = _LOAD_MODES[bool(options["use_mmap"]), bool(options["use_mlock"])]
    split = options["tensor_split"]
    if split is not None:
        if len(split) > lib.LLAMA_MAX_DEVICES:
            raise ValueError(f"tensor_split: expected at most {lib.LLAMA_MAX_DEVICES} shares, found {len(split)}")
        params.tensor_split = (ctypes.c_float * lib.LLAMA_MAX_DEVICES)(*split)
    if options["kv_overrides"]:
        params.kv_overrides = kv_overrides(options["kv_overrides"])
    return params


def _context_params(options: Mapping[str, Any]) -> Any:
    """A llama_context_params; None leaves llama.cpp's default."""
    params = lib.llama_context_default_params()
    for name in _CONTEXT_FIELDS:
        if options[name] is not None:
            setattr(params, name, options[name])
    params.n_batch = options["n_batch"]
    params.n_ubatch = min(options["n_batch"], options["n_ubatch"])
    params.embeddings = options["embedding"]
    has_flash = bool(options["flash_attn"])
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if has_flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params


def _suits_flash(params: Any, loading: Loading) -> bool:
    """Whether a context has flash attention by default: if ours computes it, or if nothing else reads its type of V."""
    # with flash attention llama.cpp's graphs round K and V of F32 to F16, also in encoders
    rounds = params.embeddings or lib.GGML_TYPE_F32 in (params.type_k, params.type_v)
    return params.type_v not in FLOAT_TYPES or (loading.attends and not rounds)


def chat_handlers(model: LlamaModel, metadata: Mapping[str, str]) -> dict[str, Any]:
    """llama_cpp's chat handlers for the templates of a file, by the names under which `Llama` has them.

    Raises:
        jinja2.TemplateError, UnicodeDecodeError: see `file_errors`.
    """
    templates = {
        name.removeprefix("tokenizer."): template
        for name, template in metadata.items()
        if name.startswith("tokenizer.chat_template.")
    }
    if "tokenizer.chat_template" in metadata:
        templates["chat_template.default"] = metadata["tokenizer.chat_template"]
    eos, bos = model.token_eos(), model.token_bos()
    return {
        name: llama_chat_format.Jinja2ChatFormatter(
            template=template,
            eos_token=model.token_get_text(eos) if eos != -1 else "",
            bos_token=model.token_get_text(bos) if bos != -1 else "",
            stop_token_ids=[eos],
        ).to_chat_handler()
        for name, template in templates.items()
    }


def usual_chat_format(handlers: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """The chat format that `Llama` chooses if neither a format nor a handler is given."""
    if "chat_template.default" not in handlers:
        return "llama-2"
    return llama_chat_format.guess_chat_format_from_gguf_metadata(dict(metadata)) or "chat_template.default"
