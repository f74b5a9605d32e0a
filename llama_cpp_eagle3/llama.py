"""`Eagle3Llama`: a `llama_cpp.Llama` that drafts with an EAGLE-3 head. It is the API; the work is done elsewhere:

`loaded_model` has the engine on target and head, `context` the tokens of `eval` and `generate`, `batch` and
`chat/completion` make requests and run them, `loading` prepares what llama_cpp loads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cached_property, partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt
from llama_cpp import (
    LLAMA_FLASH_ATTN_TYPE_ENABLED,
    Llama,
    LlamaGrammar,
    LlamaState,
    LlamaTokenizer,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from ._core import Drafter, FeatureTap, Guard, NgramStore, Planner, Target
from .arguments import Eagle3LlamaOptions, check_names
from .batch import BatchResult, BatchRun, BatchStream, make_requests, progress_bar
from .chat import ChatTemplates, grammar_text
from .chat.completion import Chat, ChatCompletion, chat_arguments
from .context import Context, Generation
from .drafters import DraftSource, kind_of
from .drafters.mtp import has_block
from .engine import DraftSettings, Engine, Media, Request, Rng, SamplerChain, Sampling, check_rng, check_seed
from .engine import Sequence as EngineSequence
from .errors import ContextFullError, Eagle3Error, ModelFileError
from .features import Features
from .guard import bury, closed_error
from .head import Head
from .loaded_model import LoadedModel
from .loading import Loading
from .log import tell
from .media import AllowHttp, Projector, hook_handler
from .model_file import check_file, file_errors, guard_tokenizer
from .model_options import ModelOptions
from .options import DraftOptions, cache_types, check_values, set_defaults
from .state import Eagle3State, check_state
from .stats import Stats

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .arguments import LlamaOptions

DRAFT_SETTINGS = (
    "draft", "draft_sources", "draft_n_max", "draft_ngram_n_max", "draft_n_min",
    "draft_p_min", "draft_tree_depth", "draft_tree_topk", "draft_tree_tokens",
)  # fmt: skip
"""Attributes that may be changed between two generations."""

_FROM_PRETRAINED = (
    "filename", "additional_files", "local_dir", "cache_dir", "draft_repo_id", "draft_filename", "token", "offline",
)  # fmt: skip
_NOT_PICKLED = ("progress", "draft_ngram_store")
_NOT_SAMPLING = ("self", "prompts", "options", "progress", "stream")
_NO_ROOM = "Requested tokens ("  # Llama's error for a prompt that is longer than the context


class Eagle3Llama(Llama):  # type: ignore[misc]
    """A `llama_cpp.Llama` that generates faster by speculative decoding with an EAGLE-3 head. The output is the same.

    It has all methods of `llama_cpp.Llama`. Without a `draft_model_path` it is a plain Llama on the same engine.

    Examples:
        >>> llm = Eagle3Llama("target.gguf", draft_model_path="eagle3.gguf", n_ctx=4096)
        >>> llm("def fibonacci(", max_tokens=64, temperature=0)["choices"][0]["text"]
        >>> llm.last_stats
    """

    # what Llama keeps of the context
    _seed: int
    _sampler: SamplerChain | None
    n_batch: int
    verbose: bool

    # how to draft, see the constructor
    draft: str
    draft_sources: Sequence[str]
    draft_n_max: int
    draft_ngram_n_max: int
    draft_n_min: int
    draft_p_min: float
    draft_tree_depth: int
    draft_tree_topk: int
    draft_tree_tokens: int

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        draft_model_path: str | os.PathLike[str] | None = None,
        *,
        draft: Literal["auto", "chain", "tree"] | None = None,
        draft_sources: Sequence[DraftSource] | None = None,
        draft_n_max: int | None = None,
        draft_ngram_n_max: int | None = None,
        draft_ngram_store: NgramStore | bool = False,
        draft_n_min: int = 0,
        draft_p_min: float = 0.0,
        draft_tree_depth: int | None = None,
        draft_tree_topk: int | None = None,
        draft_tree_tokens: int | None = None,
        draft_n_gpu_layers: int = -1,
        draft_device: str | None = None,
        draft_type: int | str | None = None,
        draft_type_k: int | str | None = None,
        draft_type_v: int | str | None = None,
        draft_target_layers: Sequence[int] | None = None,
        draft_n_threads: int | None = None,
        n_parallel: int = 1,
        kv_unified: bool | None = None,
        prefill_budget: int | None = None,
        prefix_cache_bytes: int = 0,
        rpc_servers: str | Sequence[str] | None = None,
        devices: str | Sequence[str] | None = None,
        override_tensor: Sequence[tuple[str, str]] = (),
        lora: Sequence[str | tuple[str, float]] = (),
        model_params: Mapping[str, Any] | None = None,
        cpu_kernels: str = "auto",
        rng: Literal["gumbel", "llama"] = "gumbel",
        progress: Callable[[float], None] | None = None,
        mmproj_path: str | os.PathLike[str] | None = None,
        media_placeholder: int | str | None = None,
        media_http: AllowHttp = False,
        checked: bool = True,
        **llama_options: Unpack[LlamaOptions],
    ):
        """Load a target and, if given, its head. Loading is all or nothing.

        Args:
            model_path: the target, a GGUF file.
            draft_model_path: the EAGLE-3 head, a GGUF file in llama.cpp's dialect or ours; a block drafter (dflash); a
                small model of the target's vocabulary, which drafts by itself; or the target's block for multi-token
                prediction in a file of its own (mtp-*.gguf).
            draft: "auto" drafts in each step what pays best on this machine, which may be nothing; "chain" drafts
                draft_n_max tokens, "tree" a tree. Default: "tree" or "chain" if one of their arguments is given, else
                "auto". On targets with a recurrent state, or with swa_full=False, trees become chains.
            draft_sources: what may draft in "auto": "eagle3", a head; "mtp", the block for multi-token prediction in
                the target's file; "simple" and "dflash", the small model or block drafter that draft_model_path names;
                "ngram", which drafts what followed earlier where the text ended as it ends now. Default: all that there
                is, "mtp" without a draft_model_path; if there is only "ngram", then only with draft="auto".
            draft_n_max: maximum length of a chain of drafted tokens per step (default 3, in "auto" 8, of a block
                drafter 16).
            draft_ngram_n_max: the same for the n-gram drafter (default: draft_n_max if given, else 32).
            draft_ngram_store: search what other sequences wrote too: an NgramStore, or True for the one that all
                objects of this process on the same model file share.
            draft_n_min: drop shorter chains.
            draft_p_min: end a chain before a token that the head thinks less likely than this, 0 to 1.
            draft_tree_depth: levels of a tree (default 4); SGLang calls them steps.
            draft_tree_topk: candidates behind each of the best nodes of a level (default 3).
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
                what its file says. Without a head: those that `features` gives.
            draft_n_threads: CPU threads of the head (default: n_threads).
            n_parallel: number of slots: sequences that run at the same time.
            kv_unified: True: the slots share n_ctx positions. Then they can draft trees, share prefixes without a copy,
                and are preempted when it is full. False: each has n_ctx / n_parallel, and passes over many sequences
                are faster, since none reads the others' cells. Default: False, or True for draft="tree".
            prefill_budget: rows of prompts in a step in which other sequences decode. Default: as many as double the
                step's time.
            prefix_cache_bytes: host memory for cached prefixes that are evicted from their slots.
            rpc_servers: ggml-rpc servers whose devices hold the target's layers, beside this machine's accelerators, as
                ["HOST:PORT", ...] or "HOST:PORT,HOST:PORT". `n_gpu_layers` is -1 (all) then, if it is not given.
            devices: ggml devices for the target's layers, by name and in this order, instead of all accelerators;
                "none": the CPU.
            override_tensor: (regular expression, buffer type) pairs: tensors with a matching name go to that buffer
                type, for example (r"\\.ffn_(up|down|gate)_exps", "CPU").
            lora: LoRA adapters in GGUF, or (adapter, scale) pairs, that are applied together.
            model_params: fields of llama.h's llama_model_params that Llama has no argument for: check_tensors,
                lazy_mode, load_mode, no_host, use_extra_bufts.
            cpu_kernels: what multiplies by the weights on a CPU: "on": our kernels, for formats that have one;
                "off": ggml's; "auto": for each format the faster ones, measured once. Other models of the process are
                not affected.
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
            **llama_options: what `llama_cpp.Llama` takes; `type_k` and `type_v` also by name. `n_threads` and
                `n_threads_batch` default to the number of physical cores that the process may use.

        Raises:
            ModelFileError: a file is missing or is not what it should be.
            IncompatibleDraftError: head and target do not belong together.
            RpcError: one of the rpc_servers cannot be used.
        """
        given = cast(Eagle3LlamaOptions, {n: v for n, v in locals().items() if n in Eagle3LlamaOptions.__annotations__})
        path = os.path.expanduser(os.fspath(model_path))
        no_block = draft_target_layers is not None or any(
            llama_options.get(name) for name in ("draft_model", "embedding", "vocab_only")
        )
        kind = kind_of(os.path.expanduser(os.fspath(draft_model_path or "")))
        draft_options = DraftOptions.of(given, has_block=not no_block and has_block(path), draft_kind=kind)
        check_names("Eagle3Llama", llama_options)
        options: dict[str, Any] = {**llama_options, **cache_types(llama_options)}
        check_values(draft_options, options)
        check_rng(rng)
        check_seed(llama_options.get("seed"))
        set_defaults(options, has_projector=mmproj_path is not None, has_servers=bool(rpc_servers))
        self._given = given
        self._guard = Guard(type(self).__name__)
        self._context = Context()
        self._loaded_model: LoadedModel | None = None
        self._projector: Projector | None = None
        self._log = partial(tell, bool(options.get("verbose", True)))
        self.n_parallel = n_parallel
        self.rng: Rng = rng
        """What tokens are drawn with, see `Sampling.rng`."""
        self.draft, self.draft_sources = draft_options.mode, draft_options.sources
        self.draft_n_max, self.draft_ngram_n_max = draft_options.n_max, draft_options.ngram_n_max
        self.draft_n_min, self.draft_p_min = draft_n_min, draft_p_min
        self.draft_tree_depth, self.draft_tree_topk = draft_options.tree_depth, draft_options.tree_topk
        self.draft_tree_tokens = draft_options.tree_tokens
        # Llama's own kind of draft would make it ask for all logits; our loop can draft with it as it is
        draft_model = options.pop("draft_model", None)
        if options.get("lora_path") is not None:
            options["lora_path"] = os.path.expanduser(os.fspath(options["lora_path"]))
        try:
            vocab_only = bool(options.get("vocab_only"))
            more = ModelOptions.of(given)
            self._loading = Loading(path, draft_options, rpc_servers, more, vocab_only=vocab_only, progress=progress)
            check_file(path, options, checked)
            draft_file = self._loading.draft_file
            if draft_file is not None and draft_file.is_model:
                check_file(draft_file.path, {}, checked)
            with file_errors(path):
                super().__init__(path, **options)
            self.draft_model = draft_model
            if self.lora_path and not self._lora_adapter:  # Llama looks for None, ctypes gives a null pointer
                raise ModelFileError(
                    f"'{self.lora_path}' is missing, or is no LoRA adapter in GGUF for '{self.model_path}'"
                )
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        """Llama has loaded the target: make the engine, with the head and the projector if they are given."""
        given = self._given
        loaded = self._loaded_model = LoadedModel(
            self,
            self._loading,
            draft_required=given["draft_sources"] is not None or given["draft_model_path"] is not None,
            ngram_store=given["draft_ngram_store"],
            prefill_budget=given["prefill_budget"],
            prefix_cache_bytes=given["prefix_cache_bytes"],
            log=self._log,
        )
        engine = loaded.engine
        self.draft_sources = self._loading.draft.sources  # without a block that cannot draft
        engine.draft = self.draft_settings
        self._n_ctx = engine.n_ctx
        self._context.start(engine, logits_all=self._logits_all, n_vocab=self._n_vocab)
        hook_handler(self.chat_handler, self, int(self._ctx.ctx))
        if given["mmproj_path"] is not None:
            self._projector = Projector(
                os.path.expanduser(os.fspath(given["mmproj_path"])),
                self.model_address,
                n_threads=self.n_threads_batch,
                use_gpu=self.model_params.n_gpu_layers != 0,
                flash_attn=self.context_params.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_ENABLED,
                placeholder=given["media_placeholder"],
            )
            self._log(self._projector.describe())
            if self._loading.draft_file is not None and self._loading.draft_file.of_media:
                self._log(self._loading.draft_file.of_media)
        if self.draft == "auto":
            loaded.use_stored_type()

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: list[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        draft_repo_id: str | None = None,
        draft_filename: str | None = None,
        token: str | None = None,
        offline: bool = False,
        **kwargs: Unpack[Eagle3LlamaOptions],
    ) -> Eagle3Llama:
        """Load a target, and a head if one is named, from the Hugging Face hub (needs the extra `hub`).

        Args:
            repo_id: the target's repository, USER/REPO or USER/REPO:QUANT.
            filename: the target's file in it, or a glob pattern that matches one file, instead of QUANT. Without both
                it is the Q4_K_M one, else Q8_0, else the first. Shards come all.
            additional_files: more files of the target's repository, or patterns.
            local_dir: where to put GGUF files, instead of the hub's cache.
            local_dir_use_symlinks: ignored, as by Llama: huggingface_hub decides that itself.
            cache_dir: the hub's cache.
            draft_repo_id: the head's repository, USER/REPO or USER/REPO:QUANT (default: the target's, if
                `draft_filename` is given). A Hugging Face checkpoint without a GGUF file is converted for the target,
                once per revision.
            draft_filename: the head's file, or a pattern.
            token: for what is gated or private; default: HF_TOKEN, or what `hf auth login` left.
            offline: use the files that are on this machine already. HF_HUB_OFFLINE=1 does the same.
            **kwargs: what the constructor takes.

        Raises:
            HubError: the hub has no such file, refuses it, or does not answer.
            ImportError: a package of the extra `hub` is missing.
        """
        from .hub import Access, fetch_pair

        check_names("Eagle3Llama.from_pretrained", kwargs, *_FROM_PRETRAINED)
        if "draft_model_path" in kwargs and (draft_repo_id is not None or draft_filename is not None):
            raise TypeError("give either draft_model_path or draft_repo_id and draft_filename")
        pair = fetch_pair(
            repo_id,
            draft_repo_id,
            Access(cache_dir, local_dir, token, offline),
            target_file=filename,
            more_files=tuple(additional_files or ()),
            head_file=draft_filename,
            log=partial(tell, bool(kwargs.get("verbose", True))),
        )
        if pair.head is not None:
            kwargs["draft_model_path"] = pair.head
        assert pair.target is not None
        return cls(pair.target, **kwargs)

    def close(self) -> None:
        """Free everything. Happens by itself when the object goes."""
        guard = self.__dict__.get("_guard")
        if guard is None or guard.closed:
            return
        with guard:
            guard.closed = True
            loading, loaded = self.__dict__.get("_loading"), self._loaded_model
            if loading is not None:
                loading.prepare_free()
            self._loaded_model = self._sampler = self._context.engine = None
            if loaded is not None:
                loaded.close()
            if self._projector is not None:
                self._projector.close()
            if "_stack" in self.__dict__:
                super().close()
            if loading is not None:
                loading.close()
            for name in ("_llama_model", "_ctx", "_batch"):
                if name in self.__dict__:
                    bury(self.__dict__[name], type(self).__name__)

    def __enter__(self) -> Self:
        with self._guard:
            return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._loaded_model is None:
            return f"<{name} closed>"
        head = "" if self.draft_model_path is None else f" draft={self.draft_model_path!r}"
        return f"<{name} {self.model_path!r}{head} n_ctx={self.n_ctx()} n_parallel={self.n_parallel}>"

    def __getstate__(self) -> dict[str, Any]:
        given = {name: value for name, value in self._given.items() if name not in _NOT_PICKLED}
        changed = {name: getattr(self, name) for name in (*DRAFT_SETTINGS, "rng")}
        return {**super().__getstate__(), **given, **changed}

    # what it is made of

    @property
    def _loaded(self) -> LoadedModel:
        if self._loaded_model is None:
            raise closed_error(type(self).__name__)
        return self._loaded_model

    @property
    def engine(self) -> Engine:
        """The engine that generates; add sequences of your own and call `step`."""
        return self._loaded.engine

    @property
    def target(self) -> Target:
        """The target's context with `decode`, `sample`, `argmax` and `truncate`, for a loop of one's own."""
        return self.engine.target

    @property
    def tap(self) -> FeatureTap | None:
        """The tap that reads the target's hidden states; None without a head."""
        return self._loading.tap

    @property
    def drafter(self) -> Drafter | None:
        """The head with `process`, `propose` and `truncate`, for a loop of one's own; None without one."""
        return self.engine.drafter

    @property
    def head(self) -> Head | None:
        """The head and the type it is loaded in; None without one, and after `close`."""
        return None if self._loaded_model is None else self._loaded_model.head

    @property
    def planner(self) -> Planner | None:
        """The planner of `draft="auto"`; its `stats()` say what it chose. None before it was needed."""
        return self.engine.planner

    @property
    def projector(self) -> Projector | None:
        """The encoder of images and sounds; None without an mmproj_path."""
        return self._projector

    @property
    def chat_handler(self) -> Any:
        """The handler that answers conversations in place of a chat format; multimodal ones use the engine."""
        return self._chat_handler

    @chat_handler.setter
    def chat_handler(self, handler: Any) -> None:
        self._chat_handler = handler
        if self._loaded_model is not None:
            hook_handler(handler, self, int(self._ctx.ctx))

    @property
    def draft_model_path(self) -> str | None:
        """The head's file; None without one."""
        return self._loading.draft.model_path

    @property
    def draft_type_asked(self) -> int | None:
        """The ggml type that was asked for the head's wider matrices; None = what is fastest."""
        return self._loading.draft.type

    @property
    def draft_type(self) -> int | None:
        """The ggml type to which the head's wider matrices were converted; None = they are as in the file."""
        return self.draft_type_asked if self.head is None else self.head.type

    @property
    def draft_settings(self) -> DraftSettings:
        """What the attributes `draft`, `draft_n_max`, ... say now."""
        return DraftSettings(
            mode=self.draft,  # type: ignore[arg-type]
            sources=tuple(self.draft_sources),
            n_max_ngram=self.draft_ngram_n_max,
            n_max=self.draft_n_max,
            n_min=self.draft_n_min,
            p_min=self.draft_p_min,
            tree_depth=self.draft_tree_depth,
            tree_topk=self.draft_tree_topk,
            tree_tokens=self.draft_tree_tokens,
        )

    @property
    def model_address(self) -> int:
        """Address of the loaded llama_model, for functions of llama.h."""
        return int(self._model.model)

    @property
    def pair_id(self) -> tuple[str, str]:
        """Fingerprints of target and head; both empty without a head."""
        return self._loading.pair_id

    @property
    def where(self) -> str:
        """One line on what runs where."""
        return self._loaded.where

    @property
    def cpu_kernels_used(self) -> str:
        """Which of our kernels multiply which weights on a CPU, or why none do."""
        return self._loaded.cpu_kernels_used

    @property
    def n_state_bytes(self) -> int:
        """Bytes of recurrent state that the target keeps per sequence; 0 for targets that only attend."""
        return self._loaded.n_state_bytes

    def convert_draft(self, draft_type: int | None) -> None:
        """Load the head again with its matrices in another ggml type; its cache is empty then."""
        with self._guard:
            self._loaded.convert_draft(draft_type)

    def costs_key(self) -> dict[str, Any]:
        """Everything that measured costs depend on, ready for JSON."""
        return self._loaded.costs_key()

    def calibrate(self, seconds: float = 2.0, log: Callable[[str], None] | None = None) -> None:
        """Measure what passes cost now, unless that is known; else the first generation with `draft="auto"` does it.

        Args:
            seconds: to spend.
            log: called with a line before it begins, and with what was found; None: as `verbose` says.

        Raises:
            Eagle3Error: they must be measured, and the context is not empty.
        """
        with self._guard:
            self._context.stats.calibrate_ns += self._loaded.have_planner(seconds, must=True, log=log)

    def _begin(self) -> DraftSettings:
        """Check the settings, which may have changed, begin new figures, and have a planner if the mode needs it."""
        settings = self.draft_settings
        self.engine.check_draft(settings)
        self._context.begin_stats()
        if self.draft == "auto":
            self._context.stats.calibrate_ns += self._loaded.have_planner()
        return settings

    def _explain(self) -> None:
        if self._loaded_model is not None:  # a stream may outlive the model
            self._loaded_model.explain(self._context.stats, self.draft_settings)

    # what Llama's own methods read and set

    def n_ctx(self) -> int:
        """Positions of the context, or of each sequence's part of it."""
        return int(super().n_ctx()) if self._loaded_model is None else self.engine.n_ctx

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the context. Set fewer to go back, or more after decoding them with llama.cpp itself."""
        return self._context.n_tokens

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._context.set_n_tokens(n)

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """Tokens of the context, int32 (n_ctx,); the first n_tokens are valid."""
        return self._context.input_ids

    @input_ids.setter
    def input_ids(self, ids: npt.NDArray[np.intc]) -> None:
        self._context.input_ids = ids

    @property
    def scores(self) -> npt.NDArray[np.single]:
        """Logits, float32 (n_ctx, n_vocab), with `logits_all`."""
        return self._context.scores

    @scores.setter
    def scores(self, scores: npt.NDArray[np.single]) -> None:
        self._context.scores = scores

    @property
    def context_params(self) -> Any:
        """The context's parameters. Llama sets them in its constructor, behind the model's; ours go into both."""
        return self._context_params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self._loading.preset_model(self.model_params)
        self._loading.preset_context(params)
        self._context_params = params

    @property
    def _model(self) -> Any:
        """The model. Llama loads it before it makes the context, whose sequences depend on it."""
        return self._llama_model

    @_model.setter
    def _model(self, model: Any) -> None:
        self._llama_model = model
        guard_tokenizer(model)
        self._loading.load_adapters(model.model)
        self._loading.fit_context(self._context_params, model.model)

    # generating

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        grammar: LlamaGrammar | None = None,
        *,
        ignore_eos: bool = False,
        sampling: Sampling | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Yield the tokens that follow `tokens`, as `Llama.generate` does and with its arguments.

        The consumer may `send` tokens, which are appended behind the last one. The generator can be closed at any
        token; the context then holds all tokens before it, as Llama's does. Stopping criteria get the logits that the
        token was sampled from.

        Args beside those of `Llama.generate`:
            ignore_eos: never sample a token that ends the text.
            sampling: all of llama.cpp's sampling options, instead of the arguments above.

        Raises:
            ContextFullError: no room for the tokens, or for one more.
        """
        sampling = sampling or self._sampling(
            temperature=temp,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            mirostat_mode=mirostat_mode,
            mirostat_tau=mirostat_tau,
            mirostat_eta=mirostat_eta,
            logits_processor=logits_processor,
            grammar=grammar,
            ignore_eos=ignore_eos,
        )
        prompt = [int(t) for t in tokens]

        def begin() -> Generation:
            self._sampler = SamplerChain(sampling, self.engine.vocab, self.engine.n_ctx)
            self._sampler.see(prompt)
            return Generation(self._sampler, self._begin(), stopping_criteria)

        yield from self._context.generate(self._guard, begin, prompt, reset, self._explain)

    def _check_length(self, text: str) -> None:
        """Refuse a text that cannot fit before it is tokenized, unless the tokenizer is not llama.cpp's."""
        if type(self.tokenizer_) is LlamaTokenizer:
            self.engine.vocab.check_length(text, self.engine.n_ctx)

    def _create_completion(
        self, prompt: str | list[int], suffix: str | None = None, *args: Any, **options: Any
    ) -> Iterator[dict[str, Any]]:
        """What Llama's `create_completion` is made of; a prompt that has no room is a `ContextFullError`."""
        for text in (prompt, suffix):
            if isinstance(text, str):
                self._check_length(text)
        try:
            yield from super()._create_completion(prompt, suffix, *args, **options)
        except ValueError as e:
            if not str(e).startswith(_NO_ROOM):
                raise
            raise ContextFullError(f"{e}. Use a larger n_ctx.") from None

    @overload
    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        stream: Literal[False] = False,
        **common: Any,
    ) -> list[BatchResult]: ...
    @overload
    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        stream: Literal[True],
        **common: Any,
    ) -> BatchStream: ...
    def generate_batch(  # type: ignore[misc]  # the overloads leave out what both have in common
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        max_tokens: int | None = 16,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        rng: Rng | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int, float] | None = None,
        ignore_eos: bool = False,
        logprobs: int | None = None,
        stream: bool = False,
        progress: bool | None = None,
    ) -> list[BatchResult] | BatchStream:
        """Complete prompts, `n_parallel` at a time; all of them share each step's draft graph and pass of the target.

        A prompt gets what `create_completion` would give it alone; an error ends only its own prompt. When one ends,
        the next takes its slot, and prompts with a common prefix share what was evaluated. The context may be cleared.

        Args:
            prompts: texts, or tokens.
            options: for each prompt the arguments below that differ from those given here.
            max_tokens: None = as many as the prompt's share of n_ctx holds.
            stop: strings that end a text, and are cut off.
            seed: of each prompt's sampler; None = the model's.
            rng: what it draws with, see `Sampling.rng`; None = the model's.
            temperature: 0 = greedy. This and the following: as `create_completion` takes them.
            top_k: see there.
            top_p: see there.
            min_p: see there.
            typical_p: see there.
            repeat_penalty: see there.
            frequency_penalty: see there.
            presence_penalty: see there.
            tfs_z: see there.
            mirostat_mode: see there.
            mirostat_tau: see there.
            mirostat_eta: see there.
            logits_processor: see there; a processor gets the tokens of its own prompt.
            grammar: see there.
            logit_bias: see there.
            ignore_eos: never draw a token that ends the text.
            logprobs: return the log-probability of each token too, and those of so many of the most probable ones.
            stream: return a generator of (number of the prompt, token, new text) instead. The token that ends a text is
                included; None stands for an end without a token. The generator's return value is the results. Closing
                it ends all prompts.
            progress: show a tqdm bar over the prompts; None = on a terminal.

        Returns:
            One result per prompt, in their order.

        Raises:
            TypeError: prompts is one text instead of a list of them.
            ValueError: an argument cannot work; the message names the prompt.
            ContextFullError: a prompt and its max_tokens do not fit into n_ctx.
        """
        if isinstance(prompts, (str, bytes)):
            raise TypeError(f"generate_batch() takes a list of prompts, found one {type(prompts).__name__}: say [text]")
        common = {name: value for name, value in locals().items() if name not in _NOT_SAMPLING}
        for option in options or ():
            unknown = set(option) - set(common)
            if unknown:
                raise TypeError(f"generate_batch() got unexpected options {sorted(unknown)}")
        run = self._run_batch(prompts, options, common, progress)
        if stream:
            return run
        while True:
            try:
                next(run)
            except StopIteration as e:
                results: list[BatchResult] = e.value
                return results

    def _run_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Sequence[Mapping[str, Any]] | None,
        common: Mapping[str, Any],
        progress: bool | None,
    ) -> BatchStream:
        """`generate_batch`, step by step."""
        if options is not None and len(options) != len(prompts):
            raise ValueError(f"expected options for each of {len(prompts)} prompts, found {len(options)}")
        with self._guard:
            start = perf_counter_ns()
            requests = make_requests(prompts, options, common, self._prompt_tokens, self._sampling, self.engine)
            total_ns = perf_counter_ns() - start
            run, calibrate_ns = self._begin_run(requests)
        bar = progress_bar(len(prompts), progress)
        return (yield from run.stream(self._guard, bar, self._end_run, total_ns, calibrate_ns))

    def _begin_run(self, requests: Sequence[Request]) -> tuple[BatchRun, int]:
        """Add requests to the engine; also returns the nanoseconds that measuring took before."""
        settings = self._begin()
        return BatchRun(self.engine, requests, settings), self._context.stats.calibrate_ns

    def _end_run(self, stats: Stats) -> None:
        self._context.stats = stats
        self._explain()

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """Tokens of a prompt as `create_completion` makes them."""
        if not isinstance(prompt, str):
            return [int(t) for t in prompt]
        self._check_length(prompt)
        tokens = self.tokenize(prompt.encode("utf-8"), add_bos=False, special=True) if prompt else []
        bos = self.token_bos()
        return [bos, *tokens] if bos >= 0 and (self._model.add_bos_token() or not tokens) else tokens

    # chat

    @cached_property
    def chat_templates(self) -> ChatTemplates:
        """The model's chat templates, in llama.cpp's own code."""
        return ChatTemplates(ctypes.cast(self._model.model, ctypes.c_void_p).value)

    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *args: Any, **options: Any
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Answer a conversation, as `Llama.create_chat_completion` does and with its arguments.

        With `chat_format="auto"` llama.cpp's own chat code does it, with tools, reasoning and JSON schemas as
        llama-server has them. Then there are more arguments: those of a request to llama-server that concern the
        conversation (`parallel_tool_calls`, `chat_template_kwargs`, `reasoning_format`, ...), `enable_thinking`,
        `reasoning_budget` (tokens) and `reasoning_budget_message`.

        Raises:
            ValueError: the request cannot work; or (from a stream while it runs) the model wrote what the template's
                format does not allow.
        """
        if self.chat_format != "auto" or self.chat_handler is not None:
            return super().create_chat_completion(messages, *args, **options)  # type: ignore[no-any-return]
        arguments = chat_arguments((messages, *args), options)
        chat = Chat(arguments, self._projector, self._given["media_http"])
        with self._guard:
            params = chat.apply(self.chat_templates)
            self._check_length(params.prompt)
            request = chat.request(params, self.engine, self.tokenize, self._sampling)
        model = arguments["model"] or self.model_path
        completion = ChatCompletion(params, model, self.engine.vocab, lambda: self._begin_chat(request))
        return completion.stream() if arguments["stream"] else completion.whole()

    def _begin_chat(self, request: Request) -> tuple[EngineSequence, Iterator[str]]:
        with self._guard:
            run, calibrate_ns = self._begin_run([request])

        def texts() -> Iterator[str]:
            for _, _, text in run.stream(self._guard, progress_bar(1, False), self._end_run, 0, calibrate_ns):
                yield text
            if run.sequences[0].result.error is not None:
                raise run.sequences[0].result.error

        return run.sequences[0], texts()

    # evaluating and drawing token by token

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens behind those of the context, in target and draft.

        Raises:
            ContextFullError: they do not fit; nothing is evaluated then.
        """
        with self._guard, self._context.timed():
            self._context.eval([int(t) for t in tokens])

    def eval_media(self, media: Media) -> None:
        """Evaluate an image behind the tokens of the context, in target and draft.

        Raises:
            ContextFullError: it does not fit; nothing is evaluated then.
            ValueError: its rows see each other, and n_batch or n_ubatch is smaller than it.
        """
        with self._guard, self._context.timed():
            self._context.eval_media(media)

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        idx: int | None = None,
    ) -> int:
        """Draw one token, as `Llama.sample` does, from the logits of the last token or of the one at position `idx`."""
        with self._guard:
            chain = self._sampler
            if chain is None:
                sampling = self._sampling(
                    temperature=temp,
                    top_k=top_k,
                    top_p=top_p,
                    min_p=min_p,
                    typical_p=typical_p,
                    repeat_penalty=repeat_penalty,
                    frequency_penalty=frequency_penalty,
                    presence_penalty=presence_penalty,
                    mirostat_mode=mirostat_mode,
                    mirostat_eta=mirostat_eta,
                    mirostat_tau=mirostat_tau,
                    logits_processor=logits_processor,
                    grammar=grammar,
                )
                chain = SamplerChain(sampling, self.engine.vocab, self.engine.n_ctx)
            return self._context.sample(chain, idx)

    def _sampling(
        self,
        *,
        logits_processor: Sequence[Any] | None,
        grammar: LlamaGrammar | None,
        seed: int | None = None,
        rng: Rng | None = None,
        **options: Any,
    ) -> Sampling:
        """Llama's sampling options as the engine's."""
        if grammar is not None:
            options["grammar"], options["grammar_root"] = grammar_text(grammar)
        return Sampling(
            seed=self._seed if seed is None else seed,
            rng=rng or self.rng,
            penalty_last_n=self.last_n_tokens_size,
            logits_processors=list(logits_processor or ()),
            **options,
        )

    # saved states

    def reset(self) -> None:
        """Clear the context."""
        with self._guard:
            self._context.forget()

    def save_state(self) -> Eagle3State:
        """Save the context of target and draft."""
        with self._guard:
            self._loading.check_servers()
            engine = self._context.flush()
            draft_state = b"" if engine.drafter is None else engine.drafter.state_get()
            return Eagle3State(super().save_state(), draft_state, self._loading.pair_id, engine.target.spans())

    def load_state(self, state: LlamaState) -> None:
        """Go back to a saved state. One that a plain Llama saved works too; drafting then pauses until the next prompt.

        Raises:
            IncompatibleDraftError: the state belongs to another pair, or does not fit the context.
            ValueError: the state is damaged, or was saved with another model or n_ctx.
        """
        with self._guard:
            check_state(state, self._loading.pair_id, self._n_ctx)
            self._loading.check_servers()
            with self._context.filling(state):
                super().load_state(state)

    # figures and features

    @property
    def last_token_drafted(self) -> bool:
        """Whether the token that `generate` yielded last had been drafted."""
        return self._context.last_token_drafted

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """Text of tokens, as `Llama.detokenize` gives it; but pieces longer than 32 bytes are not lost."""
        if type(self.tokenizer_) is not LlamaTokenizer:
            return bytes(super().detokenize(tokens, prev_tokens, special))
        text = b"".join([self.engine.vocab.piece(token, special) for token in tokens if token >= 0])
        return text[1:] if text[:1] == b" " and tokens[0] == self._model.token_bos() else text

    @property
    def features(self) -> Features:
        """Hidden states of what `eval` or `generate` decoded last, (n_tokens, n_boundaries, n_embd); see `Features`."""
        with self._guard:
            if self.tap is None:
                raise Eagle3Error("no features: give a draft_model_path or draft_target_layers")
            return Features(
                self.tap.rows,
                tokens=self.target.tokens,
                positions=self.target.pos,
                boundaries=self.tap.boundaries,
            )

    @property
    def stats(self) -> Stats:
        """Figures of everything since the model was loaded."""
        return self._context.total_stats

    @property
    def last_stats(self) -> Stats:
        """Figures of the last (or running) generation."""
        return Stats() + self._context.stats
