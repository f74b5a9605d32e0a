"""What a target and its head are loaded with: files, devices, servers and the tap, prepared before llama_cpp loads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import llama_cpp.llama_cpp as lib

from . import cpu_build, dflash, simple
from ._core import (
    CpuKernels,
    DflashDrafter,
    DflashFile,
    Eagle3Drafter,
    FeatureTap,
    MtpDrafter,
    NgramDrafter,
    NgramStore,
    SimpleDrafter,
    Target,
    model_matrices,
)
from .cpu_kernels import KernelChoice
from .engine import N_ROWS_ARGMAX
from .log import without_details
from .model_file import check_file
from .model_options import ModelOptions
from .mtp import boundary_of, make_drafter
from .options import DraftOptions
from .pair import Pair, check_pair, fingerprint
from .rpc import RpcServers, find_device

_stores: dict[str, NgramStore] = {}  # [fingerprint of the target]: what all objects of the process wrote


class Loading:
    """Files, devices and the tap. llama_cpp's parameters go through it on their way to llama.cpp."""

    def __init__(
        self,
        model_path: str,
        draft: DraftOptions,
        rpc_servers: str | Sequence[str] | None,
        model: ModelOptions,
        *,
        vocab_only: bool = False,
        progress: Callable[[float], None] | None = None,
    ):
        """Compare the headers, reach the servers, and make the tap, which must exist before the context.

        Raises:
            ModelFileError, IncompatibleDraftError, RpcError: see `Eagle3Llama`.
        """
        self.model_path, self.draft, self.rpc_servers, self.model = model_path, draft, rpc_servers, model
        self.pair: Pair | None = None
        self.tap: FeatureTap | None = None
        self.servers: RpcServers | None = None
        self.kernels: CpuKernels | None = None
        self.kernel_choice = KernelChoice(model.cpu_kernels)
        if not vocab_only:
            self.pair = check_pair(model_path, draft.model_path, draft.target_layers)
            info = self.pair.target
            self._check_block_size()
            boundaries = list(self.pair.boundaries)
            if self.uses_block:
                block = self.pair.block
                boundaries = [block.n_layer + block.nextn if block is not None else boundary_of(model_path, info)]
            if boundaries:
                self.tap = FeatureTap(boundaries, info.n_layer, info.n_embd, info.arch)
        if rpc_servers:
            self.servers = RpcServers(rpc_servers)
        self.draft_device = None if draft.device is None else find_device(draft.device, self.servers, "draft_device")
        self._progress = progress
        self._on_progress: Any = None
        self._kept: list[Any] = []
        self._adapters: list[Any] = []
        self._n_guards = 0  # sequence ids for what has left the windows of a pool
        self._why_no_guards = ""

    def _check_block_size(self) -> None:
        drafter, draft = self.block_drafter, self.draft
        if drafter is not None and draft.mode != "auto" and draft.depth > drafter.n_draft_max:
            name = "draft_tree_depth" if draft.mode == "tree" else "draft_n_max"
            raise ValueError(
                f"{name}={draft.depth}: the block drafter '{drafter.path}' was trained for blocks of "
                f"{drafter.block_size} rows, which draft {drafter.n_draft_max} tokens: expected that or less"
            )

    def check_files(self, options: Mapping[str, Any], checked: bool) -> None:
        """Check the models' headers, in a child process too; see `check_file`."""
        check_file(self.model_path, options, checked)
        if self.uses_small_model or self.block_drafter is not None:
            assert self.draft.model_path is not None
            check_file(self.draft.model_path, {}, checked)

    @property
    def uses_block(self) -> bool:
        """Whether the target drafts with a block of its own."""
        return "mtp" in self.draft.sources

    @property
    def uses_small_model(self) -> bool:
        """Whether a small model drafts."""
        return self.pair is not None and self.pair.small is not None

    def drop_block(self) -> None:
        """Go on without the target's own block."""
        self.draft = replace(self.draft, sources=tuple(s for s in self.draft.sources if s != "mtp"))

    @property
    def has_head(self) -> bool:
        """Whether something drafts: a head, a block drafter, the target's own block, or a small model."""
        return self.pair is not None and (
            self.pair.head is not None
            or self.pair.block_drafter is not None
            or self.uses_block
            or self.uses_small_model
        )

    @property
    def block_drafter(self) -> DflashFile | None:
        """What drafts, if it is a block drafter."""
        return None if self.pair is None else self.pair.block_drafter

    @property
    def pair_id(self) -> tuple[str, str]:
        """Fingerprints of target and head ("mtp": the target's own block); empty without one."""
        if not self.has_head:
            return "", ""
        draft = self.draft.model_path
        return fingerprint(self.model_path), "mtp" if draft is None else fingerprint(draft)

    def preset_model(self, params: Any) -> None:
        """Set what Llama has no argument for in a llama_model_params."""
        self._kept = self.model.preset(params, self.servers)
        params.load_mtp = self.uses_block and self.draft.model_path is None
        if self._progress is not None:
            progress = self._progress

            def on_progress(share: float, _: Any) -> bool:
                progress(share)
                return True

            params.progress_callback = self._on_progress = lib.llama_progress_callback(on_progress)

    def preset_context(self, params: Any) -> None:
        """Put the tap's callback into a llama_context_params."""
        if self.tap is not None and self.tap.cb_eval:
            params.cb_eval = lib.ggml_backend_sched_eval_callback(self.tap.cb_eval)
            params.cb_eval_user_data = self.tap.cb_eval_user_data

    def fit_context(self, params: Any, model: Any) -> None:
        """Give a llama_context_params the sequences and snapshots that drafting takes on this llama_model."""
        draft = self.draft
        n_seq = draft.n_parallel
        n_max = min(max(n_seq, params.n_ubatch), lib.llama_max_parallel_sequences())
        has_states = lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
        has_windows = lib.llama_model_n_swa(model) > 0 and params.swa_full and not has_states
        if has_windows and draft.is_pooled and 1 < n_seq <= n_max // 2:
            self._n_guards = n_seq
            n_seq *= 2
        elif has_windows and draft.is_pooled and n_seq > 1:
            n_most = lib.llama_max_parallel_sequences() // 2
            remedy = f"n_parallel of at most {n_most}" if n_seq > n_most else f"n_ubatch of at least {2 * n_seq}"
            self._why_no_guards = (
                f"n_parallel = {n_seq} with n_ubatch = {params.n_ubatch}: llama.cpp may give cells that have left "
                f"a window to other sequences, and a cached prefix is then evaluated again; {remedy} prevents that"
            )
        if draft.drafts:
            if has_states:
                params.n_rs_seq = draft.depth  # llama.cpp makes it 0 where the architecture keeps no snapshots
            elif draft.is_pooled and (params.swa_full or lib.llama_model_n_swa(model) == 0):
                # The ids behind n_parallel are for the leaves of trees. Of a window alone (swa_full=False) llama.cpp
                # frees no cell that a leaf borrows: the cache would run full, so that there are only chains
                n_seq = min(n_seq + draft.n_leaves - 1, n_max)
        if n_seq > 1:
            params.n_seq_max = n_seq
            params.kv_unified = draft.is_pooled
        params.n_outputs_max_per_seq = min(N_ROWS_ARGMAX, params.n_batch)

    def load_adapters(self, model: Any) -> None:
        """Load the LoRA adapters of a llama_model that has no context yet."""
        self._adapters = self.model.load_adapters(model)

    def check_servers(self) -> None:
        """Raise RpcError if an rpc server has gone: llama.cpp would end the process."""
        if self.servers is not None:
            self.servers.check()

    def prepare_free(self) -> None:
        """The model and its head are about to be freed."""
        if self.kernels is not None:
            self.kernels.close()
        if self.servers is not None:
            self.servers.prepare_free()

    def close(self) -> None:
        """They are freed."""
        self.tap = None
        if self.servers is not None:
            self.servers.close()

    def make_target(self, ctx: Any, model: Any, log: Callable[[str], None]) -> Target:
        """The target's verbs on a context that llama_cpp made."""
        if self.kernel_choice.mode != "off":
            matrices = model_matrices(int(model))
            n_threads = max(1, int(lib.llama_n_threads(ctx)))
            self.kernels = CpuKernels(matrices, self.kernel_choice.limits(matrices, n_threads, log))
        self.model.set_adapters(ctx, self._adapters)
        if self._why_no_guards:
            log(self._why_no_guards)
        with without_details():  # it makes the context's graphs, to check them
            return Target(int(ctx), int(model), self.tap, self.draft.n_parallel, self._n_guards)

    def make_drafter(
        self,
        model: Any,
        n_ctx: int,
        n_threads: int,
        n_batch: int,
        draft_type: int | None,
        log: Callable[[str], None],
    ) -> Eagle3Drafter:
        """Load the head, its wider matrices converted to a type."""
        draft = self.draft
        assert draft.model_path is not None
        n_threads = draft.n_threads or n_threads
        drafter = Eagle3Drafter(
            draft.model_path,
            int(model),
            n_ctx,
            n_seq_max=draft.n_parallel,
            boundaries=draft.target_layers,
            device=self.draft_device,
            n_gpu_layers=draft.n_gpu_layers,
            type=draft_type,
            type_k=draft.type_k,
            type_v=draft.type_v,
            n_threads=n_threads,
            n_batch=min(n_batch, 512),
        )
        if self.kernel_choice.mode != "off":
            drafter.use_cpu_kernels(self.kernel_choice.limits(drafter.matrices, n_threads, log))
        return drafter

    def make_block_drafter(self, model: Any, params: Any, target: Target, log: Callable[[str], None]) -> MtpDrafter:
        """Make a drafter of the target's block, in its file or apart. params: those of the target's context."""
        draft = self.draft
        path = draft.model_path
        matrices: list[int] = []
        if path is not None:
            model, matrices = self._load_draft_model(path)
        drafter = make_drafter(
            model,
            params,
            path or self.model_path,
            owns_model=path is not None,
            n_ctx=target.n_ctx,
            n_seq=draft.n_parallel,
            is_pooled=draft.is_pooled,
            has_trees=target.n_leaves_max > 1,
            n_threads=draft.n_threads,
            type_k=draft.type_k,
            type_v=draft.type_v,
        )
        self._use_draft_kernels(drafter, matrices, params, log)
        return drafter

    def _load_draft_model(self, path: str) -> tuple[int, list[int]]:
        """Load a model that drafts: its address, and those of its matrices."""
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0 if self.draft.n_gpu_layers == 0 else -1
        params.load_mtp = self.uses_block
        cpu_build.avoid_broken_amx(params)
        if self.draft_device is not None:
            devices = (ctypes.c_void_p * 2)(self.draft_device.address, None)
            params.devices = ctypes.cast(devices, ctypes.c_void_p)
        model = simple.load_model(path, params)
        return model, model_matrices(model)

    def _use_draft_kernels(
        self, drafter: MtpDrafter | SimpleDrafter, matrices: list[int], params: Any, log: Callable[[str], None]
    ) -> None:
        """Have our CPU kernels multiply a drafter's own matrices where they are faster."""
        if matrices and self.kernel_choice.mode != "off":
            n_threads = self.draft.n_threads or max(1, int(params.n_threads))
            drafter.use_cpu_kernels(matrices, self.kernel_choice.limits(matrices, n_threads, log))

    def make_dflash_drafter(
        self, ctx: Any, model_params: Any, params: Any, target: Target, log: Callable[[str], None]
    ) -> DflashDrafter:
        """Load the block drafter. ctx: the target's llama_context; the parameters are those of its model and of it."""
        draft = self.draft
        assert self.block_drafter is not None
        device, n_gpu_layers = self.draft_device, draft.n_gpu_layers
        if device is not None and device.name == "CPU":
            device, n_gpu_layers = None, 0
        drafter = dflash.make_drafter(
            self.block_drafter,
            ctx,
            model_params,
            params,
            n_ctx=target.n_ctx,
            n_seq=draft.n_parallel,
            is_pooled=draft.is_pooled,
            n_gpu_layers=n_gpu_layers,
            device=None if device is None else device.address,
            n_threads=draft.n_threads,
            type_k=draft.type_k,
            type_v=draft.type_v,
        )
        if self.kernel_choice.mode != "off":
            n_threads = draft.n_threads or max(1, int(params.n_threads))
            drafter.use_cpu_kernels(self.kernel_choice.limits(drafter.matrices, n_threads, log))
        return drafter

    def make_small_drafter(
        self, target_model: Any, params: Any, target: Target, log: Callable[[str], None]
    ) -> SimpleDrafter:
        """Load a small model that drafts for a llama_model. params: those of the target's context."""
        draft = self.draft
        assert draft.model_path is not None
        model, matrices = self._load_draft_model(draft.model_path)
        drafter = simple.make_drafter(
            model,
            params,
            draft.model_path,
            n_vocab=int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(target_model))),
            n_ctx=target.n_ctx,
            n_seq=draft.n_parallel,
            is_pooled=draft.is_pooled,
            has_trees=target.n_leaves_max > 1,
            n_threads=draft.n_threads,
            type_k=draft.type_k,
            type_v=draft.type_v,
        )
        self._use_draft_kernels(drafter, matrices, params, log)
        return drafter

    def make_ngram_drafter(self, store: NgramStore | bool) -> NgramDrafter | None:
        """What drafts from texts, if it may. store: where others write; True: that of this process and model file."""
        if "ngram" not in self.draft.sources:
            return None
        if store is True:
            store = _stores.setdefault(fingerprint(self.model_path), NgramStore())
        return NgramDrafter(self.draft.n_parallel, store if isinstance(store, NgramStore) else None)
