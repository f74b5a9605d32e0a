"""Devices get the tolerance of their arithmetic (tests/support/tolerance.py)."""

from __future__ import annotations

import pytest

import placement
from tolerance import FLOAT32, TEN_BITS, Arithmetic, arithmetic, tolerance


@pytest.mark.parametrize(
    ("device", "environ", "expected"),
    [
        ("CPU", {}, FLOAT32),
        ("RPC1", {"GGML_VK_DISABLE_F16": "1"}, FLOAT32),
        ("Vulkan0", {}, TEN_BITS),
        ("Vulkan0", {"GGML_VK_DISABLE_F16": "1"}, FLOAT32),
        ("CUDA1", {"NVIDIA_TF32_OVERRIDE": "0"}, TEN_BITS),
        ("MTL0", {}, TEN_BITS),
        ("SYCL0", {}, TEN_BITS),
    ],
)
def test_what_devices_compute(device: str, environ: dict[str, str], expected: Arithmetic) -> None:
    assert arithmetic(device, environ) is expected


def test_a_tolerance_is_never_closer_than_the_device_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tolerance(1e-6) == 1e-6
    monkeypatch.setattr(placement, "device_name", lambda: "CUDA0")
    assert tolerance(1e-6) == TEN_BITS.floor
    assert tolerance(0.1) == 0.1
