"""Which tokens made the text that a client gets: parsers leave out tags and fences, stop strings cut text off."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ..engine.sequence import TokenLogprob


@dataclass(frozen=True, slots=True)
class SentToken:
    """A token, or the part of it that was sent."""

    piece: bytes
    """The bytes that were sent."""
    logprob: TokenLogprob


class SentTokens:
    """The tokens of a text whose parts are sent one after the other.

    A token that is sent in two parts comes twice: its log-probability is that of the first, and the second one, which
    follows from it, has 0.
    """

    def __init__(self) -> None:
        self._waiting: deque[SentToken] = deque()

    def add(self, tokens: Iterable[SentToken]) -> None:
        """Add tokens that were generated."""
        self._waiting.extend(token for token in tokens if token.piece)

    def take(self, text: str) -> list[SentToken]:
        """The tokens of a text that is sent now. Those before it are dropped, as their text was left out."""
        data = text.encode(errors="surrogatepass")
        waiting = b"".join(token.piece for token in self._waiting)
        begin = 0 if waiting.startswith(data) else waiting.rfind(data)
        if begin < 0:  # a parser has changed the text: all tokens that have come since are its
            begin, data = 0, waiting
        end, at, found = begin + len(data), 0, []
        while self._waiting and at < end:
            token = self._waiting.popleft()
            piece = token.piece[max(0, begin - at) : end - at]
            rest, at = token.piece[end - at :] if at + len(token.piece) > end else b"", at + len(token.piece)
            if piece:
                found.append(SentToken(piece, token.logprob))
            if rest:
                sure = TokenLogprob(token.logprob.token, 0.0, {}) if piece else token.logprob
                self._waiting.appendleft(SentToken(rest, sure))
        return found
