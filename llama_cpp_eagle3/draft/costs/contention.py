"""The share of the processors' time that other programs had while something was timed."""

from __future__ import annotations

from pathlib import Path

CONTENTION_MAX = 0.1
"""Share of the processors' time with which times are not in doubt: programs that always run have less."""
_TASKS = Path("/proc/self/task")


class Contention:
    """The time for which this process's threads could have run and did not, since this object was made.

    Linux has these times (Documentation/scheduler/sched-stats: nanoseconds on a processor, and in a queue for one). On
    other systems they are not known, and the share is 0.
    """

    def __init__(self, since_start: bool = False) -> None:
        """Begin now, or when the existing threads started."""
        self._start = {} if since_start else _times()

    @property
    def share(self) -> float:
        """Share of the time in which the threads could have run but waited: 0 to 1."""
        ran = waited = 0
        for thread, times in _times().items():
            before = self._start.get(thread, (0, 0))
            ran += times[0] - before[0]
            waited += times[1] - before[1]
        return waited / max(1, ran + waited)


def _times() -> dict[str, tuple[int, int]]:
    """[thread]: nanoseconds that it ran, and waited."""
    found = {}
    try:
        for task in _TASKS.iterdir():
            ran, waited, _ = (task / "schedstat").read_text().split()
            found[task.name] = int(ran), int(waited)
    except (OSError, ValueError):  # the thread ended meanwhile, or this is not Linux
        pass
    return found
