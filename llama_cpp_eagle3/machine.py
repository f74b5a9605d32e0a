"""This machine's processor, and what this process may use of it and of the memory."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_SUPPLIES = Path("/sys/class/power_supply")


def default_threads() -> int:
    """Physical cores that the process may use, by its affinity and by a container's quota: more threads only wait."""
    try:
        cpus = os.sched_getaffinity(0)
    except AttributeError:  # macOS, Windows
        n = (os.cpu_count() or 2) // 2
    else:
        topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        n = len({_read(Path(topology.format(cpu))) or str(cpu) for cpu in cpus})
    quota = cpu_quota()
    return max(1, n if quota is None else min(n, int(quota)))


def cpu_quota() -> float | None:
    """Processors that a container or a service may use by its control groups; None: that is not bounded."""
    quotas = []
    for group in _groups("cpu"):
        words = _read(group / "cpu.max") or f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        with suppress(ValueError, OverflowError):  # "max", or there are no such files
            quota, period = map(int, words.split())
            if quota > 0 < period:
                quotas.append(quota / period)
    return min(quotas, default=None)


def free_memory() -> int | None:
    """Bytes that the process can have; None if the system does not report it."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", _read(Path("/proc/meminfo")), re.MULTILINE)
    bounds = [int(found[1]) << 10] if found else []
    for group in _groups("memory"):
        with suppress(ValueError):  # "max", or there are no such files
            most = int(_read(group / "memory.max") or _read(group / "memory.limit_in_bytes"))
            used = int(_read(group / "memory.current") or _read(group / "memory.usage_in_bytes"))
            cached = re.search(r"^inactive_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
            bounds.append(max(0, most - used + (int(cached[1]) if cached else 0)))
    return min(bounds, default=None)


def cpu_name() -> str:
    """The processor's name, or its architecture."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def is_on_battery() -> bool:
    """Whether the machine runs on its battery; False where the system does not say it."""
    if sys.platform == "darwin":
        told = subprocess.run(["/usr/bin/pmset", "-g", "batt"], capture_output=True, text=True, check=False).stdout
        return "Battery Power" in told
    supplies = [path.parent for path in _SUPPLIES.glob("*/type")]
    is_plugged = any(_read(path / "online").strip() == "1" for path in supplies)
    return not is_plugged and any(_read(path / "status").strip() == "Discharging" for path in supplies)


def cpu_flags() -> set[str]:
    """The processor's flags by Linux; empty elsewhere."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return set(found[1].split()) if found else set()


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups that bound this process: its own ones and those around them, of cgroups 2 and 1.

    A container may see its own group as the root, while its path is that of the host.
    """
    # of cgroups 1, which may be called "cpu,cpuacct" in any order, with a link "cpu" or without
    folders = [folder for folder in _CGROUPS.glob(f"*{controller}*") if controller in folder.name.split(",")]
    places = dict.fromkeys((_CGROUPS, *folders), "")
    for line in _read(_OWN_CGROUPS).splitlines():
        _, _, line = line.partition(":")
        controllers, _, path = line.partition(":")
        if not controllers:
            places[_CGROUPS] = path
        elif controller in controllers.split(","):
            places.update(dict.fromkeys(folders, path))
    for root, path in places.items():
        folder = root / path.lstrip("/")
        yield folder
        while folder != root:
            folder = folder.parent
            yield folder


def _read(path: Path) -> str:
    """Text of a file of the system; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # a path with a zero byte
        return ""
