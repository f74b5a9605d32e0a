"""What a process may use of its machine: by a container's control groups, of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llama_cpp_eagle3 import machine

MIB = 2**20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /sys/fs/cgroup; the process is in the group that `own` beside it names."""
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "own")
    return tmp_path / "cgroup"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_no_groups(groups: Path) -> None:
    assert machine.cpu_quota() is None
    assert machine.free_memory() is not None or not Path("/proc/meminfo").exists()


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("", {"": {"cpu__max": "150000 100000"}}, 1.5),  # a container of cgroups 2
        ("0::/../other", {"": {"cpu__max": "150000 100000"}}, 1.5),
        ("", {"": {"cpu__max": "max 100000"}}, None),
        ("0::/a.slice/b", {"a.slice": {"cpu__max": "200000 100000"}, "a.slice/b": {"cpu__max": "max 100000"}}, 2.0),
        ("0::/a/b", {"a": {"cpu__max": "200000 100000"}, "a/b": {"cpu__max": "50000 100000"}}, 0.5),
        ("", {"cpu": {"cpu__cfs_quota_us": "300000", "cpu__cfs_period_us": "100000"}}, 3.0),  # cgroups 1
        ("", {"cpu": {"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}}, None),
        ("3:cpu,cpuacct:/d/1", {"cpu/d/1": {"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"}}, 0.5),
        ("3:cpu,cpuacct:/d/1", {"cpu": {"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"}}, 0.5),
        ("3:cpu,cpuacct:/d", {"cpu,cpuacct/d": {"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"}}, 0.5),
        ("", {"cpu,cpuacct": {"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"}}, 0.5),
        ("3:cpuacct,cpu:/d", {"cpu,cpuacct/d": {"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"}}, 0.5),
        ("3:cpuset:/d", {"cpuset": {"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"}}, None),
        ("2:name=systemd:/a\n0::/a", {"a": {"cpu__max": "70000 100000"}}, 0.7),
        ("0::/a:b c", {"a:b c": {"cpu__max": "70000 100000"}}, 0.7),
        ("", {"": {"cpu__max": "0 100000"}}, None),
        ("", {"": {"cpu__max": "garbage"}}, None),
        ("", {"": {"cpu__max": "9" * 400 + " 100000"}}, None),
        ("0::/a\0b", {"": {"cpu__max": "70000 100000"}}, 0.7),
    ],
)
def test_quota(groups: Path, own: str, files: dict[str, dict[str, str]], quota: float | None) -> None:
    write(groups.parent, own=own)
    for folder, found in files.items():
        write(groups / folder, **found)
    assert machine.cpu_quota() == quota


def test_threads_keep_to_the_quota(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000, 1008)), raising=False)  # no such cores
    assert machine.default_threads() == 8
    for quota, n in (("max", 8), ("1600000", 8), ("250000", 2), ("50000", 1)):
        write(groups, cpu__max=f"{quota} 100000")
        assert machine.default_threads() == n


@pytest.mark.parametrize("version", [1, 2])
def test_memory_of_a_container(groups: Path, version: int) -> None:
    """Files that are cached count as free."""
    if version == 2:
        write(groups, memory__max=str(8 * MIB), memory__current=str(5 * MIB), memory__stat=f"inactive_file {MIB}")
    else:
        write(groups / "memory", memory__limit_in_bytes=str(8 * MIB), memory__usage_in_bytes=str(4 * MIB))
    assert machine.free_memory() == 4 * MIB
