"""Fixtures for tests of images."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import pytest

_M_MMAP_THRESHOLD, _M_PERTURB = -3, -6
_N_DEFAULT, _N_MAX = 128 << 10, 32 << 20


@pytest.fixture(scope="session", autouse=True)
def memory_full_of_nan() -> Iterator[bool]:
    """Fill all new memory with bytes of 0xFF, which are NaNs; yield whether that is possible here."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield False
        return
    mallopt(_M_MMAP_THRESHOLD, _N_MAX)  # larger blocks begin with zeros
    mallopt(_M_PERTURB, 0x100)  # the complement of the byte's value
    yield True
    mallopt(_M_PERTURB, 0)
    mallopt(_M_MMAP_THRESHOLD, _N_DEFAULT)
