"""The versions of a folder's head: which one drafts, how good each was in its gate and since."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...files.json_file import read_json
from .folder import HEADS_JSON, Folder, write_json

_log = logging.getLogger("llama_cpp_eagle3")

N_KEPT = 3
"""Heads whose files are kept."""
N_TRIED = 2000
"""Tokens after which a head that drafts is compared with the one before."""
RESULT, HEAD = "result.json", "head.gguf"
"""What a training leaves in its folder."""

State = Literal["used", "former", "refused", "taken back"]


@dataclass(slots=True)
class HeadEntry:
    """A version of the head; 0 is the one that came with the model."""

    version: int
    state: State = "used"
    why: str = ""
    """Why it is refused or taken back."""
    time: int = 0
    n_texts: int = 0
    """Texts that it learned from, and tokens of their answers."""
    n_answer: int = 0
    before: float = 0.0
    """Tokens a step on the gate's texts, of the head before and of this one; how much of the difference is chance."""
    after: float = 0.0
    error: float = 0.0
    gate: list[int] = field(default_factory=list)
    """The gate's texts."""
    live_tokens: int = 0
    """Tokens and steps of the texts that it has drafted for."""
    live_steps: int = 0

    @property
    def live(self) -> float:
        """Tokens a step of these texts."""
        return self.live_tokens / self.live_steps if self.live_steps else 0.0


class Heads:
    """The versions, as heads.json has them. Only the process that holds the folder changes them."""

    def __init__(self, folder: Folder):
        """Read the file; what is damaged in it is forgotten."""
        self.folder = folder
        self._lock, self._is_told = threading.Lock(), False
        self.entries: dict[int, HeadEntry] = {0: HeadEntry(0)}
        self.learned_until = -1
        """The last text that a training has seen."""
        self.seconds: dict[str, float] = {}
        """[day]: seconds of learning."""
        try:
            found = read_json(folder.path / HEADS_JSON)
            entries = [HeadEntry(**entry) for entry in found["heads"]]
            self.entries = {0: HeadEntry(0), **{entry.version: entry for entry in entries}}
            self.learned_until, self.seconds = int(found["learned_until"]), dict(found["seconds"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError) as e:
            _log.warning("'%s' is damaged (%r): learning begins anew", str(folder.path / HEADS_JSON), e)

    def save(self) -> None:
        """Write the file. If that fails, the log says it once, and the versions are those of this process alone."""
        with self._lock:
            found = {
                "heads": [asdict(entry) for entry in self.entries.values()],
                "learned_until": self.learned_until,
                "seconds": self.seconds,
            }
            try:
                write_json(self.folder.path / HEADS_JSON, found)
            except OSError as e:
                if not self._is_told:
                    self._is_told = True
                    why = f"'{self.folder.path / HEADS_JSON}': {e.strerror or e}"
                    _log.warning("--learn: the next start knows nothing of what is learned now: %s", why)

    @property
    def current(self) -> HeadEntry:
        """The head that drafts."""
        used = [entry for entry in self.entries.values() if entry.state == "used"]
        return used[-1] if used else self.entries[0]

    @property
    def last_gate(self) -> list[int]:
        """The texts of the last gate, whatever came of it."""
        return [*self.entries.values()][-1].gate

    @property
    def version(self) -> int:
        """Its number."""
        return self.current.version

    def path(self, version: int) -> Path | None:
        """A head's file; None: it is the one that came with the model, or is gone."""
        path = self.folder.heads / f"{version:04d}.gguf"
        return path if version and path.is_file() else None

    def count(self, n_tokens: int, n_steps: int) -> None:
        """Count a text that the present head has drafted for."""
        with self._lock:
            entry = self.current
            entry.live_tokens += n_tokens
            entry.live_steps += n_steps

    @property
    def seconds_today(self) -> float:
        """Seconds of learning today."""
        return self.seconds.get(_today(), 0.0)

    def add_seconds(self, seconds: float) -> None:
        """Count time of learning."""
        self.seconds[_today()] = self.seconds_today + seconds

    def take_in(self, result: Mapping[str, Any]) -> HeadEntry:
        """Take in what a training has left, and remove its folder; returns the new version, used or refused."""
        version = max(self.entries) + 1
        entry = HeadEntry(version, time=int(time.time()), **{k: v for k, v in result.items() if k != "until"})
        made = self.folder.round / HEAD
        if entry.state == "used":
            self.folder.heads.mkdir(mode=0o700, exist_ok=True)  # its user may have removed it with the heads
            made.replace(self.folder.heads / f"{version:04d}.gguf")
            self.current.state = "former"
        self.entries[version] = entry
        self.learned_until = int(result["until"])
        self.save()
        shutil.rmtree(self.folder.round, ignore_errors=True)
        self._drop_old()
        return entry

    def go_back(self, why: str) -> HeadEntry:
        """Draft with the head before the present one again; returns it."""
        former = self.former
        assert former is not None
        current = self.current
        current.state, current.why, former.state = "taken back", why, "used"
        self.save()
        return former

    @property
    def former(self) -> HeadEntry | None:
        """The head before the present one; None: there is none, or its file is gone."""
        known = [e for e in self.entries.values() if e.state == "former" and e.version < self.version]
        entry = known[-1] if known else None
        return entry if entry is not None and (entry.version == 0 or self.path(entry.version)) else None

    def why_back(self) -> str:
        """Why the present head should go: it gives fewer tokens a step than the one before it; empty: it may stay."""
        current, former = self.current, self.former
        if former is None or min(current.live_tokens, former.live_tokens) < N_TRIED or current.live >= former.live:
            return ""
        return (
            f"it gave {current.live:.2f} tokens a step in {current.live_tokens} tokens, "
            f"head {former.version} before it {former.live:.2f}"
        )

    def _drop_old(self) -> None:
        kept = sorted((version for version in self.entries if self.path(version)), reverse=True)[:N_KEPT]
        for path in self.folder.heads.glob("*.gguf"):
            if path.stem.isdigit() and int(path.stem) not in kept:
                path.unlink(missing_ok=True)


def _today() -> str:
    return time.strftime("%Y-%m-%d")
