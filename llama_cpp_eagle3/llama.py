"""`Eagle3Llama`: a `llama_cpp.Llama` that drafts with an EAGLE-3 head: how it is loaded, closed and pickled."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from llama_cpp import LLAMA_FLASH_ATTN_TYPE_ENABLED

from ._core import Guard, NgramStore
from .arguments import check_names
from .context import Context
from .engine import Engine, Vocab, check_rng
from .errors import IncompatibleDraftError, ModelFileError
from .generating import GeneratingLlama
from .guard import bury
from .head import Head
from .loading import Loading, measure_state
from .log import tell
from .media import AllowHttp, Projector, hook_handler
from .model_file import check_file, file_errors
from .model_options import ModelOptions
from .mtp import has_block
from .options import DraftOptions, cache_types, check_values, set_defaults
from .planning import keep_corrections, load_costs
from .simple import is_model
from .stats import Stats

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .arguments import Eagle3LlamaOptions, LlamaOptions

_log = logging.getLogger("llama_cpp_eagle3")

DRAFT_SETTINGS = (
    "draft", "draft_sources", "draft_n_max", "draft_ngram_n_max", "draft_n_min",
    "draft_p_min", "draft_tree_depth", "draft_tree_topk", "draft_tree_tokens",
)  # fmt: skip
"""Attributes that may be changed between two generations."""

_FROM_PRETRAINED = (
    "filename", "additional_files", "local_dir", "cache_dir", "draft_repo_id", "draft_filename", "token", "offline",
)  # fmt: skip


class Eagle3Llama(GeneratingLlama):
    """A `llama_cpp.Llama` whose generation is sped up by an EAGLE-3 head, without changing what comes out.

    Everything that Llama offers is there. Without a `draft_model_path` it is a plain Llama on the same engine.

    Examples:
        >>> llm = Eagle3Llama("target.gguf", draft_model_path="eagle3.gguf", n_ctx=4096)
        >>> llm("def fibonacci(", max_tokens=64, temperature=0)["choices"][0]["text"]
        >>> llm.last_stats
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        draft_model_path: str | os.PathLike[str] | None = None,
        *,
        draft: Literal["auto", "chain", "tree"] | None = None,
        draft_sources: Sequence[Literal["head", "mtp", "simple", "ngram"]] | None = None,
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
            draft_model_path: the EAGLE-3 head, a GGUF file in llama.cpp's dialect or ours; or a small model of the
                target's vocabulary, which drafts by itself.
            draft: "auto" drafts in every round what pays best on this machine, which may be nothing; "chain" drafts
                draft_n_max tokens, "tree" a tree. Default: "tree" or "chain" if one of their arguments is given, else
                "auto". On targets with a recurrent state, or with swa_full=False, trees become chains.
            draft_sources: what may draft in "auto": "head"; "mtp", the block for multi-token prediction in the target's
                own file; "simple", the small model that draft_model_path names; and "ngram", which drafts what followed
                before where the text ended as it ends now, and costs nothing. Default: all that there is, "mtp" without
                a draft_model_path; without both "ngram" if draft="auto" is given, else nothing.
            draft_n_max: how many tokens that follow each other to draft per round, at most (default 3, in auto 8).
            draft_ngram_n_max: the same of the n-gram drafter (default: draft_n_max if given, else 32).
            draft_ngram_store: look for the end of the text in what others wrote too: an NgramStore, or True for one
                that all objects of this process on the same model file share.
            draft_n_min: shorter chains are dropped.
            draft_p_min: a chain ends before a token that is less likely than this.
            draft_tree_depth: levels of a tree (default 4); SGLang calls them steps.
            draft_tree_topk: successors that are looked at behind each of the best nodes of a level (default 3).
            draft_tree_tokens: nodes of a tree that are verified (default 8).
            draft_n_gpu_layers: 0 = the head runs on the CPU, > 0 = on this machine's first accelerator, -1 = where the
                target's lm_head is, or on this machine's first accelerator if that is on an rpc server.
            draft_device: where the head runs instead: a ggml device (CPU, CUDA0, ...) or one of `rpc_servers`.
            draft_type: ggml type, such as "q4_0", to which the head's matrices are converted while loading, those that
                are wider: less is read then, and a few drafts fewer are accepted. "f32" leaves all as they are.
                Default: as they are, or with draft="auto" Q4_0, if that was measured to draft so much faster that it
                pays.
            draft_type_k: ggml type of the head's K cache (default "f16").
            draft_type_v: ggml type of the head's V cache (default "f16").
            draft_target_layers: which hidden states to read, as numbers of layers they have passed, instead of what
                the head's file says. Without a head: which ones `features` gives.
            draft_n_threads: CPU threads of the head (default: n_threads).
            n_parallel: how many sequences the engine advances together.
            kv_unified: whether they share n_ctx, each with as much of it as it comes to need; then they can draft
                trees, share prefixes without a copy, and wait for each other when it is full. Else each has n_ctx /
                n_parallel: passes over many sequences are faster, since none looks at the others' cells. Default:
                False, or True for draft="tree".
            prefill_budget: tokens of a prompt that join a pass in which other sequences generate. Default: as many as
                take as long again as their rows alone.
            prefix_cache_bytes: host memory for what finished sequences leave behind, once others need their place.
            rpc_servers: ggml-rpc servers whose devices hold the target's layers, beside this machine's accelerators, as
                ["HOST:PORT", ...] or "HOST:PORT,HOST:PORT". `n_gpu_layers` is -1 (all) then, if it is not given.
            devices: ggml devices for the target's layers, by name and in this order, instead of all accelerators;
                "none": the CPU.
            override_tensor: (regular expression, buffer type) pairs: tensors whose name matches go there, such as
                (r"\\.ffn_(up|down|gate)_exps", "CPU").
            lora: LoRA adapters in GGUF, or (adapter, scale) pairs, that are applied together.
            model_params: fields of llama.h's llama_model_params that Llama has no argument for: check_tensors,
                lazy_mode, load_mode, no_host, use_extra_bufts.
            cpu_kernels: "on": on a CPU our kernels compute passes of up to 16 rows where one serves; "off": ggml's
                alone; "auto": for each format of weights whichever is measured to be faster, once, when a model of it
                is loaded. Other models of the process are computed as before.
            rng: what tokens are drawn with: "gumbel", dice that drafts know, so that more of them are accepted, or
                "llama", llama.cpp's generator, for the texts that it gives for a seed. The probabilities are the same.
            progress: told how far loading the target is, 0 to 1.
            mmproj_path: a multimodal projector, a GGUF file: `create_chat_completion` then takes images or sounds in
                messages, from data URLs, files and bytes; `chat_format` is "auto", if it is not given.
            media_placeholder: token, or its text, that the head sees in place of each row of an image. Default: what
                the projector's type and the vocabulary say.
            media_http: fetch public http addresses that messages name; "private": those of this machine and of
                private networks too.
            checked: load the header of a target that this machine has not seen yet in a process of its own first (a few
                tenths of a second, once), so that no damaged file can end this one.
            **llama_options: what `llama_cpp.Llama` takes; `type_k` and `type_v` also by name. `n_threads` is the number
                of physical cores that the process may use, if it is not given, and `n_threads_batch` the same.

        Raises:
            ModelFileError: a file is missing or is not what it should be.
            IncompatibleDraftError: head and target do not belong together.
            RpcError: one of the rpc_servers cannot be used.
        """
        path = os.path.expanduser(os.fspath(model_path))
        draft_options = DraftOptions.of(
            draft_model_path,
            draft=draft,
            sources=draft_sources,
            n_max=draft_n_max,
            ngram_n_max=draft_ngram_n_max,
            n_min=draft_n_min,
            p_min=draft_p_min,
            tree_depth=draft_tree_depth,
            tree_topk=draft_tree_topk,
            tree_tokens=draft_tree_tokens,
            n_gpu_layers=draft_n_gpu_layers,
            device=draft_device,
            type=draft_type,
            type_k=draft_type_k,
            type_v=draft_type_v,
            target_layers=draft_target_layers,
            n_threads=draft_n_threads,
            n_parallel=n_parallel,
            kv_unified=kv_unified,
            has_block=draft_target_layers is None
            and not any(llama_options.get(name) for name in ("draft_model", "embedding", "vocab_only"))
            and has_block(path),
            is_small_model=draft_model_path is not None and is_model(os.path.expanduser(os.fspath(draft_model_path))),
        )
        check_names("Eagle3Llama", llama_options)
        options: dict[str, Any] = {**llama_options, **cache_types(llama_options)}
        check_values(draft_options, options)
        check_rng(rng)
        set_defaults(options, has_projector=mmproj_path is not None, has_servers=bool(rpc_servers))
        self._guard = Guard(type(self).__name__)
        self._context = Context()
        self._engine: Engine | None = None
        self._head: Head | None = None
        self._stats_before = Stats()
        self._has_explained = False
        self._info = partial(tell, bool(options.get("verbose", True)))
        self._n_state_bytes = 0
        self.n_parallel = n_parallel
        self.draft, self.draft_sources = draft_options.mode, draft_options.sources
        self._ngram_store = draft_ngram_store
        self._must_have_block = draft_sources is not None
        self.draft_n_max, self.draft_ngram_n_max = draft_options.n_max, draft_options.ngram_n_max
        self.draft_n_min, self.draft_p_min = draft_n_min, draft_p_min
        self.draft_tree_depth, self.draft_tree_topk = draft_options.tree_depth, draft_options.tree_topk
        self.draft_tree_tokens = draft_options.tree_tokens
        self.rng = rng
        self._prefill_budget, self._prefix_cache_bytes = prefill_budget, prefix_cache_bytes
        self._mmproj_path = None if mmproj_path is None else os.path.expanduser(os.fspath(mmproj_path))
        self._media_placeholder, self._media_http = media_placeholder, media_http
        self._projector: Projector | None = None
        self._checked = checked
        # Llama's own kind of draft would make it ask for all logits; our loop can draft with it as it is
        draft_model = options.pop("draft_model", None)
        if options.get("lora_path") is not None:
            options["lora_path"] = os.path.expanduser(os.fspath(options["lora_path"]))
        try:
            vocab_only = bool(options.get("vocab_only"))
            more = ModelOptions.of(devices, override_tensor, lora, model_params, cpu_kernels)
            self._loading = Loading(path, draft_options, rpc_servers, more, vocab_only=vocab_only, progress=progress)
            check_file(path, options, checked)
            if self._loading.uses_small_model:
                assert draft_options.model_path is not None
                check_file(draft_options.model_path, {}, checked)
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
        """Make the engine, with the head if there is one."""
        loading, context = self._loading, self._context
        with file_errors(self.model_path):
            target = loading.make_target(self._ctx.ctx, self._model.model, self._info)
        self._n_ctx = target.n_ctx
        if len(self.input_ids) < self._n_ctx:  # llama.cpp rounds n_ctx up
            self.input_ids = np.zeros(self._n_ctx, dtype=np.intc)
            if self._logits_all:
                self.scores = np.ndarray((self._n_ctx, self._n_vocab), dtype=np.single)
        context.sequence.logits_all = self._logits_all
        if loading.has_head:
            # not self, which would keep itself alive
            model, n_ctx, n_threads, n_batch = self._model.model, self._n_ctx, self.n_threads, self.n_batch
            log = self._info
            context_params = self.context_params
            if loading.uses_block:
                try:
                    self._head = Head(lambda _: loading.make_block_drafter(model, context_params, target), None)
                except (IncompatibleDraftError, ModelFileError) as e:
                    if self._must_have_block:
                        raise
                    loading.drop_block()
                    self.draft_sources = loading.draft.sources
                    self._info(f"the target's own block for multi-token prediction does not draft: {e}")
            elif loading.uses_small_model:
                self._head = Head(lambda _: loading.make_small_drafter(model, context_params, target, log), None)
            else:
                self._head = Head(
                    lambda draft_type: loading.make_drafter(model, n_ctx, n_threads, n_batch, draft_type, log),
                    self.draft_type_asked,
                )
        self._engine = context.engine = Engine(
            target,
            Vocab(self._model.model),
            n_batch=self.n_batch,
            drafter=None if self._head is None else self._head.drafter,
            tap=loading.tap,
            draft=self.draft_settings,
            draft_model=self.draft_model,
            ngram=loading.make_ngram_drafter(self._ngram_store),
            n_rs_seq=self.context_params.n_rs_seq,
            before_step=loading.check_servers,
            log=self._info,
            prefill_budget=self._prefill_budget,
            prefix_cache_bytes=self._prefix_cache_bytes,
        )
        self._info(self.where)
        if loading.leaves_gpu_idle(self.model_params):
            _log.warning(
                "the model runs on the CPU although this machine has %s: say n_gpu_layers=-1",
                " and ".join(loading.accelerators),
            )
        hook_handler(self.chat_handler, self, int(self._ctx.ctx))
        if self._mmproj_path is not None:
            self._projector = Projector(
                self._mmproj_path,
                self.model_address,
                n_threads=self.n_threads_batch,
                use_gpu=self.model_params.n_gpu_layers != 0,
                flash_attn=self.context_params.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_ENABLED,
                placeholder=self._media_placeholder,
            )
            self._info(self._projector.describe())
        if self._head is None:
            return
        self._n_state_bytes = measure_state(self.target, self.token_bos())
        self._info(loading.describe(self._head.drafter, self.target, self._n_state_bytes))
        if self.draft == "auto":
            costs = load_costs(self.costs_key())
            if costs is not None:
                self.convert_draft(costs.draft_type)

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._engine is None:
            return f"<{name} closed>"
        head = "" if self.draft_model_path is None else f" draft={self.draft_model_path!r}"
        return f"<{name} {self.model_path!r}{head} n_ctx={self.n_ctx()} n_parallel={self.n_parallel}>"

    def __enter__(self) -> Self:
        with self._guard:
            return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            local_dir_use_symlinks: taken for Llama's sake; huggingface_hub decides that itself now.
            cache_dir: the hub's cache.
            draft_repo_id: the head's repository, USER/REPO or USER/REPO:QUANT (default: the target's, if
                `draft_filename` is given). A Hugging Face checkpoint without a GGUF file is converted for the target,
                once per revision.
            draft_filename: the head's file, or a pattern.
            token: for what is gated or private; default: HF_TOKEN, or what `hf auth login` left.
            offline: take what is on this machine already, and ask nobody. HF_HUB_OFFLINE=1 says so too.
            **kwargs: what the constructor takes.

        Raises:
            HubError: the hub has no such thing, does not give it, or does not answer.
            ImportError: something of the extra is missing.
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
            loading = self.__dict__.get("_loading")
            if loading is not None:
                loading.prepare_free()
            if self._engine is not None:
                keep_corrections(self._engine, self._head, self.costs_key)
            # the draft borrows the model's tables, the context calls the tap: free them in this order
            engine, head, self._engine, self._head = self._engine, self._head, None, None
            self._sampler = None
            self._context.engine = None
            if engine is not None:
                engine.close()
            if head is not None:
                head.drafter.close()
            if self._projector is not None:
                self._projector.close()
            if "_stack" in self.__dict__:
                super().close()
            if loading is not None:
                loading.close()
            for name in ("_llama_model", "_ctx", "_batch"):
                if name in self.__dict__:
                    bury(self.__dict__[name], type(self).__name__)

    def __getstate__(self) -> dict[str, Any]:
        draft = {f"draft_{name}": value for name, value in asdict(self._loading.draft).items()}
        draft |= {"draft": draft.pop("draft_mode")}
        draft |= {name: draft.pop(f"draft_{name}") for name in ("n_parallel", "kv_unified")}
        return {
            **super().__getstate__(),
            **draft,
            **{name: getattr(self, name) for name in DRAFT_SETTINGS},
            "prefill_budget": self._prefill_budget,
            "prefix_cache_bytes": self._prefix_cache_bytes,
            "rpc_servers": self._loading.rpc_servers,
            "devices": self._loading.model.devices,
            "override_tensor": self._loading.model.override_tensor,
            "lora": self._loading.model.lora,
            "model_params": self._loading.model.params,
            "cpu_kernels": self._loading.model.cpu_kernels,
            "rng": self.rng,
            "checked": self._checked,
            "mmproj_path": self._mmproj_path,
            "media_placeholder": self._media_placeholder,
            "media_http": self._media_http,
        }
