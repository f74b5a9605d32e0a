"""A loaded model: target and drafters on an engine, and the costs of their passes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from os import PathLike
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import llama_cpp.llama_cpp as lib

from .._core import Target, local_accelerators
from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..draft.costs import experts_of, keep_corrections, keep_priors, learn_costs, load_costs, machine
from ..draft.head import Head
from ..draft.kinds import LoadedTarget
from ..engine import DraftSettings, Engine, PrefixFolder, Vocab
from ..errors import IncompatibleDraftError, ModelFileError
from ..files.fingerprint import fingerprint, once_fingerprinted
from ..files.model_file import file_errors
from ..files.prefix_file import Maker
from ..files.prefix_folder import open_folder
from ..log import without_details
from ..machine import free_memory
from .batch_invariance import Loss, attends, describe, losses
from .llama_loading import LoadedLlama
from .loading import Loading, ids_of

if TYPE_CHECKING:
    from ..config.eagle3_options import ConstructorOptions

_SECONDS, _SECONDS_NGRAM = 2.0, 0.3
"""To spend on measuring what passes cost; for n-grams alone, of which most texts have little, nobody should notice."""
_OF_WEIGHTS = ("draft_n_min", "draft_p_min", "draft_tree_depth", "draft_tree_topk", "draft_tree_tokens")
_N_CACHE_BYTES = 8 << 30
_N_ROWS = 64  # passes of more rows than this are not measured

_IN_FILES = (
    *("type_k", "type_v", "flash_attn_type", "swa_full", "n_rs_seq", "attention_type", "pooling_type"),
    *("rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor"),
    *("yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx"),
)
"""Fields of a llama_context_params that change hidden states, or the form of states in a file."""
_log = logging.getLogger("llama_cpp_eagle3")


class LoadedModel:
    """The engine on a target and its head. It does not own the target's model and context."""

    def __init__(self, llama: LoadedLlama, loading: Loading, given: ConstructorOptions, log: Callable[[str], None]):
        """Load the drafters, and make the engine. loading: the one that has loaded the target.

        Raises:
            ModelFileError, IncompatibleDraftError: see `Eagle3Llama`.
        """
        self._loading, self._log = loading, log
        self._model, self._model_params = llama.model.model, llama.model.params
        self._ctx, self._context_params = llama.ctx.ctx, llama.ctx.params
        self._tensor_split = llama.options["tensor_split"]
        self._experts = experts_of(llama.model.metadata())
        with file_errors(llama.path):
            target = loading.make_target(self._ctx, self._model, log)
        self._sides = target.kernel_sides
        draft_required = given["draft_sources"] is not None or given["draft_model_path"] is not None
        self.head = self._load_head(target, draft_required)
        """The head; None without one."""
        self._maker = self._begin_maker(llama)
        vocab = Vocab(self._model)
        servers, folder = loading.servers, given["prefix_cache_dir"]
        watch: dict[str, Any] = {} if servers is None else {"before_step": servers.check, "after_pass": servers.check}
        ngram = loading.make_ngram_drafter(given["draft_ngram_store"], given["draft_corpus"], vocab, log)
        self.engine = Engine(
            target,
            vocab,
            n_batch=llama.options["n_batch"],
            drafters=() if self.head is None else self.head.drafters,
            tap=loading.tap,
            draft_model=llama.options["draft_model"],
            ngram=ngram,
            why_no_source=loading.why_nothing_drafts,
            **watch,
            log=log,
            prefill_budget=given["prefill_budget"],
            prefix_cache_bytes=cache_bytes(given["prefix_cache_bytes"]),
            ctx_checkpoints=given["ctx_checkpoints"],
            checkpoint_min_step=given["checkpoint_min_step"],
            prefix_folder=None if folder is None else self._begin_folder(folder, given["prefix_cache_disk_bytes"]),
            n_swa=int(lib.llama_model_n_swa(self._model)),
            swa_full=bool(self._context_params.swa_full),
        )
        self.n_state_bytes = 0
        """Bytes of recurrent state that the target keeps per sequence; 0 without a head, or if it only attends."""
        try:
            if self.head is not None:
                self.n_state_bytes = _measure_state(target, llama.model.token_bos())
            loading.check_servers()
            self._tell(has_draft_model=llama.options["draft_model"] is not None)
            self._tell_files(folder)
        except BaseException:
            self.close()
            raise

    @property
    def maker(self) -> Maker:
        """Identifies the models and settings that can use saved prefixes of this one.

        Of a file that this machine has not seen, it waits until a thread has read all of it.
        """
        return self._maker.result()

    def _begin_maker(self, llama: LoadedLlama) -> Future[Maker]:
        loading, params, about = self._loading, self._context_params, llama.model.metadata()
        has_accelerator = bool(local_accelerators()) or loading.servers is not None
        n_streams = 1 if params.kv_unified else params.n_seq_max
        # some models have other factors of RoPE for long contexts: the length then counts
        n_short = int(about.get(f"{about.get('general.architecture')}.rope.scaling.original_context_length", 0))
        settings: dict[str, Any] = {name: getattr(params, name) for name in _IN_FILES}
        settings |= {
            "kv_overrides": {str(key): str(value) for key, value in (llama.options["kv_overrides"] or {}).items()},
            "model_options": {k: v for k, v in loading.model.costs_key().items() if k != "lora"},
            "n_streams": n_streams,
            "long_context": 0 < n_short < params.n_ctx // n_streams,
            "n_gpu_layers": self._model_params.n_gpu_layers if has_accelerator else 0,
            "cpu_kernels": {} if loading.kernels is None else loading.kernels.n_weights,
            "versions": [__version__, LLAMA_CPP_PYTHON_VERSION],
        }
        target, drafts, adapters = loading.model_path, loading.draft_paths, loading.model.lora
        given = loading.draft.given
        draft_settings: dict[str, Any] = {}
        if drafts:
            draft_settings = {
                "draft_n_ctx": given["draft_n_ctx"],
                "draft_type_k": loading.draft.type_k,
                "draft_type_v": loading.draft.type_v,
            }

        def make() -> Maker:
            lora = [(fingerprint(path), scale) for path, scale in adapters]
            ids = fingerprint(target), ids_of(drafts, fingerprint)
            return Maker(ids[0], {**settings, "lora": lora}, ids[1], draft_settings)

        paths = [target, *(path for path, _ in adapters), *(path for path in drafts if path is not None)]
        return once_fingerprinted(paths, make)

    def _begin_folder(self, path: str | PathLike[str], n_bytes_max: int | None) -> Future[PrefixFolder | None]:
        """Open the prefix cache's folder, in a thread if the files that name its files must be read first."""
        folder: Future[PrefixFolder | None] = Future()

        def opened(maker: Future[Maker]) -> None:
            try:
                folder.set_result(open_folder(path, n_bytes_max, maker.result()))
            except Exception as e:
                folder.set_exception(e)

        self._maker.add_done_callback(opened)
        return folder

    def _load_head(self, target: Target, draft_required: bool) -> Head | None:
        """Load the drafter; None if it cannot be loaded and is not required."""
        loading, log, files, params = self._loading, self._log, self._loading.draft_files, self._context_params
        if not files:
            return None
        draft = loading.draft
        place = LoadedTarget(
            model=self._model,
            ctx=self._ctx,
            model_params=self._model_params,
            context_params=params,
            n_vocab=int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))),
            n_ctx=target.n_ctx,
            n_seq=draft.given["n_parallel"],
            is_pooled=draft.is_pooled,
            has_trees=target.n_leaves_max > 1,
            draft_n_ctx=draft.given["draft_n_ctx"],
            n_threads=draft.given["draft_n_threads"] or max(1, int(params.n_threads)),
            n_gpu_layers=draft.given["draft_n_gpu_layers"],
            device=loading.draft_device,
            type_k=draft.type_k,
            type_v=draft.type_v,
        )
        try:  # the functions must not hold self, as that would be a circle of references
            makes = [partial(loading.make_drafter, file, place, log) for file in files]
            return Head(makes, draft.type)
        except (IncompatibleDraftError, ModelFileError) as e:
            if draft_required:
                raise
            loading.drop_draft()
            log(f"the {files[0].describe()} does not draft: {e}")
            return None

    def _tell(self, *, has_draft_model: bool) -> None:
        """Log what runs where, and with which head. has_draft_model: a `LlamaDraftModel` of llama_cpp drafts."""
        self._log(self.where)
        if told := self.batch_invariance:
            self._log(told)
        if self._loading.model.leaves_gpu_idle(self._model_params.n_gpu_layers):
            _log.warning(
                "the model runs on the CPU although this machine has %s: use n_gpu_layers=-1",
                " and ".join(f"{device.name} ({device.description})" for device in local_accelerators()),
            )
        draft = self._loading.draft
        wants_none = draft.settings.n_max == 0 or draft.given["draft_sources"] in ((), [])
        if self.head is not None:
            self._log(self.description)
        elif draft.settings.mode != "auto" and not wants_none and not has_draft_model:
            _log.warning(
                "nothing is drafted: %s of a fixed size are a drafter's with weights (draft_model_path), and there is "
                'none; n-grams draft with draft="auto"',
                "trees" if draft.settings.mode == "tree" else "chains",
            )
        elif draft.has_text_alone and (unused := [name for name in _OF_WEIGHTS if draft.given[name]]):  # type: ignore[literal-required]
            _log.warning(
                "%s: for a drafter with weights (draft_model_path), and there is none; n-grams draft what pays",
                ", ".join(unused),
            )

    def _tell_files(self, folder: object) -> None:
        """Log the prefixes that earlier runs have left in files."""
        stats = self.engine.slots.cache.stats
        if not self._maker.done():
            self._log(
                f"prefix cache: '{folder}' is used once a thread has read all of the model's files, which it knows then"
            )
        if self.engine.slots.cache.has_folder:
            found = f"{stats.n_prefix_files} prefixes and {stats.n_state_files} states, {stats.n_file_bytes >> 20} MiB"
            self._log(f"prefix cache: {found} of at most {stats.n_file_bytes_max >> 20} MiB in '{folder}'")

    # what it is

    @property
    def pair_id(self) -> tuple[str, str]:
        """Fingerprints of target and head; both empty without a head."""
        return self._loading.pair_id

    @property
    def description(self) -> str:
        """One line about the loaded drafters."""
        pair, tap, target = self._loading.pair, self._loading.tap, self.engine.target
        assert self.head is not None
        assert pair is not None
        reads = "reads tokens alone"
        if tap is not None:
            reads = f"reads {tap.boundaries} of {pair.target.n_layer} layers by the {tap.kind} tap"
        kinds = " and the ".join(draft.describe() for draft in pair.drafts)
        return (
            f"draft by the {kinds}, on {self._draft_device}, {reads}"
            + "".join(f" ({draft.note})" for draft in pair.drafts if draft.note)
            + f"; rejected tokens go by {target.rollback_kind}"
            + (f", {self.n_state_bytes} bytes of state per sequence" if self.n_state_bytes else "")
        )

    @property
    def where(self) -> str:
        """One line about the devices of target and drafters."""
        n_layer, servers, chosen = (
            int(lib.llama_model_n_layer(self._model)),
            self._loading.servers,
            self._loading.model.devices,
        )
        devices = [device.name for device in local_accelerators()]
        if chosen is not None:
            devices = [name for name in chosen if name not in ("none", "CPU")]
        n_on = min(self._model_params.n_gpu_layers, n_layer + 1) if devices or servers is not None else 0
        if servers is not None and chosen is None:
            devices.append("rpc servers")
        layers = f"{n_on} of {n_layer + 1} layers (with the output's) on {', '.join(devices)}" if n_on else "on CPU"
        params = self._context_params
        threads = f"{params.n_threads} CPU threads"
        if params.n_threads_batch != params.n_threads:
            threads += f", {params.n_threads_batch} for batches"
        head = "" if self.head is None else f"; head on {self._draft_device}"
        for n in filter(None, self._draft_vocab):
            head += f", drafts {n} of {self.engine.vocab.n_tokens} tokens and those of the texts"
        return f"target {layers}{head}; {threads}; {self.attention}; {self.cpu_kernels_used}"

    @property
    def attention(self) -> str:
        """Whether the target has flash attention, and what computes its attention on a CPU."""
        has_flash = self._context_params.flash_attn_type == lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        by = ", by our kernels" if attends(self._sides) else ""
        return f"{'flash attention' if has_flash else 'no flash attention'}{by}"

    @property
    def batch_invariance(self) -> str:
        """One line: whether text depends on other rows of its passes, and if so, which operations and why."""
        return describe(self._sides, self.losses)

    @property
    def losses(self) -> list[Loss]:
        """Operations of the target that ggml computes, so that rows depend on others, with settings against that."""
        return losses(self._sides, self._loading.kernel_choice)

    @property
    def _draft_device(self) -> str | None:
        """Where the drafters run; None without one."""
        return ", ".join(dict.fromkeys(d.device for d in self.engine.drafters)) or None

    @property
    def _draft_kernels(self) -> dict[str, int]:
        """[name of a CPU kernel]: matrices of the drafters that it computes."""
        return dict(sum((Counter(d.cpu_kernels) for d in self.engine.drafters), Counter[str]()))

    @property
    def _draft_vocab(self) -> list[int]:
        """How many tokens each drafter always drafts; 0: it drafts all."""
        return [d.draft_vocab for d in self.engine.drafters]

    @property
    def cpu_kernels_used(self) -> str:
        """Which of our kernels multiply which weights on a CPU, or why none do."""
        choice, kernels = self._loading.kernel_choice, self._loading.kernels
        if kernels is None:
            return "ggml's own kernels alone: cpu_kernels is off"
        used = kernels.n_weights
        parts = [f"{n} matrices by {name}{choice.describe(name)}" for name, n in used.items()]
        if self.head is not None:
            parts += [f"{n} of the head by {name}" for name, n in self._draft_kernels.items()]
        parts += [f"ggml's own instead of {name}{choice.describe(name)}" for name in choice.refused]
        return "; ".join(parts) or f"ggml's own kernels alone: {kernels.why_not}"

    # what passes cost

    def costs_key(self) -> dict[str, Any]:
        """Everything that measured costs depend on, ready for JSON: of the target's, and of its drafters' alone."""
        loading, params = self._loading, self._context_params
        draft, tap = loading.draft, loading.tap
        has_accelerator = bool(local_accelerators()) or loading.servers is not None
        target_id, draft_id = loading.header_ids
        target = {
            "target": target_id,
            "boundaries": None if tap is None else tap.boundaries,
            "tap": None if tap is None else tap.kind,
            "n_gpu_layers": self._model_params.n_gpu_layers if has_accelerator else 0,
            "tensor_split": self._tensor_split,
            "rpc_servers": loading.rpc_servers,
            "machine": machine(),
            "n_threads": [params.n_threads, params.n_threads_batch],
            "n_ubatch": min(params.n_ubatch, _N_ROWS),
            "offload_kqv": bool(params.offload_kqv),
            "cpu_kernels": {} if loading.kernels is None else loading.kernels.n_weights,
            "types": [params.type_k, params.type_v],
            "flash_attn_type": params.flash_attn_type,
            "versions": [__version__, LLAMA_CPP_PYTHON_VERSION],
            **loading.model.costs_key(),
        }
        drafters = {
            "draft": draft_id or None,
            "draft_device": self._draft_device,
            "n_threads": draft.given["draft_n_threads"],
            "cpu_kernels": self._draft_kernels,
            "draft_type": draft.type,
            "draft_vocab": self._draft_vocab,
            "types": [draft.type_k, draft.type_v],
        }
        return {"target": target, "drafters": drafters}

    def convert_draft(self, draft_type: int | None) -> None:
        """Load the head again with its matrices in another ggml type; its cache is empty then."""
        if self.head is not None:
            self.head.convert(draft_type, self.engine.set_drafters)

    def use_stored_type(self) -> None:
        """Convert the head to the type that was measured to be the fastest, if it was measured before."""
        costs = None if self.head is None else load_costs(self.costs_key())
        if costs is not None:
            self.convert_draft(costs.draft_type)

    def have_costs(
        self, seconds: float | None = None, *, must: bool = False, log: Callable[[str], None] | None = None
    ) -> int:
        """Let the engine's policy learn the costs that it needs: stored ones, and measured now what is missing.

        For n-grams alone what is missing is guessed until the next process, and real passes correct it.

        Args:
            seconds: to spend; None: 2, for n-grams alone at most 0.3.
            must: raise if nothing is known and nothing can be measured.
            log: called with a line before it begins, and with the results; None: by `verbose`, for n-grams alone not at
                all.

        Returns:
            The nanoseconds that this took.

        Raises:
            Eagle3Error: `must` is given, and the context is not empty.
        """
        drafting, start = self.engine.drafting, perf_counter_ns()
        is_text = self.head is None
        may_guess = is_text and seconds is None
        knows = drafting.policy.is_measured and (may_guess or not drafting.is_guessed)
        if knows or (is_text and drafting.ngram is None):
            return 0
        with without_details():
            learn_costs(
                self.engine,
                self.head,
                self.costs_key,
                log or (_log.debug if may_guess else self._log),
                seconds or (_SECONDS_NGRAM if is_text else _SECONDS),
                must,
                self._experts,
            )
        return perf_counter_ns() - start

    def prepare_drafts(self, settings: DraftSettings) -> int:
        """Measure what settings need; returns the nanoseconds that measuring took."""
        return self.have_costs() if settings.mode == "auto" else 0

    def close(self) -> None:
        """Free engine and head, while the target's model and context still exist."""
        if not self.engine.drafting.is_guessed:
            keep_corrections(self.engine, self.head, self.costs_key)
        keep_priors(self.engine.drafting.policy, self.costs_key)
        # in this order: drafters use the model's tables, the context calls the tap
        self.engine.close()
        if self.head is not None:
            self.head.close()


def cache_bytes(given: int | None) -> int:
    """Bytes of host memory for prefixes: the given number, else 8 GiB or a quarter of the free memory, if less."""
    if given is not None:
        return given
    free = free_memory()
    return _N_CACHE_BYTES if free is None else min(_N_CACHE_BYTES, free // 4)


def _measure_state(target: Target, token: int) -> int:
    """Bytes of recurrent state that an empty target keeps per sequence; 0 for targets that only attend.

    token: to be evaluated for that, if it is not negative.
    """
    if target.rollback_kind == "trim":
        return 0
    target.decode([max(0, token)], 0, False)
    n_bytes = target.n_state_bytes()
    target.truncate(0)
    return n_bytes
