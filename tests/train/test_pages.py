"""Training asks for memory in pages of 2 MiB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")

_SCRIPT = """
import re
import llama_cpp_eagle3_heads.train
import torch

def huge():
    return int(re.search(r"AnonHugePages: +(\\d+) kB", open("/proc/self/smaps_rollup").read())[1])

before = huge()
values = torch.ones(64 << 20, dtype=torch.uint8)
print(huge() - before)
"""


@pytest.mark.skipif(
    not _ENABLED.exists() or "[never]" in _ENABLED.read_text(), reason="the kernel gives no pages of 2 MiB"
)
def test_a_tensor_lies_in_large_pages() -> None:
    found = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert int(found.stdout) >= 48 << 10
