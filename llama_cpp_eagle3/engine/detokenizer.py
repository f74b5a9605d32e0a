"""Turns tokens into text as they come: whole characters, up to a stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

N_COMPLETE = 16
"""Tokens beyond its limit that a text may take to end outside of a character."""


class StopStrings:
    """An Aho-Corasick automaton: finds all stop strings in one pass over a text, however many there are.

    A state stands for the longest suffix of the text that is a prefix of a stop string; 0 is the empty one.
    """

    __slots__ = ("_fallback", "_goto", "length", "n_found")

    def __init__(self, strings: Sequence[bytes]):
        self._goto: dict[int, int] = {}  # state * 256 + byte -> state
        self._fallback = [0]  # state -> the state of its longest proper suffix (failure link)
        self.length = [0]
        """Length in bytes of each state's suffix."""
        self.n_found = [0]
        """Length in bytes of the longest stop string that each state's suffix ends with; 0: it ends with none."""
        for string in strings:
            self._insert(string)
        self._link()

    def _insert(self, string: bytes) -> None:
        state = 0
        for byte in string:
            key = state << 8 | byte
            state = self._goto.setdefault(key, len(self.length))
            if state == len(self.length):
                self.length.append(self.length[key >> 8] + 1)
                self._fallback.append(0)
                self.n_found.append(0)
        self.n_found[state] = len(string)

    def _link(self) -> None:
        """Compute the failure links, breadth first: a child's needs those of its ancestors."""
        children: list[list[int]] = [[] for _ in self.length]
        for key in self._goto:
            children[key >> 8].append(key)
        todo = deque([0])
        while todo:
            state = todo.popleft()
            for key in children[state]:
                child = self._goto[key]
                self._fallback[child] = self.step(self._fallback[state], key & 0xFF) if state else 0
                self.n_found[child] = self.n_found[child] or self.n_found[self._fallback[child]]
                todo.append(child)

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte."""
        while True:
            found = self._goto.get(state << 8 | byte)
            if found is not None:
                return found
            if not state:
                return 0
            state = self._fallback[state]


@lru_cache(maxsize=32)
def _automaton(strings: tuple[bytes, ...]) -> StopStrings:
    """Cached, since the sequences of a request, and often the requests of a client, have the same stop strings."""
    return StopStrings(strings)


class Detokenizer:
    """Detokenized output, and how much of it is safe to emit."""

    __slots__ = (
        *("_bytes", "_is_waiting", "_kept", "_n_lacking", "_n_line", "_n_out", "_n_read", "_n_searched"),
        *("_state", "_strings", "n_complete", "n_indent", "stop", "stopping_word"),
    )

    def __init__(
        self, stop: Sequence[str] = (), n_complete: int = N_COMPLETE, n_indent: int = 0, kept_stop: Sequence[str] = ()
    ):
        """Begin a text.

        Args:
            stop: strings that end it, and are cut off.
            n_complete: see `N_COMPLETE`.
            n_indent: a line after the first with fewer leading blanks ends it; its text is cut off.
            kept_stop: strings that end it, and stay in it.
        """
        self.n_complete = n_complete
        self.stopping_word = ""
        """The stop string that ended the text; empty: none did."""
        self._kept = frozenset(s.encode() for s in kept_stop if s)
        self.stop = [*(s.encode() for s in stop if s), *self._kept]
        self.n_indent = n_indent
        self._strings = _automaton(tuple(self.stop)) if self.stop else None
        self._state, self._n_read = 0, 0  # state of the stop strings after this many bytes
        self._bytes = bytearray()
        self._n_line, self._n_searched = -1, 0  # the line whose blanks are counted next; where to look for its end
        self._n_out = 0  # bytes that were handed out
        self._n_lacking = 0  # bytes that may still be needed to complete a character
        self._is_waiting = False  # for these bytes; the text was not searched for stop strings yet

    def add(self, piece: bytes, can_complete: bool) -> bool:
        """Append the bytes of a token; returns whether the text may end here.

        can_complete: whether another token may follow just to complete a character.
        """
        self._bytes += piece
        if not self._bytes[-3:].isascii():
            self._n_lacking = bytes_lacking(self._bytes, self._n_lacking)
        self._is_waiting = self._n_lacking > 0 and can_complete
        if self._is_waiting:
            self._n_lacking -= 1
        return not self._is_waiting

    def find_stop(self, may_end: bool = True) -> bool:
        """Cut the text off at a stop string in the new part, if there is one: at the one that begins first.

        may_end: False passes over those in it.
        """
        strings = self._strings
        if strings is None:
            return False
        state, found = self._state, []
        for i in range(self._n_read, len(self._bytes)):
            state = strings.step(state, self._bytes[i])
            n = strings.n_found[state]
            if n:
                found.append((i + 1 - n, bytes(self._bytes[i + 1 - n : i + 1])))
        self._state, self._n_read = state, len(self._bytes)
        if not found or not may_end:
            return False
        i, word = min(found)
        del self._bytes[i + (len(word) if word in self._kept else 0) :]
        self.stopping_word = word.decode()
        return True

    def find_outdent(self) -> bool:
        """Cut the text off before a line that is indented too little, if there is one; an empty line is."""
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
        """Return the new text that cannot change: whole characters that begin no stop string; at the end all of it."""
        if self._is_waiting and not at_end:
            return ""
        end = len(self._bytes)
        if self._strings is not None and not at_end:
            end -= self._strings.length[self._state]  # a stop string may begin so
        new = self._bytes[self._n_out : end]
        text = new.decode("utf-8", "ignore")
        if not (at_end or new.isascii()) and text.encode() != new:
            # an incomplete character at the end waits; what can never be one is dropped
            n_tail = next((n for n in (1, 2, 3) if _begins_character(new[-n:])), 0)
            end -= n_tail
        self._n_out = max(self._n_out, end)
        return text

    def __str__(self) -> str:
        return self._bytes.decode("utf-8", errors="ignore")


def _begins_character(tail: bytearray) -> bool:
    """Whether these bytes are the beginning of a character, but not all of it."""
    lead = tail[0]
    n_bytes = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 0
    return n_bytes > len(tail) and all(0x80 <= byte < 0xC0 for byte in tail[1:])


def bytes_lacking(text: bytearray, n_before: int) -> int:
    """How many more bytes the last character of a text seems to need, as `Llama.create_completion` counts them.

    n_before: what was found before the last token, less one; it holds unless the last bytes begin a character.
    """
    n_lacking = n_before
    for k in (3, 2, 1):
        lead = text[-k] if k <= len(text) else 0
        n_bytes = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 0
        if n_bytes > k:
            n_lacking = n_bytes - k
    return n_lacking
