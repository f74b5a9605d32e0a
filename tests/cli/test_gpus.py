"""GPUs that the system shows are found, and `doctor` judges builds with and without their backends."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Any

import pytest

from llama_cpp_eagle3.doctor import Finding, gpus, vulkan
from llama_cpp_eagle3.doctor.gpus import Gpu, backends_in, find_gpus, judge_gpus
from llama_cpp_eagle3.doctor.vulkan import VulkanDevice, VulkanDevices

LLVMPIPE = VulkanDevices((VulkanDevice("llvmpipe", "CPU"),))
NOTHING: dict[str, str] = {}


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's own platform and programs."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(gpus.shutil, "which", lambda _: None)


def add_device(root: Path, slot: str, vendor: int, device: int, kind: int, driver: str = "", card: str = "") -> Path:
    """Add a PCI device as Linux shows it, and its DRM card."""
    folder = root / "sys/devices/pci0000:00" / slot
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", device), ("class", kind)):
        (folder / name).write_text(f"0x{value:04x}\n")
    buses = root / "sys/bus/pci/devices"
    buses.mkdir(parents=True, exist_ok=True)
    (buses / slot).symlink_to(folder)
    if driver:
        drivers = root / "sys/bus/pci/drivers" / driver
        drivers.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(drivers)
    if card:
        for name in (card, f"{card}-HDMI-A-1"):
            cards = root / "sys/class/drm" / name
            cards.mkdir(parents=True)
            (cards / "device").symlink_to(folder if name == card else root / "sys/class/drm" / card)
        (folder / "drm/renderD128").mkdir(parents=True)
    return folder


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


@pytest.mark.parametrize(
    ("vendor", "device", "kind", "driver", "expected"),
    [
        (0x10DE, 0x2684, 0x030000, "nvidia", "NVIDIA GPU (PCI 10de:2684, driver nvidia)"),
        (0x10DE, 0x2330, 0x030200, "", "NVIDIA GPU (PCI 10de:2330, no driver)"),
        (0x1002, 0x744C, 0x030000, "amdgpu", "AMD GPU (PCI 1002:744c, driver amdgpu)"),
        (0x1002, 0x74A1, 0x120000, "amdgpu", "AMD GPU (PCI 1002:74a1, driver amdgpu)"),  # without a display
        (0x8086, 0x56A0, 0x030000, "xe", "Intel GPU (PCI 8086:56a0, driver xe)"),
        (0x8086, 0x4680, 0x038000, "i915", "Intel GPU (PCI 8086:4680, driver i915)"),
        (0x8086, 0x7D1D, 0x120000, "intel_vpu", None),  # an NPU
        (0x8086, 0x15F3, 0x020000, "igc", None),  # a network card
        (0x1A03, 0x2000, 0x030000, "ast", None),  # a server's display, which computes nothing
        (0x1AF4, 0x1050, 0x030000, "virtio-pci", None),
    ],
)
def test_linux(tmp_path: Path, vendor: int, device: int, kind: int, driver: str, expected: str | None) -> None:
    add_device(tmp_path, "0000:03:00.0", vendor, device, kind, driver)
    assert [str(gpu) for gpu in find_gpus(tmp_path)] == ([expected] if expected else [])


def test_a_card_is_counted_once(tmp_path: Path) -> None:
    assert find_gpus(tmp_path) == []
    add_device(tmp_path, "0000:00:02.0", 0x8086, 0x4680, 0x030000, "i915", card="card1")
    add_device(tmp_path, "0000:03:00.0", 0x1002, 0x744C, 0x030000, "amdgpu", card="card0")
    found = find_gpus(tmp_path)
    assert sorted(gpu.maker for gpu in found) == ["AMD", "Intel"]
    assert all(gpu.nodes == (str(tmp_path / "dev/dri/renderD128"),) for gpu in found)


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    folder = add_device(tmp_path, "0000:03:00.0", 0x1002, 0x744C, 0x030000)
    (folder / "class").write_text("what\n")
    broken = add_device(tmp_path, "0000:04:00.0", 0x1002, 0x744C, 0x030000)
    (broken / "vendor").unlink()
    assert find_gpus(tmp_path) == []


def test_nvidia_by_its_driver_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version\n")
    assert [str(gpu) for gpu in find_gpus(tmp_path)] == ["NVIDIA GPU"]
    add_device(tmp_path, "0000:03:00.0", 0x10DE, 0x2684, 0x030000, "nvidia")
    assert [gpu.id for gpu in find_gpus(tmp_path)] == ["10de:2684"]
    monkeypatch.setattr(gpus.shutil, "which", lambda name: f"/usr/lib/wsl/lib/{name}")
    assert [gpu.maker for gpu in find_gpus(tmp_path / "none")] == ["NVIDIA"]


@pytest.mark.parametrize(("machine", "expected"), [("arm64", ["Apple GPU"]), ("x86_64", [])])
def test_macos(machine: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(gpus.platform, "machine", lambda: machine)
    assert [str(gpu) for gpu in find_gpus(tmp_path)] == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["libggml-base.so.0", "libggml-cpu.so", "libggml-rpc.so", "libggml.so"], set()),
        (["libggml-cuda.so", "libggml-cuda.so.0.25.3"], {"CUDA"}),
        (["libggml-hip.so"], {"HIP"}),
        (["libggml-vulkan.so.0", "libggml-sycl.so"], {"Vulkan", "SYCL"}),
        (["libggml-metal.dylib", "libggml-blas.dylib"], {"Metal"}),
        (["ggml-vulkan.dll"], {"Vulkan"}),
    ],
)
def test_backends(names: list[str], expected: set[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert backends_in(tmp_path) == expected


def test_what_is_used() -> None:
    intel, nvidia = Gpu("Intel", "8086:4680", "i915"), Gpu("NVIDIA", "10de:2684", "nvidia")
    assert levels(judge_gpus(["CUDA0 (H200)"], [nvidia], {"CUDA"})) == ["ok"]
    used, other = judge_gpus(["CUDA0 (H200)"], [nvidia, intel], {"CUDA"})
    assert (used.level, other.level) == ("ok", "note")
    assert "Intel GPU (PCI 8086:4680, driver i915): not used" in other.text
    assert "by Vulkan or SYCL" in other.text


@pytest.mark.parametrize(
    ("maker", "flag", "also"),
    [
        ("NVIDIA", "-DGGML_CUDA=on", "-DGGML_VULKAN=on"),
        ("AMD", "-DGGML_VULKAN=on", "-DGGML_HIP=on"),
        ("Intel", "-DGGML_VULKAN=on", "-DGGML_SYCL=on"),
        ("Apple", "-DGGML_METAL=on", ""),
    ],
)
def test_builds_for_no_gpu(maker: str, flag: str, also: str) -> None:
    (finding,) = judge_gpus([], [Gpu(maker, driver=None)], set())
    assert finding.level == "warning"
    assert f"{maker} GPU: llama-cpp-python was compiled for no GPU" in finding.text
    assert f'CMAKE_ARGS="{flag}" pip install' in finding.advice
    assert also in finding.advice


def test_neither_gpu_nor_backend() -> None:
    assert judge_gpus([], [], set()) == [Finding("ok", "no GPU: all runs on the CPU")]


def test_a_backend_for_other_makers() -> None:
    (finding,) = judge_gpus([], [Gpu("AMD", "1002:744c", "amdgpu")], {"CUDA"})
    assert finding.level == "warning"
    assert "CUDA, which llama-cpp-python was compiled with, cannot use it" in finding.text


def test_a_build_that_finds_no_device() -> None:
    """A build that finds no device is told from a build without GPU support, and from a machine without a GPU."""
    nothing_there, listed = judge_gpus([], [], {"Vulkan"}, NOTHING, LLVMPIPE)
    assert nothing_there.level == "note"
    assert "compiled with Vulkan, but the system shows no GPU" in nothing_there.text
    assert "--device /dev/dri" in nothing_there.advice
    assert "llvmpipe (CPU)" in listed.text
    unseen, listed = judge_gpus([], [Gpu("Intel", "8086:56a0", "xe")], {"Vulkan"}, NOTHING, LLVMPIPE)
    assert unseen.level == "warning"
    assert "compiled with Vulkan, but it finds no device there" in unseen.text
    assert "mesa-vulkan-drivers" in unseen.advice
    assert "llvmpipe (CPU)" in listed.text
    none_listed = judge_gpus([], [Gpu("AMD")], {"Vulkan"}, NOTHING, VulkanDevices(error="no driver is installed"))
    assert "Vulkan itself: no driver is installed" in none_listed[-1].text


def test_why_no_device_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = judge_gpus([], [Gpu("NVIDIA", "10de:2684", "")], {"CUDA"}, {"CUDA_VISIBLE_DEVICES": ""})
    assert levels(cuda) == ["warning", "note", "note"]
    assert "`nvidia-smi` must list it" in cuda[0].advice
    assert "the kernel has loaded no driver for it" in cuda[1].text
    assert cuda[2].text.startswith("CUDA_VISIBLE_DEVICES=''")
    node = tmp_path / "renderD128"
    amd = Gpu("AMD", "1002:744c", "amdgpu", (str(node),))
    assert f"there is no {node}" in judge_gpus([], [amd], {"HIP"}, NOTHING)[1].text
    node.touch()
    monkeypatch.setattr(gpus.os, "access", lambda *_: False)
    closed = judge_gpus([], [amd], {"HIP"}, NOTHING)[1]
    assert f"may not open {node}" in closed.text
    assert "usermod -aG render" in closed.advice


class Loader:
    """A stand-in for libvulkan: two devices, or an error."""

    def __init__(self, status: int = 0):
        self.status, self.n_open = status, 0

    def vkCreateInstance(self, info: Any, _: None, instance: Any) -> int:
        assert info._obj.sType == 1
        self.n_open += not self.status
        return self.status

    def vkEnumeratePhysicalDevices(self, _: Any, n: Any, handles: Any) -> int:
        n._obj.value = 2
        if handles is not None:
            handles[0], handles[1] = 1, 2
        return 0

    def vkGetPhysicalDeviceProperties(self, handle: ctypes.c_void_p, properties: Any) -> None:
        name, kind = {1: (b"llvmpipe", 4), 2: (b"a card", 2)}[handle.value or 0]
        struct.pack_into("=IIIIi256s", properties, 0, 1, 1, 0x1002, 1, kind, name)

    def vkDestroyInstance(self, *_: Any) -> None:
        self.n_open -= 1


def test_vulkans_list(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader()
    expected = (VulkanDevice("llvmpipe", "CPU"), VulkanDevice("a card", "discrete GPU"))
    assert vulkan.list_devices(loader) == VulkanDevices(expected)
    assert loader.n_open == 0
    assert "no driver is installed" in vulkan.list_devices(Loader(-9)).error
    assert "returned -2" in vulkan.list_devices(Loader(-2)).error

    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(vulkan.ctypes, "CDLL", absent)
    assert vulkan.vulkan_devices().error == "there is no libvulkan.so.1"
