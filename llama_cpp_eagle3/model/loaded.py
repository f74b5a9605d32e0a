"""A loaded model: target and drafters on an engine, and the costs of their passes."""

from __future__ import annotations

import atexit
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from os import PathLike
from time import perf_counter_ns
from typing import Any
from weakref import WeakSet

import llama_cpp.llama_cpp as lib

from .._core import Drafter, Eagle3Drafter, NgramStore, Target, local_accelerators
from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..draft.costs import Priors, experts_of, keep_learned, learn_costs, load_costs, machine, prior_of_family
from ..draft.kinds import SmallModel
from ..draft.kinds.eagle3 import Eagle3Head
from ..draft.siblings import is_family
from ..engine import Engine, PrefixFiles, Vocab
from ..errors import Eagle3Error
from ..files.fingerprint import digest_lock, fingerprint, header_fingerprint, once_fingerprinted
from ..files.prefix_file import Maker
from ..files.prefix_folder import open_folder
from ..log import without_details
from ..machine import free_memory
from .batch_invariance import Loss, attends, describe, losses
from .drafters import load_drafter, load_drafters, load_ngrams
from .plan import LoadPlan
from .target import LoadedTarget

_SECONDS, _SECONDS_NGRAM = 2.0, 0.3  # to measure what passes cost; for n-grams alone nobody should notice
_N_CACHE_BYTES = 8 << 30
_N_ROWS = 64  # passes of more rows than this are not measured
_IN_FILES = (
    *("type_k", "type_v", "flash_attn_type", "swa_full", "n_rs_seq", "attention_type", "pooling_type"),
    *("rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor"),
    *("yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx"),
)
"""Fields of a llama_context_params that change hidden states, or the form of states in a file."""
_log = logging.getLogger("llama_cpp_eagle3")


@dataclass(frozen=True, slots=True)
class NewHead:
    """A head that is loaded and does not draft yet."""

    drafter: Drafter
    plan: LoadPlan
    """The plan with it in the place of the old one."""
    maker: Maker


