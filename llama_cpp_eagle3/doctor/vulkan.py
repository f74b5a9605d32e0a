"""Devices by Vulkan's own list (`vkEnumeratePhysicalDevices`), which has more than llama.cpp takes."""

from __future__ import annotations

import ctypes
import struct
import sys
from dataclasses import dataclass
from typing import Any

_KINDS = ("other", "integrated GPU", "discrete GPU", "virtual GPU", "CPU")  # VkPhysicalDeviceType
_N_BYTES = 4096  # more than a VkPhysicalDeviceProperties
_ERRORS = {-9: "no driver is installed (VK_ERROR_INCOMPATIBLE_DRIVER)", -3: "VK_ERROR_INITIALIZATION_FAILED"}


@dataclass(frozen=True, slots=True)
class VulkanDevice:
    """One device."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class VulkanDevices:
    """All devices, or why there is no list."""

    devices: tuple[VulkanDevice, ...] = ()
    error: str = ""


class _InstanceCreateInfo(ctypes.Structure):
    _fields_ = (
        ("sType", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("pApplicationInfo", ctypes.c_void_p),
        ("enabledLayerCount", ctypes.c_uint32),
        ("ppEnabledLayerNames", ctypes.c_void_p),
        ("enabledExtensionCount", ctypes.c_uint32),
        ("ppEnabledExtensionNames", ctypes.c_void_p),
    )


def vulkan_devices() -> VulkanDevices:
    """Ask Vulkan's loader.

    It loads the drivers into this process. So call this only if llama.cpp is compiled with Vulkan, and has done so.
    """
    name = {"darwin": "libvulkan.1.dylib", "win32": "vulkan-1.dll"}.get(sys.platform, "libvulkan.so.1")
    try:
        return list_devices(ctypes.CDLL(name))
    except OSError:
        return VulkanDevices(error=f"there is no {name}")


def list_devices(vulkan: Any) -> VulkanDevices:
    """The devices that a loader finds. vulkan: its library."""
    instance, n = ctypes.c_void_p(), ctypes.c_uint32()
    info = _InstanceCreateInfo(sType=1)  # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO
    status = vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance))
    if status:
        return VulkanDevices(error=_ERRORS.get(status, f"vkCreateInstance returned {status}"))
    try:
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(n), None)
        handles = (ctypes.c_void_p * n.value)()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(n), handles)
        found = []
        for handle in handles[: n.value]:
            properties = ctypes.create_string_buffer(_N_BYTES)
            vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(handle), properties)
            kind, name = struct.unpack_from("=i256s", properties, 16)  # after versions, vendor and device
            text = name.split(b"\0")[0].decode(errors="replace")
            found.append(VulkanDevice(text, _KINDS[kind] if 0 <= kind < len(_KINDS) else _KINDS[0]))
        return VulkanDevices(tuple(found))
    finally:
        vulkan.vkDestroyInstance(instance, None)
