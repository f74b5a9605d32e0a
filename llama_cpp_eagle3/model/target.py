"""A target as a plan describes it: its devices, model, context and kernels."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as lib
from llama_cpp._internals import LlamaContext, LlamaModel

from .. import cpu_build
from .._core import (
    CpuKernels,
    Device,
    FeatureTap,
    LoadGuard,
    Target,
    check_adapter,
    has_lost_threads,
    local_accelerators,
    local_devices,
    model_matrices,
    use_huge_pages,
)
from ..engine.verifier import N_ROWS_ARGMAX
from ..errors import Eagle3Error, ModelFileError
from ..files.fingerprint import header_fingerprint
from ..files.model_file import check_file, check_projector, file_errors, guard_tokenizer, kv_overrides
from ..ggml_types import FLOAT_TYPES
from ..log import without_details
from .cpu_kernels import KernelChoice
from .pair import Pair, check_files
from .plan import LoadPlan
from .rpc import RpcServers, find_device

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
_log = logging.getLogger("llama_cpp_eagle3")


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A target's model and context. The stack that it was loaded with frees them."""

    plan: LoadPlan
    servers: RpcServers
    options: Mapping[str, Any]
    """All arguments of `llama_cpp.Llama`; n_ctx and n_batch are those of the context."""
    model: LlamaModel
    ctx: LlamaContext
    context: Target
    """The same context, for the engine."""
    tap: FeatureTap | None
    """Reads the hidden states that drafters need."""
    kernels: CpuKernels | None
    """None: cpu_kernels is off."""
    kernel_choice: KernelChoice
    draft_device: Device | None
    """The device that was named for drafters."""

    @property
    def n_gpu_layers(self) -> int:
        """Layers on devices; 0 if there are none."""
        return int(self.model.params.n_gpu_layers) if local_accelerators() or self.servers else 0

    @property
    def model_options(self) -> dict[str, Any]:
        """The options beside Llama's that costs depend on, ready for JSON; empty if they are llama.h's defaults."""
        given, usual = self.plan.given, lib.llama_model_default_params()
        params = {k: value for k, value in (given["model_params"] or {}).items() if value != getattr(usual, k)}
        if cpu_build.broken_amx_here() is not None:  # ggml reports the same features with AMX
            params["amx"] = False
        tensors = tuple((str(pattern), str(buffer)) for pattern, buffer in given["override_tensor"])
        key: dict[str, Any] = {"devices": self.plan.devices, "override_tensor": tensors}
        key["lora"] = [(header_fingerprint(path), scale) for path, scale in self.plan.lora]
        return {name: value for name, value in key.items() if value} | params


