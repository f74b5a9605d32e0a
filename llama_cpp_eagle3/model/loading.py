"""Files, devices, servers and the tap of a target and its head, prepared before llama.cpp loads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import llama_cpp.llama_cpp as lib

from .._core import (
    CpuKernels,
    Drafter,
    FeatureTap,
    NgramDrafter,
    NgramStore,
    Target,
    local_accelerators,
    model_matrices,
)
from ..config.llama_options import LLAMA_DEFAULTS
from ..draft.corpus import read_corpus
from ..draft.kinds import NGRAM, DrafterFile, LoadedTarget, MtpBlock, SmallModel
from ..draft.requantize import with_type
from ..engine import N_ROWS_ARGMAX, Vocab
from ..errors import Eagle3Error
from ..files.fingerprint import file_key, fingerprint, header_fingerprint
from ..files.model_file import BLOCKS, check_file, mended_keys
from ..log import without_details
from .cpu_kernels import KernelChoice
from .options import DraftOptions
from .pair import Pair, check_files, check_pair
from .params import ModelOptions
from .rpc import RpcServers, find_device

N_SNAPSHOTS, N_SNAPSHOTS_SHARED = 3, 1
"""Snapshots that llama.cpp keeps of a recurrent target's only sequence, and of each of several: so many tokens of a
draft can be rejected without a replay. Each costs a copy of all layers' convolution states in every pass."""
_N_SEQ_DRAFTED = 4
"""With more sequences, `auto` on a CPU keeps no snapshots: it rarely drafts for so many."""
_ROTATION = (
    "rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
    "yarn_beta_slow", "yarn_orig_ctx",
)  # fmt: skip
N_VOCAB_DRAFTED, N_VOCAB_LARGE = 1 << 15, 1 << 16
"""Tokens that are always drafted, of a vocabulary that has this many or more (docs/drafter-kinds.md)."""
_log = logging.getLogger("llama_cpp_eagle3")
_stores: dict[Any, NgramStore] = {}  # [`file_key` of the target]: texts that all objects of the process have generated


def ids_of(paths: Sequence[str | None], identify: Callable[[str], str]) -> str:
    """Ids of drafters' files as one text; empty without a drafter."""
    return "+".join(MtpBlock.source if path is None else identify(path) for path in paths)


