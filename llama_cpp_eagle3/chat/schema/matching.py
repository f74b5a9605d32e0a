"""Whether texts match a pattern: all ways at once, so that the time grows with the text's length and no faster."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from .gbnf import Ranges
from .pattern import Chars, Either, Node, PatternError, Repeat, Sequence_, parse
from .work import Work

_END = 0
_KEPT_MAX = 100_000
"""States in the sets that a matcher remembers."""


class Pattern:
    """A regular expression of a schema."""

    __slots__ = ("_matchers", "_parsed", "_work", "source")

    def __init__(self, source: str, work: Work):
        """work: is charged for reading and matching."""
        self.source, self._work = source, work
        self._parsed: Node | PatternError | None = None
        self._matchers: tuple[_Matcher, ...] | None = None

    def node(self) -> Node:
        """Its syntax.

        Raises:
            PatternError: no grammar can be made of it.
        """
        if self._parsed is None:
            try:
                self._parsed = parse(self.source, self._work)
            except PatternError as e:
                self._parsed = e
        if isinstance(self._parsed, PatternError):
            raise self._parsed
        return self._parsed

    def matches(self, text: str) -> bool | None:
        """Whether a text matches it. None: dialects disagree, or it cannot be read."""
        if self._matchers is None:
            try:
                node = self.node()
            except PatternError:
                return None
            self._matchers = (_Matcher(node, self._work, sure=True), _Matcher(node, self._work, sure=False))
        sure, possible = self._matchers
        if sure.matches(text):
            return True
        return None if sure.classes != possible.classes and possible.matches(text) else False


class _Matcher:
    """Thompson's automaton. The sets of states that it may be in are made as texts need them, and remembered."""

    def __init__(self, node: Node, work: Work, sure: bool):
        """sure: characters match that belong to a class in all dialects; else those that do in any."""
        self._work, self._sure = work, sure
        self.classes: list[Ranges | None] = [None]
        """By state: the characters that lead on; None: no character is needed."""
        self._nexts: list[tuple[int, ...]] = [()]
        self._known: dict[frozenset[int], dict[str, frozenset[int]]] = {}
        self._n_kept = 0
        self._start = self._closed([self._add(node, _END)])

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        states = self._start
        self._work.take(8 + len(text) // 8)
        for c in text:
            known = self._known.get(states)
            after = None if known is None else known.get(c)
            states = self._after(states, c) if after is None else after
            if not states:
                return False
        return _END in states

    def _new(self, of: Ranges | None, nexts: tuple[int, ...]) -> int:
        self._work.take(2)
        self.classes.append(of)
        self._nexts.append(nexts)
        return len(self._nexts) - 1

    def _add(self, node: Node, after: int) -> int:
        """Add states for a node; returns the one that it begins with."""
        if isinstance(node, Chars):
            return self._new(node.of.sure if self._sure else node.of.possible, (after,))
        if isinstance(node, Sequence_):
            for item in reversed(node.items):
                after = self._add(item, after)
            return after
        if isinstance(node, Either):
            return self._new(None, tuple(self._add(item, after) for item in node.items))
        assert isinstance(node, Repeat)
        end = after
        if node.most is None:
            after = self._new(None, ())
            self._nexts[after] = (self._add(node.item, after), end)
        for _ in range(0 if node.most is None else node.most - node.least):
            after = self._new(None, (self._add(node.item, after), end))
        for _ in range(node.least):
            after = self._add(node.item, after)
        return after

    def _after(self, states: frozenset[int], c: str) -> frozenset[int]:
        found: list[int] = []
        code = ord(c)
        for state in states:
            of = self.classes[state]
            if of is not None and _has(of, code):
                found += self._nexts[state]
        self._work.take(2 + len(states))
        after = self._closed(found)
        self._n_kept += len(after) + 1
        if self._n_kept > _KEPT_MAX:
            self._known.clear()
            self._n_kept = 0
        self._known.setdefault(states, {})[c] = after
        return after

    def _closed(self, states: Sequence[int]) -> frozenset[int]:
        """The states that need a character, or are the end, and can be reached from others without one."""
        seen, found, left = set(states), [], list(states)
        while left:
            state = left.pop()
            if state == _END or self.classes[state] is not None:
                found.append(state)
                continue
            for after in self._nexts[state]:
                if after not in seen:
                    seen.add(after)
                    left.append(after)
        self._work.take(len(seen))
        return frozenset(found)


def _has(ranges: Ranges, code: int) -> bool:
    i = bisect_right(ranges, code, key=lambda item: item[0])
    return i > 0 and code <= ranges[i - 1][1]
