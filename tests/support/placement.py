"""Place the tests' models: on the processor, on a ggml-rpc server over loopback, or on this machine's accelerator.

A module or test marked `also_on_rpc` runs here and on the devices that the mark names: on all of them, if it names
none. If there is an accelerator it runs there too, target and draft.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import pytest

from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.model.rpc import RpcServers

PLACES = ("target-on-rpc", "both-on-rpc")
ON_GPU = "on-gpu"
ON_CPU: dict[str, Any] = {"devices": "none"}
"""Options of Eagle3Llama; with n_gpu_layers=0 an accelerator multiplies in passes of 32 rows and more."""
ON_AN_ACCELERATOR = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _core.local_accelerators(), reason="there is no accelerator"),
]
"""Marks of tests that need one, and place their models themselves."""


class Placement:
    """A server, and the part of a pair that runs on it."""

    def __init__(self, endpoint: str, draft: bool):
        self.servers = RpcServers([endpoint])  # keeps the connection open from one model to the next
        self.endpoint, self.draft = endpoint, draft
        self._devices: Any = None

    @property
    def device_name(self) -> str:
        return str(self.servers.devices[0].name)

    def load_options(self, with_draft: bool) -> dict[str, Any]:
        options: dict[str, Any] = {"rpc_servers": [self.endpoint]}
        return options | {"draft_device": self.endpoint} if with_draft and self.draft else options

    def preset(self, params: Any) -> None:
        addresses = [device.address for device in (*self.servers.devices, *_core.local_accelerators())]
        self._devices = (ctypes.c_void_p * (len(addresses) + 1))(*addresses, None)
        params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        params.n_gpu_layers = 999

    def draft_device(self) -> _core.Device | None:
        return self.servers.devices[0] if self.draft else None

    def close(self) -> None:
        self.servers.close()


class OnGpu:
    """All of a pair on the first accelerator."""

    @property
    def device_name(self) -> str:
        return str(_core.local_accelerators()[0].name)

    def load_options(self, _: bool) -> dict[str, Any]:
        return {"n_gpu_layers": -1} | ({"flash_attn": True} if is_vulkan() else {})

    def preset(self, params: Any) -> None:
        params.n_gpu_layers = 999

    def draft_device(self) -> _core.Device | None:
        return _core.local_accelerators()[0]

    def close(self) -> None:
        pass


current: Placement | OnGpu | None = None


def load_options(with_draft: bool) -> dict[str, Any]:
    """Return arguments of Eagle3Llama."""
    return current.load_options(with_draft) if current is not None else {}


def preset(params: Any) -> None:
    """Set the devices in llama_model_params."""
    if current is not None:
        current.preset(params)


def is_vulkan() -> bool:
    """Whether the models run on Vulkan, where a target without flash attention rounds rows to F16."""
    return device_name().startswith("Vulkan")


def preset_context(params: Any) -> None:
    """Set flash attention in llama_context_params: on with Vulkan, else off."""
    types = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.flash_attn_type = types[is_vulkan()]


def draft_device() -> _core.Device | None:
    """Return the device of a bare Drafter; None = the CPU."""
    return current.draft_device() if current is not None else None


def device_name() -> str:
    """Return the name of the device that is not this machine's processor, or of the processor."""
    return current.device_name if current is not None else "CPU"
