"""Check that a drafter's damaged saved state is refused or harmless."""

from __future__ import annotations

import numpy as np
import pytest

from drafting import draft_chain
from llama_cpp_eagle3 import Eagle3Error
from llama_cpp_eagle3._core import Drafter


def check_damaged_states(drafter: Drafter, state: bytes, i_fixed: int, n_front: int | None = None) -> None:
    """Load states that are too short, too long, or have changed bits, and draft from those that the drafter accepts.

    Args:
        drafter: the drafter that saved the state.
        state: a good state.
        i_fixed: index of a byte that has one right value, which is not 1.
        n_front: bits change in this many bytes at the front; None: in all bytes.
    """
    fixed = state[:i_fixed] + b"\1" + state[i_fixed + 1 :]
    for bad in (b"", state[:20], state[:-1], state + b"x", b"no" + state[2:], fixed):
        with pytest.raises((ValueError, Eagle3Error)):
            drafter.state_set(bad)
    rng = np.random.default_rng(0)
    for _ in range(50):
        bad_bytes = bytearray(state)
        bad_bytes[rng.integers(0, min(len(state), n_front or len(state)))] ^= 1 << int(rng.integers(0, 8))
        try:
            drafter.state_set(bytes(bad_bytes))
            draft_chain(drafter, 1, 2)
        except (ValueError, Eagle3Error):
            pass
