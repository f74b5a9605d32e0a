"""A process that trains the head of a folder: the package of heads, on texts that are kept.

It is stopped and goes on by signals to its process group, so that a request has the processor within a millisecond. It
ends with the process that began it, and what it did until its last state is not lost.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

from ...errors import Eagle3Error
from ...extras import HEADS, install_command

MODULE = f"{HEADS.replace('-', '_')}.train.learn"
_HAS_SIGNALS = os.name == "posix"
_N_LOG = 2000  # characters of the end of its output


def check_installed() -> None:
    """Raise Eagle3Error if the package that trains is missing; the message has the command that installs it."""
    missing = [name for name in (HEADS.replace("-", "_"), "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise Eagle3Error(f"learning needs {missing[0]}: {install_command('train', of=HEADS)}")


class Training:
    """A training that runs, stands still, or has ended."""

    def __init__(self, folder: Path, minutes: float, n_threads: int, *, is_shown: bool = False):
        """Begin one, or go on with the one that the folder has.

        Args:
            folder: that of `--learn`.
            minutes: of training, if it is a new one.
            n_threads: threads.
            is_shown: what it says goes to this process's stderr; else it is kept for `why`.
        """
        self.seconds = 0.0
        """For how long it has run."""
        self._since: float | None = monotonic()
        self._paused_at = 0.0
        log = folder / "round" / "log.txt"
        log.parent.mkdir(mode=0o700, exist_ok=True)
        self._log = None if is_shown else log
        command = [sys.executable, "-m", MODULE, str(folder), "--minutes", f"{minutes:g}", "--threads", str(n_threads)]
        command += [] if is_shown else ["--background"]
        with contextlib.ExitStack() as stack:
            out = None
            if not is_shown:
                fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # for its owner alone, as all there is
                out = stack.enter_context(os.fdopen(fd, "wb"))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end tells the process that this one has ended
                stdout=out,
                stderr=None if out is None else subprocess.STDOUT,
                start_new_session=_HAS_SIGNALS,
            )

    @property
    def seconds_now(self) -> float:
        """The same, while it runs."""
        return self.seconds + (0.0 if self._since is None else monotonic() - self._since)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error of its own, with which it would end again; not by a signal."""
        code = self._process.returncode
        return code is not None and code > 0

    @property
    def stands_seconds(self) -> float:
        """For how long it has stood still."""
        return 0.0 if self._since is not None else monotonic() - self._paused_at

    @property
    def runs(self) -> bool:
        """Whether it has not ended and does not stand still."""
        return self._since is not None and not self.is_over

    def pause(self) -> None:
        """Let it stand still at once. Where processes cannot, it ends, and the next one goes on from its last state."""
        if self._since is None:
            return
        self._count()
        self._paused_at = monotonic()
        if _HAS_SIGNALS:
            self._signal(signal.SIGSTOP)
        else:
            self._process.kill()

    def go_on(self) -> None:
        """Let it go on."""
        if self._since is None and not self.is_over:
            self._since = monotonic()
            if _HAS_SIGNALS:
                self._signal(signal.SIGCONT)

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        return self._process.wait()

    def close(self) -> None:
        """End it now; its state stays."""
        self._count()
        if not self.is_over:
            if _HAS_SIGNALS:
                self._signal(signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def why(self) -> str:
        """The last line that it said, if it failed."""
        if self._log is None or self._process.returncode == 0:
            return ""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace")[-_N_LOG:].strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else f"it ended with code {self._process.returncode}"

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _count(self) -> None:
        if self._since is not None:
            self.seconds += monotonic() - self._since
            self._since = None
