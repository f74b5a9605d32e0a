"""What tests of images need around them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import pytest

_M_MMAP_THRESHOLD, _M_PERTURB = -3, -6
_N_DEFAULT = 128 << 10


@pytest.fixture(scope="session", autouse=True)
def fresh_memory() -> Iterator[None]:
    """Have buffers begin with zeros here too, as those of models that are not tiny do.

    llama.cpp makes Pixtral's [IMG_BREAK] rows of memory that nobody wrote, multiplied by 0 (its tools/mtmd/models/
    pixtral.cpp): a NaN in it stays one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 4096)
        mallopt(_M_PERTURB, 0xFF)  # what is smaller is filled with its complement
    yield
    if mallopt is not None:
        mallopt(_M_PERTURB, 0)
        mallopt(_M_MMAP_THRESHOLD, _N_DEFAULT)
