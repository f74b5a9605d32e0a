"""Where the tests' models run: on this machine, or on a ggml-rpc server over loopback.

A module or test marked `also_on_rpc` runs here and in the places that the mark names: all of them, if it names none.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.rpc import RpcServers

PLACES = ("target-on-rpc", "both-on-rpc")


class Placement:
    """A server, and what of a pair runs on it."""

    def __init__(self, endpoint: str, draft: bool):
        self.servers = RpcServers([endpoint])  # keeps the connection open from one model to the next
        self.endpoint, self.draft = endpoint, draft
        self._devices: Any = None

    def close(self) -> None:
        self.servers.close()


current: Placement | None = None


def load_options(with_draft: bool) -> dict[str, Any]:
    """Arguments of Eagle3Llama."""
    if current is None:
        return {}
    options: dict[str, Any] = {"rpc_servers": [current.endpoint]}
    return options | {"draft_device": current.endpoint} if with_draft and current.draft else options


def preset(params: Any) -> None:
    """Set the devices in llama_model_params."""
    if current is not None:
        current._devices = current.servers.model_devices()
        params.devices = ctypes.cast(current._devices, ctypes.c_void_p)
        params.n_gpu_layers = 999


def draft_device() -> _core.Device | None:
    """Where a bare Drafter runs; None = on the CPU."""
    return current.servers.devices[0] if current is not None and current.draft else None