def load_target(plan: LoadPlan, servers: RpcServers, stack: ExitStack, log: Callable[[str], None]) -> LoadedTarget:
    """Load a target's model with all arguments of `llama_cpp.Llama`, and make its context.

    servers: must be closed after the target. stack: frees what is loaded. log: called with lines for the user.

    Raises:
        ValueError: an argument cannot work, or llama.cpp does not load the model or makes no context.
        ModelFileError, IncompatibleDraftError: a file is refused; see `Eagle3Llama`.
        Eagle3Error: the threads that would compute are lost, or passes are too small for the states that are kept.
    """
    options, given = dict(plan.options), plan.given
    device = None if given["draft_device"] is None else find_device(given["draft_device"], servers, "draft_device")
    for note in plan.notes:
        _log.warning("%s", note)
    if plan.pair is None:
        check_file(plan.path, options, given["checked"])
    else:
        check_files(plan.pair, options, given["checked"])
    for path, _ in plan.lora:
        if left_out := check_adapter(path, plan.path):
            _log.warning("'%s': llama.cpp leaves out %d tensors: %s", path, len(left_out), ", ".join(left_out[:8]))
    if given["mmproj_path"] is not None:
        check_projector(os.path.expanduser(given["mmproj_path"]), plan.path, options, given["checked"])
    _check_threads(max(options["n_threads"], options["n_threads_batch"], given["draft_n_threads"] or 0))
    lib.llama_backend_init()
    use_huge_pages()
    if options["numa"]:
        lib.llama_numa_init(numa_strategy(options["numa"]))
    kept: list[Any] = []
    stack.callback(kept.clear)  # what llama.cpp has pointers to lives until the model is freed
    tap = None if plan.pair is None else _make_tap(plan.pair)
    kept.append(tap)
    choice, kernels = KernelChoice(given["cpu_kernels"]), None
    with file_errors(plan.path):
        model_params = _model_params(plan, options, servers, kept)
        with cpu_build.without_amx(choice.mode != "off"):
            model = LlamaModel(path_model=_Path(plan.path), params=model_params, verbose=options["verbose"])
        stack.enter_context(closing(model))
        guard_tokenizer(model)
        options["n_ctx"] = options["n_ctx"] or model.n_ctx_train()
        options["n_batch"] = min(options["n_ctx"], options["n_batch"])
        params = _context_params(options)
        if choice.mode != "off":
            matrices = model_matrices(int(model.model))
            limits = choice.limits(matrices, max(1, params.n_threads), log)
            kernels = stack.enter_context(closing(CpuKernels(matrices, limits)))
        # not llama_supports_gpu_offload, which is true of every llama.cpp with ggml-rpc
        on_cpu = model_params.n_gpu_layers == 0 or not (local_accelerators() or servers)
        # our kernels attend if the queries come from weights that they serve
        is_ours = kernels is not None and bool(kernels.n_weights) and on_cpu and not servers
        if options["flash_attn"] is None and _suits_flash(params, is_ours):
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if tap is not None and tap.cb_eval:
            params.cb_eval = lib.ggml_backend_sched_eval_callback(tap.cb_eval)
            params.cb_eval_user_data = tap.cb_eval_user_data
        adapters = _load_adapters(plan, model.model)
        n_guards = _fit_context(plan, params, model.model, on_cpu, log)
        ctx = LlamaContext(model=model, params=params, verbose=options["verbose"])
        _check_states(ctx.ctx)
        _set_adapters(plan, ctx.ctx, adapters)
        with without_details():  # it builds the context's graphs, to check them
            context = Target(int(ctx.ctx), int(model.model), tap, given["n_parallel"], n_guards)
        stack.enter_context(closing(context))
    return LoadedTarget(
        plan=plan,
        servers=servers,
        options=options,
        model=model,
        ctx=ctx,
        context=context,
        tap=tap,
        kernels=kernels,
        kernel_choice=choice,
        draft_device=device,
    )


class _Path(str):
    """A path that `LlamaModel` encodes as the system has it, which need not be UTF-8."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Its bytes."""
        return os.fsencode(str(self))


def numa_strategy(numa: bool | int) -> int:
    """The ggml_numa_strategy of the argument `numa`."""
    return lib.GGML_NUMA_STRATEGY_DISTRIBUTE if numa is True else int(numa)


def _check_threads(n_threads: int) -> None:
    if n_threads > 1 and has_lost_threads() and b"OPENMP = 1" in lib.llama_print_system_info():
        raise Eagle3Error(
            "this process was forked from one that had used a model, whose threads llama.cpp would wait for for ever "
            "(OpenMP): load it with n_threads=1, in a new thread, or start processes in another way (multiprocessing: "
            "'spawn' or 'forkserver')"
        )


def _make_tap(pair: Pair) -> FeatureTap | None:
    info, boundaries = pair.target, pair.boundaries
    if not boundaries:
        return None
    n_embd = info.n_embd_nextn if boundaries[0] > info.n_layer + 1 else info.n_embd
    return FeatureTap(list(boundaries), info.n_layer, n_embd, info.arch)


def _model_params(plan: LoadPlan, options: Mapping[str, Any], servers: RpcServers, kept: list[Any]) -> Any:
    """A llama_model_params. kept: gets the objects that it points to."""
    given, params = plan.given, lib.llama_model_default_params()
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
    params.load_mtp = any(file.is_in_target for file in plan.drafts)
    _set_devices(params, plan, servers, kept)
    for name, value in (given["model_params"] or {}).items():
        setattr(params, name, value)
    if (progress := given["progress"]) is not None:

        def on_progress(share: float, _: Any) -> bool:
            progress(share)
            return True

        kept.append(lib.llama_progress_callback(on_progress))
        params.progress_callback = kept[-1]
    return params


