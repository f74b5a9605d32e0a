"""A model's folder of `--learn`, from before its files are read until it is closed."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ...errors import Eagle3Error
from ...files.fingerprint import fingerprint
from ..kinds import kind_of
from ..kinds.eagle3 import Eagle3Head
from .folder import Folder, Key
from .heads import Heads
from .keeper import Keeper

_log = logging.getLogger("llama_cpp_eagle3")


class Opening:
    """Chooses the head to draft with, and starts keeping texts once the target is loaded."""

    def __init__(self, path: str | os.PathLike[str], target: str):
        """Open or make the folder.

        Raises:
            OSError: it cannot be used.
            Eagle3Error: it is of another target, or holds other files.
        """
        self.folder = Folder(path)
        self.folder.make()
        self._target, self._id = target, fingerprint(target)
        self.given: str | None = None
        """The head that came with the model."""
        self._keeper: Keeper | None = None
        self.is_held = self.folder.hold()
        """Whether this process keeps texts; else another one does."""
        try:
            about = self.folder.about()
            if about and (difference := Key(self._id, about["key"]["lora"], []).difference(Key(**about["key"]))):
                raise self.folder.refusal(difference, target)
            self.heads = Heads(self.folder)
        except BaseException:
            self.folder.release()
            raise
        if not self.is_held:
            _log.warning(
                "--learn: another process keeps texts in '%s' and learns: this one keeps none, and drafts with its "
                "newest head",
                self.folder.path,
            )

    def drafters(self, given: Sequence[str]) -> list[str]:
        """The files to draft with: the folder's newest head in the place of the given one, and the other drafters."""
        head = next((path for path in given if kind_of(path) is Eagle3Head), None)
        self.given = None if head is None else os.path.abspath(head)
        path = self.heads.path(self.heads.version)
        if path is None:
            if self.heads.version:  # its file is gone
                self.heads.current.state = "former"
            return list(given)
        entry = self.heads.current
        _log.info(
            "--learn: head %d of '%s' drafts%s: %.2f tokens a step instead of %.2f on texts that it had not seen",
            *(entry.version, self.folder.path, "" if head is None else " in place of the one that was given"),
            *(entry.after, entry.before),
        )
        return [str(path), *given] if head is None else [str(path) if other is head else other for other in given]

    def start(self, lora: Sequence[tuple[str, float]], boundaries: Sequence[int], n_bytes_max: int) -> Keeper | None:
        """Keep texts from now on; None: another process does.

        Args:
            lora: the adapters.
            boundaries: of the hidden states that pass by.
            n_bytes_max: of the folder.

        Raises:
            Eagle3Error: the folder is of another model.
            OSError: it cannot be written.
        """
        if not self.is_held:
            return None
        key = Key(self._id, [[fingerprint(path), scale] for path, scale in lora], list(boundaries))
        self.folder.claim(key, self._target, self.given)
        self._keeper = Keeper(self.folder, self.heads, n_bytes_max)
        return self._keeper

    def first_head(self) -> Path:
        """The head that came with the model.

        Raises:
            Eagle3Error: there is none.
        """
        if self.given is None:
            raise Eagle3Error("there is no head that came with the model")
        return Path(self.given)

    def close(self) -> None:
        """Write what waits, and let other processes keep texts."""
        try:
            if self._keeper is not None:
                self._keeper.close()
        finally:
            self.folder.release()
