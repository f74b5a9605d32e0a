"""GPUs that the system shows, the backends of llama.cpp that can use them, and why a build finds none."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from .._library import libllama_path
from ..cpu_build import NATIVE
from .finding import Finding
from .vulkan import VulkanDevices, vulkan_devices

_MAKERS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_DISPLAY, _ACCELERATOR = 0x03, 0x12  # classes of PCI
_USABLE = {"NVIDIA": ("CUDA", "Vulkan"), "AMD": ("Vulkan", "HIP"), "Intel": ("Vulkan", "SYCL"), "Apple": ("Metal",)}
"""Maker -> backends of llama.cpp that can use its GPUs, first the one that runs on most of them."""
_FLAGS = {
    "CUDA": "-DGGML_CUDA=on",
    "HIP": "-DGGML_HIP=on",
    "Vulkan": "-DGGML_VULKAN=on",
    "SYCL": "-DGGML_SYCL=on -DCMAKE_C_COMPILER=icx -DCMAKE_CXX_COMPILER=icpx",
    "Metal": "-DGGML_METAL=on",
}
_HIDING = {
    "CUDA": ("CUDA_VISIBLE_DEVICES",),
    "HIP": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "Vulkan": ("GGML_VK_VISIBLE_DEVICES", "VK_DRIVER_FILES", "VK_ICD_FILENAMES"),
    "SYCL": ("ONEAPI_DEVICE_SELECTOR",),
}
"""Backend -> variables of the environment that hide devices from it."""
_CHECKS = {
    "CUDA": "`nvidia-smi` must list it: it comes with NVIDIA's driver, which the kernel must have loaded",
    "HIP": "`rocminfo` must list it, and its architecture must be one that llama.cpp was compiled for",
    "Vulkan": "`vulkaninfo --summary` must list it as a GPU: Debian and Ubuntu have the drivers for AMD and Intel in "
    "mesa-vulkan-drivers, NVIDIA's driver brings its own",
    "SYCL": "`sycl-ls` must list it as level_zero:gpu, with oneAPI's setvars.sh read in the same shell",
    "Metal": "Metal needs macOS on the machine itself: virtual machines often have none",
}
"""Backend -> what to check if it finds no device."""
_CONTAINER = (
    "in a container: docker run --gpus all for NVIDIA, --device /dev/dri for AMD and Intel, --device /dev/kfd for HIP"
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the system shows, whatever llama.cpp was compiled for."""

    maker: str
    id: str = ""
    """Vendor and device of PCI, such as 8086:56a0; empty if it was found in another way."""
    driver: str | None = ""
    """The kernel's driver that has it; empty if none has, None if that is not known."""
    nodes: tuple[str, ...] = ()
    """Files of devices that programs open to use it."""

    def __str__(self) -> str:
        driver = "" if self.driver is None else f", driver {self.driver}" if self.driver else ", no driver"
        return f"{self.maker} GPU" + (f" (PCI {self.id}{driver})" if self.id else "")


