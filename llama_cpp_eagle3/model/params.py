"""Options of llama.cpp that `llama_cpp.Llama` has no argument for: devices, buffers, several adapters."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import llama_cpp.llama_cpp as lib

from .. import cpu_build
from .._core import Device, local_accelerators, local_devices
from ..errors import Eagle3Error, ModelFileError
from ..files.fingerprint import header_fingerprint
from .rpc import RpcServers, find_device

if TYPE_CHECKING:
    from ..config.eagle3_options import ConstructorOptions


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Arguments of `Eagle3Llama`, as it documents them."""

    devices: tuple[str, ...] | None = None
    override_tensor: tuple[tuple[str, str], ...] = ()
    lora: tuple[tuple[str, float], ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    cpu_kernels: str = "auto"

    @classmethod
    def of(cls, arguments: ConstructorOptions) -> ModelOptions:
        """Check arguments before anything is loaded.

        Raises:
            ModelFileError: an adapter's file is missing.
        """
        devices, params, cpu_kernels = arguments["devices"], arguments["model_params"], arguments["cpu_kernels"]
        names = devices.split(",") if isinstance(devices, str) else devices
        adapters = [(item, 1.0) if isinstance(item, str) else item for item in arguments["lora"]]
        if (lora_path := arguments.get("lora_path")) is not None:
            adapters.insert(0, (os.fspath(lora_path), arguments.get("lora_scale", 1.0)))
        paths = [(os.path.expanduser(path), float(scale)) for path, scale in adapters]
        for path, _ in paths:
            if not os.path.isfile(path):
                raise ModelFileError(f"'{path}' is missing: lora takes LoRA adapters in GGUF")
        return cls(
            None if names is None else tuple(name.strip() for name in names),
            tuple((str(pattern), str(buffer)) for pattern, buffer in arguments["override_tensor"]),
            tuple(paths),
            dict(params or {}),
            cpu_kernels,
        )

    def preset(self, params: Any, servers: RpcServers | None) -> list[Any]:
        """Set the fields of a llama_model_params; returns objects that must live until the model is loaded.

        Raises:
            ValueError: there is no such device or buffer type.
            Eagle3Error: no device has free memory.
        """
        kept: list[Any] = []
        devices = [*(servers.devices if servers is not None else ()), *local_accelerators()]
        if self.devices is not None:
            devices = (
                [] if self.devices == ("none",) else [find_device(name, servers, "devices") for name in self.devices]
            )
            kept.append((ctypes.c_void_p * (len(devices) + 1))(*(device.address for device in devices), None))
            params.devices = ctypes.cast(kept[-1], ctypes.c_void_p)
        elif servers is not None:
            kept.append(servers.model_devices())
            params.devices = ctypes.cast(kept[-1], ctypes.c_void_p)
        if params.n_gpu_layers != 0 and not (params.tensor_split and any(params.tensor_split[: len(devices)])):
            _check_free(devices)
        if self.override_tensor:
            devices = [*local_devices(), *(servers.devices if servers is not None else ())]
            types = dict(device.buffer_type for device in devices if device.buffer_type is not None)
            found = (_Override * (len(self.override_tensor) + 1))()
            for entry, (pattern, buffer) in zip(found, self.override_tensor, strict=False):
                if buffer not in types:
                    raise ValueError(
                        f"override_tensor: there is no buffer type {buffer!r}, there are {', '.join(types)}"
                    )
                entry.pattern, entry.buft = pattern.encode(), types[buffer]
            kept.append(found)
            params.tensor_buft_overrides = ctypes.cast(found, ctypes.c_void_p)
        for name, value in self.params.items():
            setattr(params, name, value)
        cpu_build.avoid_broken_amx(params)
        return kept

    def load_adapters(self, model: Any) -> list[Any]:
        """Load the adapters, before a context of the model is made: its graphs get room for them.

        Raises:
            ModelFileError: a file is no adapter for it. The model frees what is loaded.
        """
        found = []
        for path, _ in self.lora:
            adapter = lib.llama_adapter_lora_init(model, os.fsencode(path))
            if not adapter:
                raise ModelFileError(f"'{path}' is no LoRA adapter in GGUF for this model")
            found.append(adapter)
        return found

    def set_adapters(self, ctx: Any, adapters: Sequence[Any]) -> None:
        """Let a context use adapters."""
        if adapters:
            array = (lib.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
            scales = (ctypes.c_float * len(adapters))(*(scale for _, scale in self.lora))
            if lib.llama_set_adapters_lora(ctx, array, len(adapters), scales):
                raise ModelFileError(f"llama.cpp does not take the adapters {[path for path, _ in self.lora]}")

    def leaves_gpu_idle(self, n_gpu_layers: int) -> bool:
        """Whether no argument puts the model on this machine's accelerators."""
        return n_gpu_layers == 0 and self.devices is None and bool(local_accelerators())

    def costs_key(self) -> dict[str, Any]:
        """The options that costs depend on, ready for JSON; empty if they are llama.h's defaults."""
        usual = lib.llama_model_default_params()
        params = {name: value for name, value in self.params.items() if value != getattr(usual, name)}
        if cpu_build.broken_amx_here() is not None:  # ggml reports the same features with AMX
            params["use_extra_bufts"] = False
        key: dict[str, Any] = {"devices": self.devices, "override_tensor": self.override_tensor}
        key["lora"] = [(header_fingerprint(path), scale) for path, scale in self.lora]
        return {name: value for name, value in key.items() if value} | params


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