class Loaded:
    """The engine on a target and its drafters. Close it before the target is freed."""

    def __init__(self, target: LoadedTarget, log: Callable[[str], None], kept: NgramStore | None = None):
        """Load the drafters, and make the engine.

        kept: answers of other processes, for the n-gram drafter.

        Raises:
            ModelFileError, IncompatibleDraftError: see `Eagle3Llama`.
        """
        self.target, self._log = target, log
        given, metadata = target.plan.given, target.model.metadata()
        self.experts = experts_of(metadata)
        with ExitStack() as stack:
            drafters = [stack.enter_context(closing(drafter)) for drafter in load_drafters(target, log)]
            self.plan: LoadPlan = target.plan if drafters else target.plan.without_drafters()
            """The plan, without drafters if they could not be loaded."""
            self.draft_type = self.plan.draft_type
            """The ggml type that a head's matrices are converted to; None: as in the file."""
            self._maker = self._begin_maker(metadata)
            vocab, folder = Vocab(target.model.model), given["prefix_cache_dir"]
            n_batch, n_swa = target.options["n_batch"], int(lib.llama_model_n_swa(target.model.model))
            if n_swa > 0:  # of several ubatches a later one may take cells that an earlier one reads (`LoadPlan.room`)
                n_batch = min(n_batch, int(target.ctx.params.n_ubatch))
            self._folder = None if folder is None else self._begin_folder(folder, given["prefix_cache_disk_bytes"])
            self.engine = Engine(
                target.context,
                vocab,
                n_batch=n_batch,
                drafters=drafters,
                tap=target.tap,
                draft_model=target.options["draft_model"],
                ngram=load_ngrams(self.plan, vocab, log, kept),
                why_no_source=self.plan.why_nothing_drafts,
                before_step=target.servers.check,
                after_pass=target.servers.check,
                log=log,
                prefill_budget=given["prefill_budget"],
                prefix_cache_bytes=cache_bytes(given["prefix_cache_bytes"]),
                ctx_checkpoints=given["ctx_checkpoints"],
                checkpoint_min_step=given["checkpoint_min_step"],
                prefix_folder=self._folder,
                n_swa=n_swa,
                swa_full=bool(target.ctx.params.swa_full),
            )
            stack.pop_all()
        self.n_state_bytes = 0
        """Bytes of recurrent state that the target keeps per sequence; 0 without a drafter, or if it only attends."""
        try:
            if drafters:
                self.n_state_bytes = _measure_state(target.context, target.model.token_bos())
            target.servers.check()
            self._tell(folder)
        except BaseException:
            self.close()
            raise
        _open.add(self)

    def _tell(self, folder: object) -> None:
        """Log what runs where, with which drafters, and the prefixes that earlier runs have left in files."""
        self._log(self.where)
        if told := self.batch_invariance:
            self._log(told)
        local = local_accelerators()
        if self.target.model.params.n_gpu_layers == 0 and self.plan.devices is None and local:
            _log.warning(
                "the model runs on the CPU although this machine has %s: use n_gpu_layers=-1",
                " and ".join(f"{device.name} ({device.description})" for device in local),
            )
        if self.engine.drafters:
            self._log(self.description)
        elif told := self.plan.without_effect:
            _log.warning("%s", told)
        stats = self.engine.slots.cache.stats
        if not self._maker.done():
            self._log(
                f"prefix cache: '{folder}' is used once a thread has read all of the model's files, which it knows then"
            )
        if stats.n_file_bytes_max:
            found = f"{stats.n_prefix_files} prefixes and {stats.n_state_files} states, {stats.n_file_bytes >> 20} MiB"
            self._log(f"prefix cache: {found} of at most {stats.n_file_bytes_max >> 20} MiB in '{folder}'")

    # what it is

    @property
    def pair_id(self) -> tuple[str, str]:
        """Fingerprints of target and drafters; both empty without a drafter."""
        return self.plan.ids(fingerprint) if self.plan.drafts else ("", "")

    @property
    def description(self) -> str:
        """One line about the loaded drafters."""
        pair, tap = self.plan.pair, self.target.tap
        assert pair is not None
        reads = "reads tokens alone"
        if tap is not None:
            reads = f"reads {tap.boundaries} of {pair.target.n_layer} layers by the {tap.kind} tap"
        kinds = " and the ".join(draft.describe() for draft in pair.drafts)
        return (
            f"draft by the {kinds}, on {self._draft_device}, {reads}"
            + "".join(f" ({draft.note})" for draft in pair.drafts if draft.note)
            + f"; rejected tokens go by {self.target.context.rollback_kind}"
            + (f", {self.n_state_bytes} bytes of state per sequence" if self.n_state_bytes else "")
        )

    @property
    def where(self) -> str:
        """One line about the devices of target and drafters."""
        target, chosen = self.target, self.plan.devices
        n_layer = int(lib.llama_model_n_layer(target.model.model))
        devices = [device.name for device in local_accelerators()]
        if chosen is not None:
            devices = [name for name in chosen if name not in ("none", "CPU")]
        n_on = min(target.model.params.n_gpu_layers, n_layer + 1) if devices or target.servers else 0
        if target.servers and chosen is None:
            devices.append("rpc servers")
        layers = f"{n_on} of {n_layer + 1} layers (with the output's) on {', '.join(devices)}" if n_on else "on CPU"
        params = target.ctx.params
        threads = f"{params.n_threads} CPU threads"
        if params.n_threads_batch != params.n_threads:
            threads += f", {params.n_threads_batch} for batches"
        head = f"; head on {self._draft_device}" if self.engine.drafters else ""
        for n in filter(None, self._draft_vocab):
            head += f", drafts {n} of {self.engine.vocab.n_tokens} tokens and those of the texts"
        return f"target {layers}{head}; {threads}; {self.attention}; {self.cpu_kernels_used}"

    @property
    def attention(self) -> str:
        """Whether the target has flash attention, and what computes its attention on a CPU."""
        has_flash = self.target.ctx.params.flash_attn_type == lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        by = ", by our kernels" if attends(self.target.context.kernel_sides) else ""
        return f"{'flash attention' if has_flash else 'no flash attention'}{by}"

    @property
    def batch_invariance(self) -> str:
        """One line: whether text depends on other rows of its passes, and if so, which operations and why."""
        return describe(self.target.context.kernel_sides, self.losses)

    @property
    def losses(self) -> list[Loss]:
        """Operations of the target that ggml computes, so that rows depend on others, with settings against that."""
        return losses(self.target.context.kernel_sides, self.target.kernel_choice)

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
        choice, kernels = self.target.kernel_choice, self.target.kernels
        if kernels is None:
            return "ggml's own kernels alone: cpu_kernels is off"
        parts = [f"{n} matrices by {name}{choice.describe(name)}" for name, n in kernels.n_weights.items()]
        parts += [f"{n} of the head by {name}" for name, n in self._draft_kernels.items()]
        parts += [f"ggml's own instead of {name}{choice.describe(name)}" for name in choice.refused]
        return "; ".join(parts) or f"ggml's own kernels alone: {kernels.why_not}"

    # what can use its files

    @property
    def maker(self) -> Maker:
        """Identifies the models and settings that can use saved prefixes of this one.

        Of a file that this machine has not seen, it waits until a thread has read all of it.

        Raises:
            ModelFileError: a file was replaced or changed while it was loaded.
            OSError: one cannot be read.
        """
        return self._maker.result()

    def _begin_maker(self, about: dict[str, str]) -> Future[Maker]:
        plan, target, params = self.plan, self.target, self.target.ctx.params
        n_streams = 1 if params.kv_unified else params.n_seq_max
        # some models have other factors of RoPE for long contexts: the length then counts
        overrides = target.options["kv_overrides"] or {}
        key = f"{about.get('general.architecture')}.rope.scaling.original_context_length"
        n_short = overrides[key] if type(overrides.get(key)) is int else int(about.get(key, target.model.n_ctx_train()))
        settings: dict[str, Any] = {name: getattr(params, name) for name in _IN_FILES}
        settings |= {
            "kv_overrides": {str(k): repr(value) for k, value in overrides.items()},  # one of another type is ignored
            "rotation": os.environ.get("LLAMA_ATTN_ROT_DISABLE", ""),  # of quantized K and V
            "model_options": {k: v for k, v in target.model_options.items() if k != "lora"},
            "n_streams": n_streams,
            "long_context": n_short < params.n_ctx // n_streams,
            "n_gpu_layers": target.n_gpu_layers,
            "cpu_kernels": {} if target.kernels is None else target.kernels.n_weights,
            "versions": [__version__, LLAMA_CPP_PYTHON_VERSION],
        }
        draft_settings: dict[str, Any] = {}
        if plan.drafts:
            draft_settings = {
                "draft_n_ctx": plan.given["draft_n_ctx"],
                "draft_type_k": plan.draft_type_k,
                "draft_type_v": plan.draft_type_v,
            }

        def make() -> Maker:
            lora = [(fingerprint(path), scale) for path, scale in plan.lora]
            of_target, of_drafters = plan.ids(fingerprint)
            plan.stamps.check()
            return Maker(of_target, {**settings, "lora": lora}, of_drafters, draft_settings)

        files = [file.weights for file in plan.drafts if not file.is_in_target]
        return once_fingerprinted([plan.path, *(path for path, _ in plan.lora), *files], make)

    def _begin_folder(self, path: str | PathLike[str], n_bytes_max: int | None) -> Future[PrefixFiles | None]:
        """Open the prefix cache's folder, in a thread if the files that name its files must be read first."""
        folder: Future[PrefixFiles | None] = Future()

        def opened(maker: Future[Maker]) -> None:
            try:
                folder.set_result(open_folder(path, n_bytes_max, maker.result()))
            except Exception as e:
                folder.set_exception(e)

        self._maker.add_done_callback(opened)
        return folder

    # what passes cost

    def costs_key(self) -> dict[str, Any]:
        """Everything that measured costs depend on, ready for JSON: of the target's, and of its drafters' alone."""
        plan, tap, params = self.plan, self.target.tap, self.target.ctx.params
        target_id, draft_id = plan.ids(header_fingerprint)
        target = {
            "target": target_id,
            "boundaries": None if tap is None else tap.boundaries,
            "tap": None if tap is None else tap.kind,
            "n_gpu_layers": self.target.n_gpu_layers,
            "tensor_split": self.target.options["tensor_split"],
            "rpc_servers": plan.given["rpc_servers"],
            "machine": machine(),
            "n_threads": [params.n_threads, params.n_threads_batch],
            "n_ubatch": min(params.n_ubatch, _N_ROWS),
            "offload_kqv": bool(params.offload_kqv),
            "cpu_kernels": {} if self.target.kernels is None else self.target.kernels.n_weights,
            "types": [params.type_k, params.type_v],
            "flash_attn_type": params.flash_attn_type,
            "versions": [__version__, LLAMA_CPP_PYTHON_VERSION],
            **self.target.model_options,
        }
        drafters = {
            "draft": draft_id or None,
            "draft_device": self._draft_device,
            "n_threads": plan.given["draft_n_threads"],
            "cpu_kernels": self._draft_kernels,
            "draft_type": plan.draft_type,
            "draft_vocab": self._draft_vocab,
            "types": [plan.draft_type_k, plan.draft_type_v],
        }
        return {"target": target, "drafters": drafters}

    def expected_priors(self) -> Priors:
        """For each drafter what is expected before it was ever asked: of a small model of the target's family."""
        pair, n_seq = self.plan.pair, self.target.context.n_seq
        return [
            prior_of_family(n_seq)
            if isinstance(file, SmallModel) and pair and is_family(pair.target, file.info)
            else None
            for file in self.plan.drafts
        ]

    @property
    def draft_type_asked(self) -> int | None:
        """The type that the user chose; None: the fastest one."""
        return self.plan.draft_type

    def convert_draft(self, draft_type: int | None) -> None:
        """Load a head again with its matrices in another ggml type; the drafters' caches are empty then."""
        old = [d for d in self.engine.drafters if isinstance(d, Eagle3Drafter)]
        if draft_type == self.draft_type or not self.engine.drafters:
            return
        self.set_drafters(
            [
                load_drafter(self.target, file, draft_type, self._log) if drafter in old else drafter
                for file, drafter in zip(self.plan.drafts, self.engine.drafters, strict=True)
            ]
        )
        self.draft_type = draft_type

    def set_drafters(self, drafters: Sequence[Drafter]) -> None:
        """Draft with other drafters, which have evaluated nothing yet; those that are not among them are freed."""
        old = [drafter for drafter in self.engine.drafters if drafter not in drafters]
        self.engine.set_drafters(drafters)
        for drafter in old:
            drafter.close()

    def load_head(self, path: str) -> NewHead:
        """Load another head for the target, beside the one that drafts. From any thread.

        Raises:
            ModelFileError, IncompatibleDraftError: it cannot be used.
            Eagle3Error: no head drafts here that it could replace, or it reads other layers.
        """
        heads = [file for file in self.plan.drafts if isinstance(file, Eagle3Head)]
        pair, tap = self.plan.pair, self.target.tap
        if not heads or pair is None or tap is None:
            raise Eagle3Error(f"'{path}' drafts from the next start on: no head was loaded that it could replace")
        file = Eagle3Head(path)
        boundaries = file.fit(self.plan.path, pair.target, None)
        if not set(boundaries) <= set(tap.boundaries):
            raise Eagle3Error(f"'{path}' reads layers {list(boundaries)}, the model has a tap on {tap.boundaries}")
        drafts = [file if other is heads[0] else other for other in self.plan.drafts]
        plan = replace(self.plan, pair=replace(pair, drafts=tuple(drafts)))
        maker = replace(self.maker, draft=plan.ids(fingerprint)[1])
        return NewHead(load_drafter(self.target, file, self.draft_type, self._log), plan, maker)

    def use_head(self, new: NewHead, gain: float = 0.0) -> None:
        """Draft with another head from the next step on; the old one is freed. Texts go on, and do not change.

        Costs are those of the old head, and what is known of that is believed of the new one, until texts show more.

        gain: tokens a step that it is expected to give beyond the old one.
        """
        drafting, old = self.engine.drafting, list(self.engine.drafters)
        policy, was_guessed = drafting.policy, drafting.is_guessed
        costs, priors = (policy.costs, policy.priors()) if policy.is_measured else ([], [])
        for drafter, prior in zip(old, priors, strict=False):
            if prior is not None and isinstance(drafter, Eagle3Drafter):
                prior["worth"] += gain
        self.set_drafters([new.drafter if isinstance(drafter, Eagle3Drafter) else drafter for drafter in old])
        self.plan, self._maker = new.plan, Future()
        self._maker.set_result(new.maker)
        opened = self._folder
        if opened is not None and opened.exception() is None and (folder := opened.result()) is not None:
            folder.use_drafters(new.maker.draft)
        if costs:
            drafting.learn(costs, is_guessed=was_guessed, experts=self.experts, priors=priors)

    def use_stored_type(self) -> None:
        """Convert the head to the type that was measured to be the fastest, if it was measured before."""
        costs = load_costs(self.costs_key()) if self.engine.drafters else None
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
        is_text = not self.engine.drafters
        may_guess = is_text and seconds is None
        knows = drafting.policy.is_measured and (may_guess or not drafting.is_guessed)
        if knows or (is_text and drafting.ngram is None):
            return 0
        with without_details(), digest_lock:
            learn_costs(
                self,
                log or (_log.debug if may_guess else self._log),
                seconds or (_SECONDS_NGRAM if is_text else _SECONDS),
                must=must,
            )
        return perf_counter_ns() - start

    def close(self) -> None:
        """Keep what was learned, and free engine and drafters, while the target's model and context still exist."""
        drafters = list(self.engine.drafters)
        _open.discard(self)
        keep_learned(self)
        self.engine.close()
        for drafter in drafters:  # they use the model's tables
            drafter.close()


_open: WeakSet[Loaded] = WeakSet()


@atexit.register
def _keep_all() -> None:
    """Keep what was learned where a script closes nothing, unless a thread is in the engine: later no file opens."""
    for loaded in list(_open):
        with suppress(Eagle3Error), loaded.engine.guard.if_free() as is_in:
            if is_in:
                keep_learned(loaded)


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