def _set_devices(params: Any, plan: LoadPlan, servers: RpcServers, kept: list[Any]) -> None:
    """Set devices and buffers of a llama_model_params.

    Raises:
        ValueError: there is no such device or buffer type.
        Eagle3Error: no device has free memory.
    """
    devices = [*servers.devices, *local_accelerators()]
    if plan.devices is not None:
        named = () if plan.devices == ("none",) else plan.devices
        devices = [find_device(name, servers, "devices") for name in named]
    if plan.devices is not None or servers:
        kept.append((ctypes.c_void_p * (len(devices) + 1))(*(device.address for device in devices), None))
        params.devices = ctypes.cast(kept[-1], ctypes.c_void_p)
    if params.n_gpu_layers != 0 and not (params.tensor_split and any(params.tensor_split[: len(devices)])):
        _check_free(devices)
    if overrides := plan.given["override_tensor"]:
        types = dict(d.buffer_type for d in (*local_devices(), *servers.devices) if d.buffer_type is not None)
        found = (_Override * (len(overrides) + 1))()
        for entry, (pattern, buffer) in zip(found, overrides, strict=False):
            if str(buffer) not in types:
                raise ValueError(f"override_tensor: there is no buffer type {buffer!r}, there are {', '.join(types)}")
            entry.pattern, entry.buft = str(pattern).encode(), types[str(buffer)]
        kept.append(found)
        params.tensor_buft_overrides = ctypes.cast(found, ctypes.c_void_p)


def _check_free(devices: Sequence[Device]) -> None:
    """Raise Eagle3Error if no device has free memory: llama.cpp divides by the sum of it."""
    memory = [device.memory for device in devices]
    if memory and all(free == 0 and total > 0 for free, total in memory):
        full = ", ".join(
            f"{device.name} (of {total / 2**30:.1f} GiB)" for device, (_, total) in zip(devices, memory, strict=True)
        )
        raise Eagle3Error(
            f"expected free memory for layers, found none on {full}: end what uses it, or load with n_gpu_layers=0"
        )


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


def _suits_flash(params: Any, is_ours: bool) -> bool:
    """Whether a context has flash attention by default: if ours computes it, or if nothing else reads its type of V."""
    # with flash attention llama.cpp's graphs round K and V of F32 to F16, also in encoders
    rounds = params.embeddings or lib.GGML_TYPE_F32 in (params.type_k, params.type_v)
    return params.type_v not in FLOAT_TYPES or (is_ours and not rounds)


def _fit_context(plan: LoadPlan, params: Any, model: Any, on_cpu: bool, log: Callable[[str], None]) -> int:
    """Give a llama_context_params the sequences of the plan; returns how many of them are guards."""
    room = plan.room(
        n_swa=int(lib.llama_model_n_swa(model)),
        swa_full=bool(params.swa_full),
        has_states=bool(lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)),
        n_ubatch=int(params.n_ubatch),
        on_cpu=on_cpu,
    )
    if room.note:
        log(room.note)
    params.n_rs_seq = room.n_states
    if room.n_seq > 1:
        params.n_seq_max, params.kv_unified = room.n_seq, plan.is_pooled and room.may_pool
    params.n_outputs_max_per_seq = min(N_ROWS_ARGMAX, params.n_batch)
    if params.embeddings:  # one call embeds many texts
        params.n_seq_max = min(params.n_batch, lib.llama_max_parallel_sequences())
        params.kv_unified = True
    return room.n_guards


def _check_states(ctx: Any) -> None:
    """Raise Eagle3Error if passes are too small for the states that are kept."""
    n_states, n_ubatch = lib.llama_n_rs_seq(ctx), lib.llama_n_ubatch(ctx)
    if n_states and n_ubatch < n_states + 2:  # llama.cpp asserts it, as the last states must be of one pass
        shorter = f", or shorter drafts: draft_n_max of at most {n_ubatch - 2}" if n_ubatch > 2 else ""
        raise Eagle3Error(
            f"n_ubatch = {n_ubatch}: a model with recurrent states that keeps {n_states} of them to take drafted "
            f"tokens back needs n_ubatch and n_batch of at least {n_states + 2}{shorter}"
        )


def _load_adapters(plan: LoadPlan, model: Any) -> list[Any]:
    """Load the adapters, before a context of the model is made: its graphs get room for them. The model frees them."""
    found = []
    for path, _ in plan.lora:
        with LoadGuard() as guard:
            adapter = lib.llama_adapter_lora_init(model, os.fsencode(path))
        if not adapter:
            reason = guard.reason.rpartition("failed to apply lora adapter: ")[2] or "llama.cpp gives no reason"
            raise ModelFileError(f"'{path}' is no LoRA adapter for '{plan.path}': {reason}")
        found.append(adapter)
    return found


def _set_adapters(plan: LoadPlan, ctx: Any, adapters: Sequence[Any]) -> None:
    if adapters:
        array = (lib.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
        scales = (ctypes.c_float * len(adapters))(*(scale for _, scale in plan.lora))
        if lib.llama_set_adapters_lora(ctx, array, len(adapters), scales):
            raise ModelFileError(f"llama.cpp does not take the adapters {[path for path, _ in plan.lora]}")
