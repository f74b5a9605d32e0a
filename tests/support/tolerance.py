"""Set how close a device's numbers can be to a reference's, by its arithmetic.

A test's own tolerance holds for float32, summed in any order: on this machine, on a ggml-rpc server of its CPU. Devices
that multiply with fewer bits are no closer than their bits allow, and get a larger tolerance.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import placement


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a device's products, and how close its results can be to a reference."""

    name: str
    floor: float


FLOAT32 = Arithmetic("float32", 0.0)
"""Products and sums in float32: a test's own tolerance, which is for sums in another order, holds."""

TEN_BITS = Arithmetic("ten bits", 5e-3)
"""TF32 and F16 have ten bits after the point: each factor is off by up to 2^-11. An H200 differed from float64 by 3e-4
to 4e-3 in the values that these tests compare; wrong positions moved it by 0.07 to 0.84."""

BACKENDS: dict[str, tuple[Arithmetic, str, str]] = {
    "CPU": (FLOAT32, "", ""),
    "RPC": (FLOAT32, "", ""),  # the tests' servers have the CPU
    "Vulkan": (TEN_BITS, "GGML_VK_DISABLE_F16", "shaders multiply in float16_t where the device has it"),
    "CUDA": (TEN_BITS, "", "F32 matrices are multiplied in TF32, by cuBLAS and by mma.cuh, which asks no environment"),
    "MTL": (TEN_BITS, "", "simdgroups multiply matrices of half"),
}
"""Start of a device's name -> its arithmetic, the environment variable that makes it float32, and the reason."""


def arithmetic(device: str, environ: Mapping[str, str] = os.environ) -> Arithmetic:
    """Return the arithmetic of a device by its name. For unknown devices it is ten bits."""
    name = next((name for name in BACKENDS if device.startswith(name)), None)
    if name is None:
        return TEN_BITS
    usual, switch, _ = BACKENDS[name]
    return FLOAT32 if switch and switch in environ else usual


def tolerance(of_float32: float) -> float:
    """Return a test's tolerance on the device where it runs."""
    return max(of_float32, arithmetic(placement.device_name()).floor)


def of_target(of_float32: float, *, has_experts: bool = False) -> float:
    """Return a test's tolerance for a target's rows and logits on the device where it runs.

    ggml-vulkan computes a pass of one row in float32, and rounds some values to F16 in passes of several rows. In plain
    contexts of llama.cpp logits of up to 8 differed between such passes by up to 3.0e-3 with flash attention and 1.8e-2
    without it, so that `placement` sets it; with experts, whose choice a rounding may change, by 1.8e-2 and 3.7e-2
    (`make vulkan VULKAN_ARGS=--rounding`).
    """
    if not placement.is_vulkan():
        return tolerance(of_float32)
    return max(tolerance(of_float32), 3e-2 if has_experts else 1e-2)
