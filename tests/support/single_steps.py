"""Count the instructions of a call, by steps of one instruction in a child process: exact, whatever else runs."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_TRACEME, _SINGLESTEP = 0, 9
_ptrace = getattr(ctypes.CDLL(None, use_errno=True), "ptrace", None)


def instructions(call: Callable[[], object]) -> int:
    """Return how many instructions a call takes in user space, the interpreter's own around it included.

    Raises:
        OSError: the system does not allow it.
    """
    if _ptrace is None:
        raise OSError("no ptrace")
    _ptrace.restype = ctypes.c_long
    _ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    call()  # what is done once
    pid = os.fork()
    if pid == 0:
        if _ptrace(_TRACEME, 0, None, None) == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            call()
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    n = -1
    try:
        _, status = os.waitpid(pid, 0)
        while os.WIFSTOPPED(status) and (n < 1 or os.WSTOPSIG(status) == signal.SIGTRAP):
            n += 1
            if _ptrace(_SINGLESTEP, pid, None, None) != 0:
                raise OSError(ctypes.get_errno(), "PTRACE_SINGLESTEP")
            _, status = os.waitpid(pid, 0)
    finally:
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if n < 0:
        raise OSError("PTRACE_TRACEME was refused")
    return n
