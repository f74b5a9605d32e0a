"""A guard lets in one thread at a time, and never stays taken."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llama_cpp_eagle3._core import Guard
from llama_cpp_eagle3.errors import BusyError, Eagle3Error

INTERRUPTED = """
import signal, random, time
from llama_cpp_eagle3._core import Guard

class Interrupt(BaseException):
    pass

def interrupt(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
rng, guard, n = random.Random(0), Guard("thing"), 0
end = time.monotonic() + 2.0
while time.monotonic() < end:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-4))
            while True:
                with guard:
                    pass
                with guard.if_free() as is_in:
                    assert is_in
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except Interrupt:
        n += 1
print(n)
"""


def test_who_comes_second() -> None:
    guard = Guard("thing")
    with guard:
        with pytest.raises(BusyError, match="this thing is in use"), guard:
            pass
        with guard.if_free() as is_in:
            assert not is_in
        with pytest.raises(BusyError), guard:  # a turn that was refused frees nothing
            pass
    with guard.if_free() as is_in:
        assert is_in
        with pytest.raises(BusyError), guard:
            pass
    guard.closed = True
    with pytest.raises(Eagle3Error, match="this thing is closed"), guard:
        pass
    with guard.if_free() as is_in:
        assert not is_in


@pytest.mark.skipif(sys.platform == "win32", reason="needs timers that interrupt")
def test_an_interrupt_leaves_it_free() -> None:
    """An interrupt leaves it free at any moment; a lock in Python was left taken within a second."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
