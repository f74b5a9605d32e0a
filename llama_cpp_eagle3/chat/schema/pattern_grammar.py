"""Grammars of patterns: for plain text, or for text within a string of a form, where some characters are escaped."""

from __future__ import annotations

import json
from collections import defaultdict

from .code_points import CharClass, common, few, union
from .form import CONTROLS, Form
from .gbnf import Rules, characters, literal, one_of
from .pattern import ANY, EMPTY, Chars, Either, Node, PatternError, Repeat, Sequence_, is_nullable, lengths
from .work import Work

_N_STATES, _N_POSITIONS = 8_000, 1_000
"""Limits of an automaton that counts characters, and of the one that it is made of."""
_TOO_MANY = "it has too many ways for its lengths"
_SHORT = '"\\\b\f\n\r\t'
"""Characters that JSON has short escapes for."""


def pattern_grammar(
    rules: Rules, node: Node, form: Form, *, shortest: int = 0, longest: int | None = None, hint: str = "pattern"
) -> str:
    """GBNF of the texts that match a pattern and have `shortest` to `longest` characters (None: no limit).

    form: of the text, whose quotes are not part of it.

    Raises:
        PatternError: a class is empty, or the lengths cannot be kept: no text has them, or there are too many ways.
    """
    writer = _Writer(rules, form, hint)
    least, most = lengths(node)
    if shortest <= least and (longest is None or (most is not None and most <= longest)):
        return writer.alternatives(node)
    return _counted(writer, node, shortest, longest)


