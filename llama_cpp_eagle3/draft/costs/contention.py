"""How much other programs had of the processors while something was timed."""

from __future__ import annotations

from pathlib import Path

_TASKS = Path("/proc/self/task")


class Contention:
    """The time for which this process's threads could have run and did not, since this object was made.

    Linux tells it (Documentation/scheduler/sched-stats: nanoseconds on a processor, and in a queue for one). Elsewhere
    nothing is known, and the share is 0.
    """

    def __init__(self, since_start: bool = False) -> None:
        """Begin now, or at the start of all threads that there are."""
        self._start = {} if since_start else _times()

    @property
    def share(self) -> float:
        """Share of the time in which the threads wanted to run that they waited: 0 to 1."""
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
    except (OSError, ValueError):  # it ended meanwhile, or this is no Linux
        pass
    return found
