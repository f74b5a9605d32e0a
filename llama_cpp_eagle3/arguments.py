"""Arguments of the constructors: names, types, meaning; and how they are read before anything is loaded."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, cast

from llama_cpp import Llama
from llama_cpp.llama_chat_format import LlamaChatCompletionHandler
from llama_cpp.llama_speculative import LlamaDraftModel
from llama_cpp.llama_tokenizer import BaseLlamaTokenizer

from ._core import NgramStore
from .draft.kinds import DraftSource, kind_of
from .draft.kinds.mtp import has_block
from .engine import check_rng, check_seed
from .media import AllowHttp
from .options import DraftOptions, cache_types, check_values, set_defaults

F = TypeVar("F", bound=Callable[..., Any])


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
    """What `Eagle3Llama` takes by name: the arguments of `llama_cpp.Llama`, and the following.

    Attributes:
        draft: "auto" drafts in each step what pays best on this machine, which may be nothing; "chain" drafts
            draft_n_max tokens, "tree" a tree. Default: "tree" or "chain" if one of their arguments is given, else
            "auto". On targets with a recurrent state, or with swa_full=False, trees become chains.
        draft_sources: what may draft in "auto": "eagle3", a head; "mtp", the block for multi-token prediction in
            the target's file; "simple", "dflash" and "assistant", the small model, block drafter or Gemma 4 assistant
            that draft_model_path names;
            "ngram", which drafts what followed earlier where the text ended as it ends now. "mtp" beside the one of
            draft_model_path loads both: "auto" asks the one that pays better, other settings are the first named one's.
            Default: all that there is, "mtp" without a draft_model_path; if there is only "ngram", then only with
            draft="auto".
        draft_n_max: maximum length of a chain of drafted tokens per step (default 3, in "auto" 8, of a block
            drafter 16). Of several drafters a fixed length is the first one's.
        draft_ngram_n_max: the same for the n-gram drafter (default: draft_n_max if given, else 32).
        draft_ngram_store: search what other sequences wrote too: an NgramStore, or True for the one that all
            objects of this process on the same model file share.
        draft_corpus: a text file, or a folder of them such as a project's sources, in which the n-gram drafter searches
            too. It is tokenized while loading; what is no text, or exceeds 256 MiB of memory, is left out and told.
        draft_n_min: drop shorter chains.
        draft_p_min: end a chain before a token that the head thinks less likely than this, 0 to 1.
        draft_tree_depth: levels of a tree (default 4); SGLang calls them steps.
        draft_tree_topk: candidates after each of the best nodes of a level (default 3).
        draft_tree_tokens: nodes of a tree that are verified (default 8).
        draft_n_gpu_layers: 0 = the head runs on the CPU, > 0 = on this machine's first accelerator, -1 = where the
            target's lm_head is, or on this machine's first accelerator if that is on an rpc server.
        draft_device: where the head runs instead: a ggml device (CPU, CUDA0, ...) or one of `rpc_servers`.
        draft_type: ggml type, such as "q4_0", to which the head's wider matrices are converted while loading: it
            drafts faster, and slightly fewer tokens are accepted. "f32" leaves all as they are. Default: as they
            are, or with draft="auto" Q4_0, if that was measured to be faster.
        draft_type_k: ggml type of the head's K cache (default "f16").
        draft_type_v: ggml type of the head's V cache (default "f16").
        draft_target_layers: the hidden states that the head reads, as numbers of layers before them, instead of
            those in its file. Without a head: those that `features` gives.
        draft_n_threads: CPU threads of the head (default: n_threads).
        draft_n_ctx: tokens of a sequence that a small model reads, which limits its memory; it drafts nothing after
            them (default: n_ctx).
        n_parallel: number of slots: sequences that run at the same time.
        kv_unified: True: the slots share n_ctx positions. Then they can draft trees, share prefixes without a copy,
            and are preempted when it is full. False: each has n_ctx / n_parallel, and passes over many sequences
            are faster, since none reads the others' cells. Default: False, or True for draft="tree".
        prefill_budget: rows of prompts in a step in which other sequences decode. Default: as many as double the
            step's time.
        prefix_cache_bytes: host memory for cached prefixes that are evicted from their slots, and for saved states of
            recurrent layers and sliding windows, which memory goes back to. Default: 8 GiB, or a quarter of the free
            memory if that is less.
        prefix_cache_dir: folder for cached prefixes and saved states, which outlive the process there: what is in host
            memory is written to it, and read again by a process with the same files and settings. It is for its owner
            alone, as the texts of conversations are in it. Default: nothing is kept.
        prefix_cache_disk_bytes: of all files in that folder. Default: 8 GiB, or a quarter of the free room if that is
            less.
        ctx_checkpoints: saved states of one text at most; 0 = none.
        checkpoint_min_step: tokens between two of them, but for those where a system prompt, the last message and the
            answer begin.
        rpc_servers: ggml-rpc servers whose devices hold the target's layers, beside this machine's accelerators, as
            ["HOST:PORT", ...] or "HOST:PORT,HOST:PORT". `n_gpu_layers` is -1 (all) then, if it is not given.
        devices: ggml devices for the target's layers, by name and in this order, instead of all accelerators;
            "none": the CPU.
        override_tensor: (regular expression, buffer type) pairs: tensors with a matching name go to that buffer
            type, for example (r"\\.ffn_(up|down|gate)_exps", "CPU").
        lora: LoRA adapters in GGUF, or (adapter, scale) pairs, that are applied together.
        model_params: fields of llama.h's llama_model_params that Llama has no argument for: check_tensors,
            lazy_mode, load_mode, no_host, use_extra_bufts.
        cpu_kernels: what multiplies by the weights on a CPU: "on": our kernels, for formats that have one,
            prompts too; "off": ggml's; "auto": for each format the faster ones, measured once per machine and kept,
            as the sides sum in different orders. Other models of the process are not affected.
        rng: the generator that samples: "gumbel" (seeded noise that drafters know, so that more drafts are
            accepted) or "llama" (llama.cpp's, for its texts for a seed). Both sample the same distribution.
        progress: called with the share of the target that is loaded, 0 to 1.
        mmproj_path: a multimodal projector, a GGUF file: `create_chat_completion` then takes images or sounds in
            messages, from data URLs, files and bytes; `chat_format` is "auto", if it is not given.
        media_placeholder: token, or its text, that the head reads in place of each row of an image. Default: by the
            projector's type and the vocabulary.
        media_http: fetch public http addresses in messages; "private": also those of this machine and of private
            networks.
        checked: load the header of a target that is new to this machine in a child process first (a few tenths of a
            second, once), so that a damaged file cannot end this process.
    """

    draft: Literal["auto", "chain", "tree"] | None
    draft_sources: Sequence[DraftSource] | None
    draft_n_max: int | None
    draft_ngram_n_max: int | None
    draft_ngram_store: NgramStore | bool
    draft_corpus: str | os.PathLike[str] | None
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
    draft_n_ctx: int | None
    n_parallel: int
    kv_unified: bool | None
    prefill_budget: int | None
    prefix_cache_bytes: int | None
    prefix_cache_dir: str | os.PathLike[str] | None
    prefix_cache_disk_bytes: int | None
    ctx_checkpoints: int
    checkpoint_min_step: int
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


class ConstructorOptions(Eagle3LlamaOptions, total=False):
    """All arguments of the constructor beside `model_path`; `draft_model_path` is documented there."""

    draft_model_path: str | os.PathLike[str] | None


DEFAULTS: Eagle3LlamaOptions = {
    "draft": None,
    "draft_sources": None,
    "draft_n_max": None,
    "draft_ngram_n_max": None,
    "draft_ngram_store": False,
    "draft_corpus": None,
    "draft_n_min": 0,
    "draft_p_min": 0.0,
    "draft_tree_depth": None,
    "draft_tree_topk": None,
    "draft_tree_tokens": None,
    "draft_n_gpu_layers": -1,
    "draft_device": None,
    "draft_type": None,
    "draft_type_k": None,
    "draft_type_v": None,
    "draft_target_layers": None,
    "draft_n_threads": None,
    "draft_n_ctx": None,
    "n_parallel": 1,
    "kv_unified": None,
    "prefill_budget": None,
    "prefix_cache_bytes": None,
    "prefix_cache_dir": None,
    "prefix_cache_disk_bytes": None,
    "ctx_checkpoints": 32,
    "checkpoint_min_step": 256,
    "rpc_servers": None,
    "devices": None,
    "override_tensor": (),
    "lora": (),
    "model_params": None,
    "cpu_kernels": "auto",
    "rng": "gumbel",
    "progress": None,
    "mmproj_path": None,
    "media_placeholder": None,
    "media_http": False,
    "checked": True,
}
"""Of our own arguments; those of `llama_cpp.Llama` have its defaults."""

LLAMA_DEFAULTS: Mapping[str, Any] = {
    name: inspect.signature(Llama.__init__).parameters[name].default for name in LlamaOptions.__annotations__
}


def show_arguments(function: F) -> F:
    """Have `help`, notebooks and `inspect` show our arguments by name, which the function takes as `**options`."""
    signature = inspect.signature(function)
    *named, options = signature.parameters.values()
    own = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Eagle3LlamaOptions.__annotations__[name]
        )
        for name, default in DEFAULTS.items()
    ]
    others = options.replace(name="llama_options", annotation="Unpack[LlamaOptions]")
    function.__signature__ = signature.replace(parameters=[*named, *own, others])  # type: ignore[attr-defined]
    return function


def check_names(function: str, given: Iterable[str], *more: str) -> None:
    """Raise TypeError for an unknown keyword, and name the nearest one; Llama itself would swallow it.

    Args:
        function: who was called.
        given: keywords that are looked up among those of `Eagle3Llama`.
        more: further ones that the function takes.
    """
    known = [*ConstructorOptions.__annotations__, *more]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}.{hint}")


def own_arguments(given: ConstructorOptions) -> ConstructorOptions:
    """Our arguments, without those of `Llama`."""
    own = {name: value for name, value in given.items() if name not in LlamaOptions.__annotations__}
    return cast(ConstructorOptions, own)


def read_arguments(path: str, given: ConstructorOptions) -> tuple[DraftOptions, dict[str, Any]]:
    """Check the constructor's arguments, and set defaults: the drafter's options, and all arguments of `Llama`.

    Args:
        path: the target's file.
        given: all arguments: our own, with their defaults, and those of `Llama` that were given.

    Raises:
        TypeError: an unknown argument.
        ValueError: a value cannot work, or not with another.
    """
    check_names("Eagle3Llama", given)
    options: dict[str, Any] = {name: value for name, value in given.items() if name in LlamaOptions.__annotations__}
    no_block = given["draft_target_layers"] is not None or any(
        options.get(name) for name in ("draft_model", "embedding", "vocab_only")
    )
    kind = kind_of(os.path.expanduser(os.fspath(given["draft_model_path"] or "")))
    draft = DraftOptions.of(given, has_block=not no_block and has_block(path), draft_kind=kind)
    options |= cache_types(options)
    check_values(draft, options)
    check_rng(given["rng"])
    check_seed(options.get("seed"))
    set_defaults(options, has_projector=given["mmproj_path"] is not None, has_servers=bool(given["rpc_servers"]))
    return draft, {**LLAMA_DEFAULTS, **options}
