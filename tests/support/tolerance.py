"""How close the numbers of the place where a test runs can be to a reference's, by what it computes.

A test says what holds for float32, summed in whatever order: on this machine, on a ggml-rpc server of its CPU. Devices
that multiply with fewer bits are no closer than these allow, and are compared to that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import placement


@dataclass(frozen=True)
class Arithmetic:
    """What a place computes products in, and how close its results can then be to a reference."""

    name: str
    floor: float


FLOAT32 = Arithmetic("float32", 0.0)
"""Products and sums in float32: a test's own tolerance, which is for sums in another order, holds."""

TEN_BITS = Arithmetic("ten bits", 5e-3)
"""TF32 and F16 have ten bits after the point: each factor is off by up to 2^-11. An H200 differed from float64 by 3e-4
to 4e-3 in what these tests compare; wrong positions moved it by 0.07 to 0.84."""

BACKENDS: dict[str, tuple[Arithmetic, str, str]] = {
    "CPU": (FLOAT32, "", ""),
    "RPC": (FLOAT32, "", ""),  # the tests' servers have the CPU
    "Vulkan": (TEN_BITS, "GGML_VK_DISABLE_F16", "shaders multiply in float16_t where the device has it"),
    "CUDA": (TEN_BITS, "", "F32 matrices are multiplied in TF32, by cuBLAS and by mma.cuh, which asks no environment"),
    "MTL": (TEN_BITS, "", "simdgroups multiply matrices of half"),
}
"""Start of a device's name -> what it computes, the environment variable with which it is float32 instead, and why."""


def arithmetic(device: str, environ: Mapping[str, str] = os.environ) -> Arithmetic:
    """What a device of that name computes. What nobody has looked at has ten bits."""
    name = next((name for name in BACKENDS if device.startswith(name)), None)
    if name is None:
        return TEN_BITS
    usual, switch, _ = BACKENDS[name]
    return FLOAT32 if switch and switch in environ else usual


def tolerance(of_float32: float) -> float:
    """A test's tolerance in the place where it runs."""
    return max(of_float32, arithmetic(placement.device_name()).floor)