def find_gpus(root: Path = Path("/")) -> list[Gpu]:
    """The GPUs of this machine that can compute: by Linux's /sys, by NVIDIA's driver, on macOS by the platform.

    root: of the file system, for tests.
    """
    if sys.platform == "darwin":
        return [Gpu("Apple", driver=None)] if platform.machine() == "arm64" else []
    folders = [*root.glob("sys/bus/pci/devices/*"), *(card / "device" for card in root.glob("sys/class/drm/card*"))]
    unique = {folder.resolve(): folder for folder in folders if re.fullmatch(r"(card\d+|.*:.*)", _name(folder))}
    gpus = [gpu for folder in sorted(unique) if (gpu := _read_gpu(folder, root)) is not None]
    has_driver = (root / "proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if has_driver and not any(gpu.maker == "NVIDIA" for gpu in gpus):  # WSL and some containers have no more than that
        gpus.append(Gpu("NVIDIA", driver=None))
    return gpus


def _name(folder: Path) -> str:
    """The name of a card's entry in /sys; a connector (card0-HDMI-A-1) keeps its own."""
    return folder.parent.name if folder.name == "device" else folder.name


def _read_gpu(folder: Path, root: Path) -> Gpu | None:
    try:
        vendor, device = (int((folder / name).read_text(), 16) for name in ("vendor", "device"))
        kind = int((folder / "class").read_text(), 16) >> 16
    except (OSError, ValueError):
        return None
    maker = _MAKERS.get(vendor)
    # Intel's accelerators are NPUs, AMD's are GPUs without a display
    if maker is None or (kind != _DISPLAY and (kind != _ACCELERATOR or maker == "Intel")):
        return None
    driver = folder / "driver"
    nodes = [str(root / "dev/dri" / node.name) for node in folder.glob("drm/renderD*")]
    return Gpu(maker, f"{vendor:04x}:{device:04x}", driver.resolve().name if driver.exists() else "", tuple(nodes))


def built_backends() -> set[str]:
    """Backends for GPUs that llama.cpp was compiled with, by its libraries' names."""
    return backends_in(libllama_path().parent)


def backends_in(folder: Path) -> set[str]:
    """Backends for GPUs among the libraries in a folder."""
    found = {m[1] for path in folder.glob("*ggml-*") if (m := re.match(r"(?:lib)?ggml-(\w+)\.", path.name))}
    return {name for name in _FLAGS if name.lower() in found}


def judge_gpus(
    accelerators: Sequence[str],
    gpus: Sequence[Gpu],
    backends: Set[str],
    environment: Mapping[str, str] = os.environ,
    vulkan: VulkanDevices | None = None,
) -> list[Finding]:
    """Compare the accelerators that llama.cpp sees with the GPUs that the system shows.

    backends: those for GPUs that llama.cpp was compiled with. environment: may hide devices. vulkan: Vulkan's own list;
    None: it is read if it is needed.
    """
    shown = [str(gpu) for gpu in gpus]
    if accelerators:
        found = [Finding("ok", f"{', '.join(accelerators)}: -ngl -1 (the default), in Python n_gpu_layers=-1")]
        for gpu in gpus:
            if not backends & set(_USABLE[gpu.maker]):
                ways = " or ".join(_USABLE[gpu.maker])
                text = f"{gpu}: not used, llama.cpp can use it by {ways} (docs/install.md)"
                found.append(Finding("note", text))
        return found
    if not backends:
        if not gpus:
            return [Finding("ok", "no GPU: all runs on the CPU")]
        text = f"{', '.join(shown)}: llama-cpp-python was compiled for no GPU, so all runs on the CPU"
        return [Finding("warning", text, _rebuild(gpus[0].maker))]
    built = " and ".join(sorted(backends))
    if not gpus:
        text = f"llama-cpp-python was compiled with {built}, but the system shows no GPU: all runs on the CPU"
        return [Finding("note", text, _CONTAINER), *_describe(backends, environment, vulkan)]
    right = [gpu for gpu in gpus if backends & set(_USABLE[gpu.maker])]
    if not right:
        text = f"{', '.join(shown)}: {built}, which llama-cpp-python was compiled with, cannot use it: all runs on CPU"
        return [Finding("warning", text, _rebuild(gpus[0].maker))]
    text = (
        f"{', '.join(map(str, right))}: llama-cpp-python was compiled with {built}, but it finds no device there: all "
        "runs on the CPU"
    )
    usable = [name for name in _USABLE[right[0].maker] if name in backends]
    advice = "; ".join(_CHECKS[name] for name in usable)
    return [Finding("warning", text, advice), *_without_driver(right), *_describe(usable, environment, vulkan)]


def _rebuild(maker: str) -> str:
    """The command that compiles llama.cpp for a maker's GPUs."""
    first, *others = _USABLE[maker]
    more = "".join(f"; {name} ({_FLAGS[name].split()[0]}) can use it too" for name in others)
    return f'CMAKE_ARGS="{_FLAGS[first]}" {NATIVE}{more}; docs/install.md names the packages that this needs'


def _without_driver(gpus: Sequence[Gpu]) -> list[Finding]:
    """GPUs that programs cannot use, because of the kernel or the rights of device files."""
    found = []
    for gpu in gpus:
        if gpu.driver == "":
            found.append(Finding("note", f"{gpu}: the kernel has loaded no driver for it"))
        for node in gpu.nodes:
            if not os.path.exists(node):
                found.append(Finding("note", f"{gpu}: there is no {node}", _CONTAINER))
            elif not os.access(node, os.R_OK | os.W_OK):
                advice = "sudo usermod -aG render,video $USER, then log in again"
                found.append(Finding("note", f"{gpu}: this user may not open {node}", advice))
    return found


def _describe(backends: Collection[str], environment: Mapping[str, str], vulkan: VulkanDevices | None) -> list[Finding]:
    """Reports of the backends: variables that hide devices, and Vulkan's list."""
    names = [name for backend in sorted(backends) for name in _HIDING.get(backend, ()) if name in environment]
    found = [Finding("note", f"{name}={environment[name]!r} may hide devices", f"unset {name}") for name in names]
    if "Vulkan" in backends:
        listed = vulkan or vulkan_devices()
        if listed.error:
            found.append(Finding("note", f"Vulkan itself: {listed.error}"))
        else:
            text = ", ".join(f"{d.name} ({d.kind})" for d in listed.devices) or "no device"
            found.append(Finding("note", f"Vulkan's own list: {text}; llama.cpp takes none of type CPU by itself"))
    return found
