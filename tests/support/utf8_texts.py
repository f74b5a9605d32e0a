"""Which bytes a text in UTF-8 may have, by Python's own decoder."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


def that_go_on(text: bytes, pieces: Sequence[bytes]) -> list[bool]:
    """Whether a text, after each of these pieces, is UTF-8, or a beginning of it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    decoder.decode(text)
    pending = decoder.getstate()[0]

    def fits(piece: bytes) -> bool:
        try:
            codecs.getincrementaldecoder("utf-8")().decode(pending + piece)
        except UnicodeDecodeError:
            return False
        return True

    return [fits(piece) for piece in pieces]
