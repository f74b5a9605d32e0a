"""`--learn`: what is kept of texts, when a head learns from them, which head drafts. docs/learn.md is for users.

`Folder` is what is on the disk, `Keeper` writes to it, `Heads` are the versions of the head, `Training` is a process
that learns, and `Learner` decides when.
"""

from .folder import Folder, Key, forget
from .heads import HeadEntry, Heads
from .keeper import Keeper
from .learner import Learner, Swap
from .opening import Opening
from .texts import TextEntry, Texts
from .training import Training

__all__ = [
    "Folder", "HeadEntry", "Heads", "Keeper", "Key", "Learner", "Opening", "Swap", "TextEntry", "Texts", "Training",
    "forget",
]  # fmt: skip