class Loading:
    """Files, devices and the tap, and the parameters of llama.cpp that drafting needs."""

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
            self.pair = check_pair(model_path, draft.paths, draft.target_layers)
            info = self.pair.target
            self._check_length()
            if info.why_no_text and NGRAM in draft.settings.sources:
                if draft.given["draft_sources"] is not None:
                    _log.warning("n-grams do not draft for '%s' (%s): %s", model_path, info.arch, info.why_no_text)
                self.draft = draft.without_text()
            for file in self.pair.drafts:
                if file.vocabulary.warning:
                    _log.warning("%s", file.vocabulary.warning)
            if self.pair.boundaries:
                n_embd = info.n_embd_nextn if self.pair.boundaries[0] > info.n_layer + 1 else info.n_embd
                self.tap = FeatureTap(list(self.pair.boundaries), info.n_layer, n_embd, info.arch)
        if rpc_servers:
            self.servers = RpcServers(rpc_servers)
        device = draft.given["draft_device"]
        try:
            self.draft_device = None if device is None else find_device(device, self.servers, "draft_device")
        except ValueError:
            self.close()  # or connections to servers would stay open
            raise
        self._progress = progress
        self._on_progress: Any = None
        self._kept: list[Any] = []
        self._adapters: list[Any] = []
        self._is_on_cpu = True
        self._n_guards = 0  # sequence ids that keep cells that have left the windows of a pool
        self._why_no_guards = ""

    def _check_length(self) -> None:
        draft = self.draft
        file = self.draft_files[0] if self.draft_files else None
        n_most = None if file is None else file.n_draft_max
        if file is not None and n_most is not None and draft.settings.mode != "auto" and draft.depth > n_most:
            name = "draft_tree_depth" if draft.settings.mode == "tree" else "draft_n_max"
            raise ValueError(
                f"{name}={draft.depth}: the {file.title} '{file.path}' was trained to draft {n_most} tokens: expected "
                "that or less"
            )

    def mend(self, options: dict[str, Any]) -> None:
        """Add to Llama's arguments the keys that llama.cpp needs for the target's file, if layers are missing there."""
        if self.pair is None:
            return
        for info in (self.pair.target, *(file.info for file in self.draft_files if isinstance(file, SmallModel))):
            if info.n_layer_gone:
                keys = ", ".join(f"{key} = {value}" for key, value in info.keys_without_block.items())
                told = f": it is loaded with {keys}" if keys else ""
                _log.warning("'%s' announces %s that are not in it%s", info.path, BLOCKS, told)
        if keys_of_target := mended_keys(self.model_path):
            options["kv_overrides"] = {**keys_of_target, **(options.get("kv_overrides") or {})}

    def tell_rotation(self, options: Mapping[str, Any]) -> None:
        """Log once that arguments for RoPE do not change a head, which was trained with the rotation in its file."""
        usual = lib.llama_context_default_params()  # as the command line has them
        names = [name for name in _ROTATION if options[name] not in (LLAMA_DEFAULTS[name], getattr(usual, name))]
        if not names or not self.draft_files:
            return
        alike = " and ".join(["the target", *(f"the {f.title}" for f in self.draft_files if not f.has_own_rotation)])
        own = "".join(f"; the {f.title} rotates as its file says" for f in self.draft_files if f.has_own_rotation)
        _log.warning("%s: for %s%s", ", ".join(names), alike, own)

    def check_files(self, options: Mapping[str, Any], checked: bool) -> None:
        """Check the models' headers, in a child process too; see `check_file`."""
        if self.pair is None:
            check_file(self.model_path, options, checked)
        else:
            check_files(self.pair, options, checked)

    def convert_drafters(self, options: Mapping[str, Any], log: Callable[[str], None]) -> None:
        """Give drafters that are models of their own a copy in the type that is read faster, or that was chosen.

        options: the target's arguments.
        """
        n_layers = self.draft.given["draft_n_gpu_layers"]
        device = self.draft_device
        has_others = bool(local_accelerators()) or self.servers is not None
        if device is not None:
            on_cpu = device.name == "CPU"
        else:
            on_cpu = not has_others or (options["n_gpu_layers"] if n_layers < 0 else n_layers) == 0
        for file in self.draft_files:
            if file.is_model:
                n_threads = self.draft.given["draft_n_threads"] or options["n_threads"]
                copy = with_type(file.path, self.draft.type, on_cpu, n_threads, log)
                if copy != file.path:
                    file.copy, file.note = copy, f"converted for drafting: '{copy}'"

    @property
    def draft_files(self) -> tuple[DrafterFile, ...]:
        """The drafters, by the headers of their files."""
        return () if self.pair is None else self.pair.drafts

    def drop_draft(self) -> None:
        """Continue without a drafter."""
        assert self.pair is not None
        self.pair = replace(self.pair, drafts=())
        self.draft = self.draft.without_model()

    @property
    def why_nothing_drafts(self) -> str:
        """Why this object cannot draft at all; empty if it can."""
        if self.draft.drafts:
            return ""
        if self.pair is not None and self.pair.target.why_no_text:
            return f"no drafter can be used: {self.pair.target.why_no_text}"
        if self.draft.given["draft_sources"] is not None:
            return "draft_sources leaves no drafter"
        return "the settings leave none: no drafter is given, and n-grams draft in auto alone, unless draft_n_max is 0"

    @property
    def pair_id(self) -> tuple[str, str]:
        """Fingerprints of target and head ("mtp": the target's own block), or of several; empty without one."""
        return (fingerprint(self.model_path), ids_of(self.draft_paths, fingerprint)) if self.draft_files else ("", "")

    @property
    def header_ids(self) -> tuple[str, str]:
        """The same of their headers, which say everything that a pass costs."""
        return header_fingerprint(self.model_path), ids_of(self.draft_paths, header_fingerprint)

    @property
    def draft_paths(self) -> tuple[str | None, ...]:
        """The drafters' files as they are loaded; None: the target's own block."""
        files = zip(self.draft.paths, self.draft_files, strict=bool(self.draft_files))
        return tuple(None if path is None else file.weights for path, file in files)

    def preset_model(self, params: Any) -> None:
        """Set the fields of a llama_model_params for which Llama has no arguments."""
        self._kept = self.model.preset(params, self.servers)
        params.load_mtp = self.draft.uses_own_block
        # not llama_supports_gpu_offload, which is true of every llama.cpp with ggml-rpc
        self._is_on_cpu = params.n_gpu_layers == 0 or not (local_accelerators() or self.servers)
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

    def _n_snapshots(self, n_seq: int) -> int:
        if not self.draft.kinds:
            return 0  # each pass would pay for them, and n-grams draft rarely, and then more tokens than they take back
        if n_seq == 1:
            return N_SNAPSHOTS
        is_auto = self.draft.settings.mode == "auto"
        return 0 if n_seq > _N_SEQ_DRAFTED and is_auto and self._is_on_cpu else N_SNAPSHOTS_SHARED

    def fit_context(self, params: Any, model: Any) -> None:
        """Give a llama_context_params the sequences and snapshots that drafting needs with this llama_model."""
        draft = self.draft
        n_seq = draft.given["n_parallel"]
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
                # llama.cpp makes it 0 if the architecture keeps no snapshots
                params.n_rs_seq = min(draft.depth, self._n_snapshots(n_seq))
            elif draft.is_pooled and (params.swa_full or lib.llama_model_n_swa(model) == 0):
                # The ids after n_parallel are for the leaves of trees. Of a window alone (swa_full=False) llama.cpp
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
        """Raise RpcError if an rpc server is lost, since its results are zeros then."""
        if self.servers is not None:
            self.servers.check()

    def prepare_free(self) -> None:
        """Must be called before the model and its drafters are freed."""
        if self.kernels is not None:
            self.kernels.close()

    def close(self) -> None:
        """Must be called after the model and its drafters were freed."""
        self.tap = None
        if self.servers is not None:
            self.servers.close()

    def register_kernels(self, model: Any, n_threads: int, log: Callable[[str], None]) -> None:
        """Let our CPU kernels compute products of a llama_model, measured first if they are not known."""
        if self.kernel_choice.mode != "off":
            matrices = model_matrices(int(model))
            self.kernels = CpuKernels(matrices, self.kernel_choice.limits(matrices, n_threads, log))

    @property
    def attends(self) -> bool:
        """Whether our CPU kernels compute the target's attention: its queries come from weights that they serve."""
        has_weights = self.kernels is not None and bool(self.kernels.n_weights)
        return has_weights and self._is_on_cpu and self.servers is None

    def make_target(self, ctx: Any, model: Any, log: Callable[[str], None]) -> Target:
        """Make the target of a context that llama_cpp made.

        Raises:
            Eagle3Error: its passes are too small for the states that it keeps.
        """
        n_states, n_ubatch = lib.llama_n_rs_seq(ctx), lib.llama_n_ubatch(ctx)
        if n_states and n_ubatch < n_states + 2:  # llama.cpp asserts it, as the last states must be of one pass
            shorter = f", or shorter drafts: draft_n_max of at most {n_ubatch - 2}" if n_ubatch > 2 else ""
            raise Eagle3Error(
                f"n_ubatch = {n_ubatch}: a model with recurrent states that keeps {n_states} of them to take drafted "
                f"tokens back needs n_ubatch and n_batch of at least {n_states + 2}{shorter}"
            )
        self.model.set_adapters(ctx, self._adapters)
        if self._why_no_guards:
            log(self._why_no_guards)
        with without_details():  # it builds the context's graphs, to check them
            return Target(int(ctx), int(model), self.tap, self.draft.given["n_parallel"], self._n_guards)

    def make_drafter(
        self, file: DrafterFile, target: LoadedTarget, log: Callable[[str], None], draft_type: int | None
    ) -> Drafter:
        """Load a drafter, its wider matrices converted to a type."""
        drafter = file.make(target, draft_type)
        if file.vocabulary.left_out:
            drafter.leave_out(file.vocabulary.left_out)
        matrices = drafter.matrices
        if matrices and self.kernel_choice.mode != "off":
            drafter.use_cpu_kernels(self.kernel_choice.limits(matrices, target.n_threads, log))
        self._limit_vocab(drafter, file, target.n_vocab)
        return drafter

    def _limit_vocab(self, drafter: Drafter, file: DrafterFile, n_vocab: int) -> None:
        asked = self.draft.given["draft_vocab"]
        if asked is None and n_vocab < N_VOCAB_LARGE:
            return
        if not drafter.limit_vocab(N_VOCAB_DRAFTED if asked is None else asked) and asked and asked < n_vocab:
            _log.warning(
                "draft_vocab=%d: the %s drafts all of its tokens. That needs a product of its output matrix by our CPU "
                "kernels, and tokens that are numbered by their frequency; a head is given fewer tokens by `quantize "
                "--draft-vocab`",
                asked,
                file.title,
            )

    def make_ngram_drafter(
        self, store: NgramStore | bool, corpus: str | PathLike[str] | None, vocab: Vocab, log: Callable[[str], None]
    ) -> NgramDrafter | None:
        """Make the n-gram drafter, if it is a source.

        store: shared texts; True: those of this process and file. corpus: a file or a folder to search too.
        """
        if NGRAM not in self.draft.settings.sources:
            if corpus is not None:
                _log.warning("draft_corpus is not read: n-grams do not draft here (draft_sources, --spec-type)")
            return None
        if store is True:
            store = _stores.setdefault(file_key(self.model_path), NgramStore())
        read = None if corpus is None else read_corpus(corpus, vocab, log)
        return NgramDrafter(self.draft.given["n_parallel"], store if isinstance(store, NgramStore) else None, read)
