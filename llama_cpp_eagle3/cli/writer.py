"""Write text to the terminal: whole characters, accepted draft tokens in colour."""

from __future__ import annotations

import codecs
import os
from typing import Any

_CYAN, _PLAIN = "\x1b[36m", "\x1b[0m"


def is_coloured(out: Any, color: str) -> bool:
    """Whether text to `out` is coloured: "on", "off", or "auto", a terminal with colours (no-color.org)."""
    if color == "auto":
        return bool(out.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR"))
    return color == "on"


class Writer:
    """Writes to `out`; None: nowhere."""

    def __init__(self, out: Any, color: str):
        self.out = out
        self.color = out is not None and is_coloured(out, color)
        self.text = ""
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def write(self, text: str, drafted: bool = False) -> None:
        """Write text."""
        self.text += text
        if self.out is not None and text:
            self.out.write(f"{_CYAN}{text}{_PLAIN}" if drafted and self.color else text)
            self.out.flush()

    def write_piece(self, piece: bytes, drafted: bool) -> None:
        """Write the text of a token; bytes of an incomplete character wait for the next one."""
        self.write(self._decode(piece), drafted)

    def finish(self) -> None:
        """Write the rest, and end the line."""
        self.write(self._decode(b"", True))
        if self.out is not None:
            self.out.write("\n")
            self.out.flush()