class _Writer:
    def __init__(self, rules: Rules, form: Form, hint: str):
        self.rules, self.form, self.hint = rules, form, hint
        self._classes: dict[CharClass, str] = {}

    def alternatives(self, node: Node) -> str:
        """A rule's body."""
        if isinstance(node, Either):
            return " | ".join(dict.fromkeys(self._sequence(item) for item in node.items))
        return self._sequence(node)

    def _sequence(self, node: Node) -> str:
        """The grammar of a node within a sequence."""
        if not isinstance(node, Sequence_):
            return self.item(node)
        parts: list[str] = []
        text = ""
        for item in node.items:
            only = self._literal(item)
            if only is not None:
                text += only
                continue
            if text:
                parts.append(literal(text))
                text = ""
            if item != EMPTY:
                parts.append(self.item(item))
        if text or not parts:
            parts.append(literal(text))
        return " ".join(parts)

    def item(self, node: Node) -> str:
        """One symbol, or something in brackets."""
        self.rules.work.take()
        if isinstance(node, Repeat):
            item = self.item(node.item)
            if item[0] == "(" and node.most != 1:  # a rule, since it is named often
                item = self.rules.add(self.hint, item[1:-1])
            return f"({self.rules.repeat(item, node.least, node.most, self.hint)})"
        if isinstance(node, Chars):
            return self.chars(node.of)
        body = self.alternatives(node)
        return body if body[0] == "[" and body.count("[") == 1 and body[-1] == "]" else f"({body})"

    def _literal(self, node: Node) -> str | None:
        """The text of a class of one character."""
        if not isinstance(node, Chars) or len(node.of.sure) != 1 or node.of.sure[0][0] != node.of.sure[0][1]:
            return None
        c = chr(node.of.sure[0][0])
        return json.dumps(c, ensure_ascii=not c.isprintable())[1:-1] if self.form.has_escapes else c

    def chars(self, of: CharClass) -> str:
        """One character of a class."""
        self.rules.work.take(2 + len(of.sure) // 4)
        if of not in self._classes:
            self.rules.work.take(2 * len(of.sure))
            self._classes[of] = self._chars(of)
        return self._classes[of]

    def _chars(self, of: CharClass) -> str:
        if of == ANY.of and self.form.rules is not None:
            return self.rules.json("char")
        only = self._literal(Chars(of))
        if only is not None:
            return literal(only)
        raw = few(common(of.sure, self.form.raw))
        found = [characters(raw)] if raw else []
        if self.form.has_escapes:
            short = [c for c in _SHORT if common(of.sure, ((ord(c), ord(c)),))]
            if short:
                escapes = union([(ord(e), ord(e)) for e in (json.dumps(c)[2] for c in short)])
                found.append(f'("\\\\" {characters(escapes)})')
        if not found:  # control characters: a negated class has them, but they are rarely meant
            rest = common(of.sure, CONTROLS)
            codes = [code for low, high in rest for code in range(low, high + 1)]
            found = [
                literal(f"\\u{code:04x}") if self.form.has_escapes else characters([(code, code)]) for code in codes
            ]
        if not found:
            raise PatternError("a class has no characters")
        return one_of(found)


# patterns with a length: a rule for each (position in the pattern, number of characters)


class _Positions:
    """Glushkov's automaton: each class of the pattern is a position."""

    def __init__(self, node: Node, work: Work):
        self._work = work
        self.classes: list[CharClass] = []
        self.follow: defaultdict[int, set[int]] = defaultdict(set)
        self.first, self.last = self._add(node)
        self.is_nullable = is_nullable(node)

    def _add(self, node: Node) -> tuple[set[int], set[int]]:
        """(first, last) positions of a part."""
        if isinstance(node, Chars):
            self.classes.append(node.of)
            if len(self.classes) > _N_POSITIONS:
                raise PatternError(_TOO_MANY)
            n = len(self.classes) - 1
            return {n}, {n}
        if isinstance(node, Either):
            pairs = list(map(self._add, node.items))
            return set().union(*(first for first, _ in pairs)), set().union(*(last for _, last in pairs))
        if isinstance(node, Repeat):
            return self._add_copies(node)
        assert isinstance(node, Sequence_)
        firsts: set[int] = set()
        ends: set[int] = set()
        is_start = True
        for item in node.items:
            first, last = self._add(item)
            self._link(ends, first)
            firsts |= first if is_start else set()
            is_start = is_start and is_nullable(item)
            ends = ends | last if is_nullable(item) else last
        return firsts, ends

    def _add_copies(self, node: Repeat) -> tuple[set[int], set[int]]:
        n = max(1, node.least) if node.most is None else node.most
        firsts: set[int] = set()
        lasts: set[int] = set()
        ends: set[int] = set()
        for i in range(1, n + 1):
            first, last = self._add(node.item)
            self._link(ends, first)
            firsts, ends = firsts if i > 1 else first, last
            lasts |= last if i >= node.least else set()
            if i == n and node.most is None:
                self._link(last, first)
        return firsts, lasts

    def _link(self, ends: set[int], starts: set[int]) -> None:
        self._work.take(len(ends) * (1 + len(starts) // 8))
        for end in ends:
            self.follow[end] |= starts


def _counted(writer: _Writer, node: Node, shortest: int, longest: int | None) -> str:
    """GBNF of the texts that have so many characters."""
    work = writer.rules.work
    positions = _Positions(node, work)
    top = shortest if longest is None else longest  # characters beyond that are not counted
    if len(positions.classes) * (top + 1) > _N_STATES:
        raise PatternError(_TOO_MANY)

    def after(count: int) -> int | None:
        return count + 1 if count < top else count if longest is None else None

    start = (-1, 0)
    ways: dict[tuple[int, int], list[tuple[int, int]]] = {}
    open_, n_ways = [start], 0
    while open_:
        state = open_.pop()
        if state in ways:
            continue
        count = after(state[1])
        targets = positions.first if state == start else positions.follow[state[0]]
        ways[state] = [] if count is None else [(target, count) for target in sorted(targets)]
        open_ += ways[state]
        n_ways += len(ways[state])
        work.take(2 + 2 * len(ways[state]))
        if n_ways > 4 * _N_STATES:
            raise PatternError(_TOO_MANY)
    good = {state for state in ways if state[1] >= shortest and state[0] in positions.last}
    if positions.is_nullable and shortest == 0:
        good.add(start)
    ends = set(good)
    before: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for state, targets_ in ways.items():
        for target in targets_:
            before[target].append(state)
    open_ = list(good)
    while open_:
        for state in before[open_.pop()]:
            if state not in good:
                good.add(state)
                open_.append(state)
    if start not in good:
        raise PatternError("no text of its lengths matches it")
    names = {state: writer.rules.name(writer.hint) for state in ways if state in good}
    classes = [writer.chars(of) for of in positions.classes]
    for state, name in names.items():
        bodies = [f"{classes[target[0]]} {names[target]}" for target in ways[state] if target in good]
        writer.rules.set(name, " | ".join([*bodies, *(['""'] if state in ends else [])]))
    return names[start]
