"""The text of a sequence as it grows: whole characters, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

N_COMPLETE = 16
"""Tokens beyond its limit that a text may take to end outside of a character."""


class Text:
    """What a text says so far, and how much of it cannot be taken back by a stop string any more."""

    __slots__ = (
        *("_bytes", "_is_waiting", "_n_lacking", "_n_line", "_n_longest", "_n_out", "_n_searched"),
        *("n_complete", "n_indent", "stop", "stopping_word"),
    )

    def __init__(self, stop: Sequence[str] = (), n_complete: int = N_COMPLETE, n_indent: int = 0):
        """Begin a text.

        Args:
            stop: strings that end it, and are cut off.
            n_complete: see `N_COMPLETE`.
            n_indent: a line behind the first that begins with fewer blanks ends it, and is cut off behind them.
        """
        self.n_complete = n_complete
        self.stopping_word = ""
        """The one of them that has ended it."""
        self.stop = [s.encode() for s in stop if s]
        self.n_indent = n_indent
        self._n_longest = max(map(len, self.stop), default=0)
        self._bytes = bytearray()
        self._n_line, self._n_searched = -1, 0  # where a line begins whose blanks are to be counted, or may end
        self._n_out = 0  # bytes that were handed out
        self._n_lacking = 0  # bytes that may still be needed to complete a character
        self._is_waiting = False  # for them; stop strings were not looked for

    def add(self, piece: bytes, may_wait: bool) -> bool:
        """Append the bytes of a token; returns whether the text may end here.

        may_wait: whether another token is allowed only to complete a character.
        """
        self._bytes += piece
        if not self._bytes[-3:].isascii():
            self._n_lacking = bytes_lacking(self._bytes, self._n_lacking)
        self._is_waiting = self._n_lacking > 0 and may_wait
        if self._is_waiting:
            self._n_lacking -= 1
        return not self._is_waiting

    def find_stop(self) -> bool:
        """Cut the text off at a stop string in what was not handed out, if there is one."""
        found = [(i, s) for s in self.stop if (i := self._bytes.find(s, self._n_out)) >= 0]
        if found:
            i, word = min(found)
            del self._bytes[i:]
            self.stopping_word = word.decode()
        return bool(found)

    def find_outdent(self) -> bool:
        """Cut the text off in a line that is indented too little, if there is one; one without text is, too."""
        while self.n_indent:
            if self._n_line < 0:
                self._n_line = self._bytes.find(b"\n", self._n_searched) + 1 or -1
                self._n_searched = len(self._bytes) if self._n_line < 0 else self._n_line
                if self._n_line < 0:
                    return False
            line = self._bytes[self._n_line :]
            n_blanks = len(line) - len(line.lstrip(b" \t"))
            if n_blanks == len(line):
                return False  # its text is still to come
            if n_blanks < self.n_indent:
                del self._bytes[self._n_line + n_blanks :]
                return True
            self._n_line = -1
        return False

    def release(self, at_end: bool = False) -> str:
        """What is new and can stay: whole characters that no stop string begins with, or all that is left."""
        if self._is_waiting and not at_end:
            return ""
        end = len(self._bytes)
        if self.stop and not at_end:
            end -= self._n_held()
        new = self._bytes[self._n_out : end]
        text = new.decode("utf-8", "ignore")
        if not (at_end or new.isascii()) and text.encode() != new:
            # an incomplete character at the end waits; what can never be one is dropped
            n_tail = next((n for n in (1, 2, 3) if _begins_character(new[-n:])), 0)
            end -= n_tail
        self._n_out = max(self._n_out, end)
        return text

    def _n_held(self) -> int:
        """Bytes at the end that a stop string may begin with."""
        for n in range(min(self._n_longest - 1, len(self._bytes)), 0, -1):
            tail = bytes(self._bytes[-n:])
            if any(s.startswith(tail) for s in self.stop):
                return n
        return 0

    def __str__(self) -> str:
        return self._bytes.decode("utf-8", errors="ignore")


def _begins_character(tail: bytearray) -> bool:
    """Whether these bytes are the beginning of a character, but not all of it."""
    lead = tail[0]
    n_bytes = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 0
    return n_bytes > len(tail) and all(0x80 <= byte < 0xC0 for byte in tail[1:])


def bytes_lacking(text: bytearray, n_before: int) -> int:
    """How many more bytes the last character of a text seems to need, as `Llama.create_completion` counts them.

    n_before is what was found before the last token, less one; it stands if the text says nothing else.
    """
    n_lacking = n_before
    for k in (3, 2, 1):
        lead = text[-k] if k <= len(text) else 0
        n_bytes = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 0
        if n_bytes > k:
            n_lacking = n_bytes - k
    return n_lacking
