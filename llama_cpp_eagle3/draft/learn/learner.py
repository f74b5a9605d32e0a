"""Decides when a server's head learns: while nobody waits, and within a share of the day."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from ..._core import read_target
from ...errors import Eagle3Error
from ...machine import free_memory, is_on_battery
from .folder import Folder
from .heads import Heads
from .keeper import Keeper
from .rounds import minutes_of, read_result, why_not_yet
from .training import Training, check_installed

IDLE_SECONDS = 60.0
_TICK_SECONDS = 1.0
_STANDS_SECONDS = 600.0
"""A training that has stood still for so long gives its memory back; it goes on from its last state."""
_FAILED_SECONDS = 3600.0
"""Time until the next try after a training that failed."""
_log = logging.getLogger("llama_cpp_eagle3.serve")


class Swap(Protocol):
    """Puts a head in the place of the one that drafts."""

    def __call__(self, version: int, gain: float) -> None:
        """Draft with this version from the next step on; 0: the one that came with the model.

        gain: tokens a step that it is expected to give beyond the present one.
        """


class Learner:
    """A thread that begins trainings, lets them stand still while there are requests, and swaps heads."""

    def __init__(
        self,
        keeper: Keeper,
        swap: Swap,
        is_busy: Callable[[], bool],
        n_threads: int,
        share: float,
        idle_seconds: float = IDLE_SECONDS,
    ):
        """Start it.

        Args:
            keeper: of the folder.
            swap: see there; called in this thread.
            is_busy: whether a request is answered or waits.
            n_threads: the server's.
            share: of the day, at most.
            idle_seconds: without a request, after which it may learn.
        """
        self._keeper, self._swap, self._is_busy = keeper, swap, is_busy
        self._n_threads, self._share, self._idle_seconds = max(1, n_threads - 1), share, idle_seconds
        self.heads: Heads = keeper.heads
        self._folder: Folder = keeper.folder
        self._training: Training | None = None
        self._lock = threading.Lock()
        self._idle_since = monotonic()
        self._not_before = 0.0
        self._n_texts = -1
        """How many texts were too few for a training."""
        self._why_not = ""
        self._told: set[str] = set()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        try:
            check_installed()
        except Eagle3Error as e:
            self._why_not = str(e)
            _log.warning("--learn: texts are kept and n-grams of them drafted, but no head learns: %s", e)
            return
        self._thread.start()

    def busy(self) -> None:
        """Tell that a request has come: a training stands still before this returns. From any thread."""
        self._idle_since = monotonic()
        training = self._training
        if training is not None and training.runs:
            with self._lock:
                training.pause()

    def close(self) -> None:
        """End a training, whose state stays, and the thread."""
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._training is not None:
            self._end_training()

    @property
    def state(self) -> str:
        """What it does, in words."""
        if self._training is not None:
            return "learns" if self._training.runs else "stands still while there are requests"
        return f"waits: {self._why_not}" if self._why_not else "waits"

    def figures(self) -> dict[str, Any]:
        """What `/props` shows."""
        heads = self.heads
        return {
            "folder": str(self._folder.path),
            "state": self.state,
            "texts": len(self._keeper.texts),
            "tokens": self._keeper.texts.n_answer,
            "bytes": self._keeper.n_bytes,
            "bytes_max": self._keeper.n_bytes_max,
            "seconds": sum(heads.seconds.values()) + (self._training.seconds if self._training else 0.0),
            "head": heads.version,
            "heads": [
                {
                    "version": e.version,
                    "state": e.state,
                    "why": e.why,
                    "gate_before": e.before,
                    "gate_after": e.after,
                    "tokens_per_step": e.live,
                    "tokens": e.live_tokens,
                }
                for e in heads.entries.values()
            ],
        }

    # in the thread

    def _run(self) -> None:
        while not self._ends.wait(_TICK_SECONDS if self._idle_seconds >= 1.0 else 0.01):
            try:
                self._tick()
            except Exception as e:  # serving goes on
                _log.exception("--learn: %s", e)
                self._not_before = monotonic() + _FAILED_SECONDS
                if self._training is not None:
                    self._end_training()

    def _tick(self) -> None:
        now = monotonic()
        training = self._training
        if self._is_busy():
            self.busy()
            if training is not None and training.stands_seconds > _STANDS_SECONDS:
                self._end_training()
        elif training is not None and training.is_over:
            self._take_in(training)
        elif now - self._idle_since < self._idle_seconds:
            return
        elif why := self.heads.why_back():
            self._go_back(why)
        elif training is not None:
            if why := self._why_no_more():
                self._say(why)
                self._end_training()
            elif not training.runs:
                with self._lock:
                    if not self._is_busy():
                        training.go_on()
        elif now >= self._not_before:
            self._begin()

    def _begin(self) -> None:
        n_texts = len(self._keeper.texts)
        if n_texts == self._n_texts and self._why_not:  # nothing is new
            return
        why = why_not_yet(self._keeper.texts, self.heads, self._folder)
        self._n_texts = n_texts if why else -1
        why = why or self._why_no_more()
        if not why and (free := free_memory()) is not None:
            needed = _memory_of(str(self._folder.about().get("target", "")))
            if free < needed:
                why = f"a training needs about {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} are free"
        if why:
            self._say(why)
            return
        self._why_not = ""
        self.heads.save()
        minutes = minutes_of(self._keeper.texts, self.heads)
        training = Training(self._folder.path, minutes, self._n_threads)
        with self._lock:
            self._training = training
            if self._is_busy():  # a request came while it was begun
                training.pause()
        _log.info("--learn: a head learns while nobody waits, %.0f minutes in all", minutes)

    def _why_no_more(self) -> str:
        """Why nothing may be learned now; empty: it may."""
        if is_on_battery():
            return "the machine runs on its battery"
        running = 0.0 if self._training is None else self._training.seconds_now
        if self.heads.seconds_today + running >= self._share * 86400.0:
            return f"{self._share:.0%} of the day were spent on it (--learn-share)"
        return ""

    def _say(self, why: str) -> None:
        """Note why nothing is learned; each reason is logged once."""
        self._why_not = why
        kind = why.partition(" ")[0]
        if kind not in self._told:
            self._told.add(kind)
            _log.info("--learn: nothing is learned now: %s", why)

    def _end_training(self) -> None:
        training, self._training = self._training, None
        assert training is not None
        training.close()
        self.heads.add_seconds(training.seconds)
        self.heads.save()

    def _take_in(self, training: Training) -> None:
        self._end_training()
        result, why = read_result(self._folder), training.why
        if result is None:
            if training.has_failed:  # it would fail again: the next one begins anew
                shutil.rmtree(self._folder.round, ignore_errors=True)
            self._not_before = monotonic() + _FAILED_SECONDS
            self._why_not = f"a training failed: {why}"
            _log.warning("--learn: %s. The next try is in an hour", self._why_not)
            return
        entry = self.heads.take_in(result)
        if entry.state == "used":
            told = self._use(entry.version, entry.after - entry.before)
        else:
            told = f"head {entry.version} is dropped, since {entry.why}"
        _log.info(
            "--learn: %s: %.2f tokens a step instead of %.2f (+-%.2f) on %d texts that it has not seen; it has read %d "
            "tokens of answers",
            *(told, entry.after, entry.before, entry.error, len(entry.gate), entry.n_answer),
        )

    def _go_back(self, why: str) -> None:
        version = self.heads.version
        former = self.heads.go_back(why)
        _log.warning("--learn: head %d is taken back: %s. %s", version, why, self._use(former.version, 0.0))

    def _use(self, version: int, gain: float) -> str:
        """Let a head draft; returns what came of it."""
        try:
            self._swap(version, gain)
        except Eagle3Error as e:
            return f"head {version} drafts from the next start on ({e})"
        return f"head {version} drafts from now on"


def _memory_of(target: str) -> int:
    """Bytes that a training of a head for a target takes, by its sizes: weights, gradients, two moments, texts."""
    info = read_target(target)
    head = 20 * info.n_embd**2 + 8192 * info.n_embd
    return 16 * head + 4 * info.n_vocab * info.n_embd + (1 << 30)
