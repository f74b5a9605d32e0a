"""Sets of characters as ranges of code points, and those that patterns have names for.

Dialects disagree about some: in ECMAScript `\\d` is 0 to 9, in Python any digit of Unicode. So a class is a pair: the
characters that belong to it in all dialects, and those that belong to it in any.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from .gbnf import Ranges

_LAST = sys.maxunicode
_SURROGATES = ((0xD800, 0xDFFF),)
_N_RANGES = 24
"""Ranges of a set in a grammar: every range is compared with every token."""
_COMMON = 0x250
"""Characters below this, ASCII and Latin, are always kept."""


def union(*sets: Ranges) -> Ranges:
    """Code points of any of them."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(item for ranges in sets for item in ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """All other code points, without surrogates, which are no characters."""
    found, start = [], 0
    for low, high in union(ranges, _SURROGATES):
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    return (*found, (start, _LAST)) if start <= _LAST else tuple(found)


def common(a: Ranges, b: Ranges) -> Ranges:
    """Code points of both."""
    pairs = ((max(low, start), min(high, end)) for low, high in a for start, end in b)
    return union([(low, high) for low, high in pairs if low <= high])


def few(ranges: Ranges) -> Ranges:
    """The set without its smallest ranges, if it has many."""
    if len(ranges) <= _N_RANGES:
        return ranges
    near = [item for item in ranges if item[0] < _COMMON]
    far = sorted((item for item in ranges if item[0] >= _COMMON), key=lambda item: item[0] - item[1])
    return union(near, far[: max(8, _N_RANGES - len(near))])


@dataclass(frozen=True, slots=True)
class CharClass:
    """A class of characters."""

    sure: Ranges
    """Code points that belong to the class in all dialects."""
    possible: Ranges
    """Code points that belong to it in any dialect."""

    def __invert__(self) -> CharClass:
        return CharClass(complement(self.possible), complement(self.sure))


def chars(*ranges: tuple[int, int]) -> CharClass:
    """A class that all dialects agree about."""
    return CharClass(union(ranges), union(ranges))


def any_of(classes: Sequence[CharClass]) -> CharClass:
    """The characters of any of several classes."""
    return CharClass(union(*(of.sure for of in classes)), union(*(of.possible for of in classes)))


def _of(text: str) -> Ranges:
    return union([(ord(c), ord(c)) for c in text])


@lru_cache
def _matches(pattern: str) -> Ranges:
    """Characters that a class of Python's has."""
    text = "".join(map(chr, range(_LAST + 1)))
    return tuple((found.start(), found.end() - 1) for found in re.finditer(f"{pattern}+", text))


@lru_cache
def named(letter: str) -> CharClass:
    """The class of an escape: d, w or s, or of all but these: D, W or S."""
    if letter.isupper():
        return ~named(letter.lower())
    if letter == "d":
        return CharClass(_of("0123456789"), _matches(r"\d"))
    if letter == "w":
        return CharClass(((48, 57), (65, 90), (95, 95), (97, 122)), _matches(r"\w"))
    ecma = union(_matches(r"\s"), ((0xFEFF, 0xFEFF),))
    return CharClass(common(complement(_of("\x1c\x1d\x1e\x1f\x85")), _matches(r"\s")), ecma)


@cache
def _categories() -> dict[str, CharClass]:
    """All general categories of Unicode, by their short names of one and two letters."""
    found: dict[str, list[tuple[int, int]]] = {}
    start, last = 0, unicodedata.category("\0")
    for n in range(1, _LAST + 2):
        now = unicodedata.category(chr(n)) if n <= _LAST else ""
        if now != last:
            for name in (last, last[0]):
                found.setdefault(name, []).append((start, n - 1))
            start, last = n, now
    return {name: chars(*ranges) for name, ranges in found.items()}


def category(name: str) -> CharClass | None:
    """The class of `\\p{name}`, a general category of Unicode by its short name; None if there is none."""
    return _categories().get(name)


ANY_BUT_ENDS = ~chars((10, 10), (13, 13), (0x2028, 0x2029))
"""The characters that a dot matches in all dialects."""
