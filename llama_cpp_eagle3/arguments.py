"""Arguments of the constructors by name and type, for type checkers and for what is said about unknown ones."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from llama_cpp.llama_chat_format import LlamaChatCompletionHandler
from llama_cpp.llama_speculative import LlamaDraftModel
from llama_cpp.llama_tokenizer import BaseLlamaTokenizer

from ._core import NgramStore
from .drafters import DraftSource
from .media import AllowHttp


class LlamaOptions(TypedDict, total=False):
    """What `llama_cpp.Llama` takes beside `model_path`; where a type is wider than its own, `Eagle3Llama` is."""

    n_gpu_layers: int
    split_mode: int
    main_gpu: int
    tensor_split: list[float] | None
    vocab_only: bool
    use_mmap: bool
    use_mlock: bool
    kv_overrides: dict[str, bool | int | float | str] | None
    seed: int
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_threads: int | None
    n_threads_batch: int | None
    rope_scaling_type: int | None
    pooling_type: int
    attention_type: int
    rope_freq_base: float
    rope_freq_scale: float
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    logits_all: bool
    embedding: bool
    offload_kqv: bool
    flash_attn: bool
    op_offload: bool | None
    swa_full: bool | None
    no_perf: bool
    last_n_tokens_size: int
    lora_base: str | None
    lora_scale: float
    lora_path: str | os.PathLike[str] | None
    numa: bool | int
    chat_format: str | None
    chat_handler: LlamaChatCompletionHandler | None
    draft_model: LlamaDraftModel | None
    tokenizer: BaseLlamaTokenizer | None
    type_k: int | str | None
    type_v: int | str | None
    spm_infill: bool
    verbose: bool


class Eagle3LlamaOptions(LlamaOptions, total=False):
    """What `Eagle3Llama` takes beside `model_path`."""

    draft_model_path: str | os.PathLike[str] | None
    draft: Literal["auto", "chain", "tree"] | None
    draft_sources: Sequence[DraftSource] | None
    draft_n_max: int | None
    draft_ngram_n_max: int | None
    draft_ngram_store: NgramStore | bool
    draft_n_min: int
    draft_p_min: float
    draft_tree_depth: int | None
    draft_tree_topk: int | None
    draft_tree_tokens: int | None
    draft_n_gpu_layers: int
    draft_device: str | None
    draft_type: int | str | None
    draft_type_k: int | str | None
    draft_type_v: int | str | None
    draft_target_layers: Sequence[int] | None
    draft_n_threads: int | None
    n_parallel: int
    kv_unified: bool | None
    prefill_budget: int | None
    prefix_cache_bytes: int
    rpc_servers: str | Sequence[str] | None
    devices: str | Sequence[str] | None
    override_tensor: Sequence[tuple[str, str]]
    lora: Sequence[str | tuple[str, float]]
    model_params: Mapping[str, Any] | None
    cpu_kernels: str
    rng: Literal["gumbel", "llama"]
    progress: Callable[[float], None] | None
    mmproj_path: str | os.PathLike[str] | None
    media_placeholder: int | str | None
    media_http: AllowHttp
    checked: bool


def check_names(function: str, given: Iterable[str], *more: str) -> None:
    """Raise TypeError for a keyword that nobody knows, and name the nearest one; Llama itself would swallow it.

    Args:
        function: who was called.
        given: keywords that are looked up among those of `Eagle3Llama`.
        more: further ones that the function takes.
    """
    known = [*Eagle3LlamaOptions.__annotations__, *more]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}.{hint}")
