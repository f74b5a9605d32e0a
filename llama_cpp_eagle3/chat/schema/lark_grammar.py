"""Writes grammars in Lark as rules of GBNF.

A text is allowed if the rules derive it from characters: no lexer decides first which terminal a part of it is, so
nothing that one of Lark's parsers takes is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from .form import Form
from .gbnf import Rules, literal, one_of
from .lark import NOTHING, All, Lark, LarkError, OneOf, Part, Ref, Terminal, Times, is_terminal, read_lark, refuse
from .pattern import Node, PatternError, is_nullable, without_empty
from .pattern_grammar import pattern_grammar

_TEXT_MAX = 64 << 10
_LITERAL = re.compile(r'"(?:\\.|[^"\\])*"')
_START = "start"


def lark_grammar(rules: Rules, text: str, form: Form, *, hint: str = "lark") -> str:
    """The name of the rule for texts of a grammar in Lark, which is written with all that it needs.

    form: of the text, whose quotes are not part of it.

    Raises:
        LarkError: what is wrong in which line.
        SchemaError: the grammar is too large, or takes too much work.
    """
    if len(text) > _TEXT_MAX:
        raise LarkError(f"expected at most {_TEXT_MAX} characters of grammar, found {len(text)}")
    try:
        return _Writer(rules, read_lark(text, rules.work), form, hint).start()
    except RecursionError:
        raise LarkError("its terminals are nested too deep") from None


class _Writer:
    def __init__(self, rules: Rules, lark: Lark, form: Form, hint: str):
        self._rules, self._lark, self._form, self._hint = rules, lark, form, hint
        self._terminals = {name: Terminal(node) for name, node in lark.terminals.items()}
        self._bodies = {name: self._resolved(part) for name, (_, part) in lark.rules.items()}
        self._empty = self._reached(is_nullable)
        self._ending = self._reached(lambda node: True)
        self._check()
        self._bodies = {name: self._without_left_recursion(name, part) for name, part in self._bodies.items()}
        self._names: dict[tuple[str, bool], str] = {}
        self._symbols: dict[Terminal, str] = {}
        self._todo: list[tuple[str, bool]] = []
        self._ignored = self._skipped()

    def start(self) -> str:
        """Write all rules that are needed."""
        body = f"{self._symbol(Ref(_START, 0))} {self._ignored}".strip()
        while self._todo:
            name, is_solid = key = self._todo.pop()
            self._rules.work.take(20)
            part = self._without_empty(self._bodies[name]) if is_solid else self._bodies[name]
            if part is None:
                refuse(self._lark.rules[name][0], f"the rule {name}, which is repeated, has only the empty text")
            self._rules.set(self._names[key], self._body(part))
        return self._rules.add(self._hint, body)

    # what rules are

    def _resolved(self, part: Part) -> Part:
        """A rule's part, with its terminals."""
        self._rules.work.take(4)
        if isinstance(part, Ref) and is_terminal(part.name):
            if part.name not in self._terminals:
                refuse(part.line, f"there is no terminal {part.name}")
            return self._terminals[part.name]
        if isinstance(part, Ref) and part.name not in self._lark.rules:
            refuse(part.line, f"there is no rule {part.name}")
        if isinstance(part, (Ref, Terminal)):
            return part
        if isinstance(part, Times):
            return Times(self._resolved(part.item), part.least, part.most)
        return type(part)(tuple(map(self._resolved, part.items)))

    def _reached(self, holds: Callable[[Node], bool]) -> set[str]:
        """Rules for which a property of terminals holds for all parts of one of their ways."""
        found: set[str] = set()
        n_before = -1
        while len(found) > n_before:
            n_before = len(found)
            for name, body in reversed(self._bodies.items()):  # most grammars have a rule before its parts
                self._rules.work.take(10)
                if name not in found and self._holds(body, holds, found):
                    found.add(name)
        return found

    def _holds(self, part: Part, holds: Callable[[Node], bool], found: set[str]) -> bool:
        if isinstance(part, Times):
            return part.least == 0 or self._holds(part.item, holds, found)
        if isinstance(part, Ref):
            return part.name in found and not (part.is_solid and found is self._empty)
        if isinstance(part, (All, OneOf)):
            some = (self._holds(item, holds, found) for item in part.items)
            return any(some) if isinstance(part, OneOf) else all(some)
        return holds(part.node)

    def _may_be_empty(self, part: Part) -> bool:
        return self._holds(part, is_nullable, self._empty)

    def _ends(self, part: Part) -> bool:
        """Whether a text matches it, so that it does not go on without end."""
        return self._holds(part, lambda node: True, self._ending)

    # what cannot be written

    def _check(self) -> None:
        if _START not in self._ending:
            line = self._lark.rules[_START][0]
            refuse(line, f"no text matches the grammar: the rule {_START} never ends")
        begins = {name: dict(self._beginnings(part)) for name, part in self._bodies.items()}
        for name in begins:
            self._check_beginnings(name, begins)

    def _check_beginnings(self, name: str, begins: dict[str, dict[str, int]]) -> None:
        """Refuse rules that begin with themselves by way of others, which GBNF cannot have."""
        seen, todo = {name}, [other for other in begins[name] if other != name]
        self._rules.work.take(len(begins[name]))
        while todo:
            other = todo.pop()
            if name in begins[other]:
                refuse(
                    self._lark.rules[name][0],
                    f"the rule {name} begins with itself by way of {other}: write it as a repetition",
                )
            if other not in seen:
                seen.add(other)
                self._rules.work.take(1 + len(begins[other]))
                todo += begins[other]

    def _beginnings(self, part: Part) -> Iterator[tuple[str, int]]:
        """Rules that it can begin with."""
        if isinstance(part, Ref):
            yield part.name, part.line
        elif isinstance(part, Times):
            yield from self._beginnings(part.item)
        elif isinstance(part, OneOf):
            for item in part.items:
                yield from self._beginnings(item)
        elif isinstance(part, All):
            for item in part.items:
                yield from self._beginnings(item)
                if not self._may_be_empty(item):
                    return

    def _without_left_recursion(self, name: str, body: Part) -> Part:
        """The body of a rule as its ways to begin and a repetition of what it goes on with."""
        ways = body.items if isinstance(body, OneOf) else (body,)
        first, more = [], []
        for way in ways:
            items = way.items if isinstance(way, All) else (way,)
            if isinstance(items[0] if items else None, Ref) and items[0].name == name:  # type: ignore[union-attr]
                more.append(All(items[1:]))
            else:
                first.append(way)
        if any(name == other for way in (*first, *more) for other, _ in self._beginnings(way)):
            refuse(self._lark.rules[name][0], f"the rule {name} begins with itself in a way that cannot be held")
        more = [way for way in more if way != NOTHING]
        return All((OneOf(tuple(first)), Times(OneOf(tuple(more)), 0, None))) if more else OneOf(tuple(first))

    def _without_empty(self, part: Part) -> Part | None:
        """A part for the same texts without the empty one; None: there are no others."""
        self._rules.work.take(4)
        if not self._may_be_empty(part):
            return part
        if isinstance(part, Ref):
            return Ref(part.name, part.line, is_solid=True)
        if isinstance(part, Times):
            item = self._without_empty(part.item) if part.most != 0 else None
            return None if item is None else Times(item, 1, part.most)
        if isinstance(part, Terminal):
            node = without_empty(part.node, self._rules.work)
            return None if node is None else Terminal(node)
        found: list[Part] = []
        for i, item in enumerate(part.items):
            rest = self._without_empty(item)
            if rest is not None:
                found.append(rest if isinstance(part, OneOf) else All((rest, *part.items[i + 1 :])))
            self._rules.work.take(len(part.items))
        return OneOf(tuple(found)) if found else None

    # GBNF

    def _body(self, part: Part) -> str:
        if isinstance(part, OneOf):
            ways = [item for item in part.items if self._ends(item)]
            return " | ".join(dict.fromkeys(map(self._sequence, ways)))
        return self._sequence(part)

    def _sequence(self, part: Part) -> str:
        if isinstance(part, All):
            return " ".join(filter(None, map(self._symbol, part.items))) or literal("")
        return self._symbol(part) or literal("")

    def _symbol(self, part: Part) -> str:
        """One symbol, or something in brackets."""
        self._rules.work.take(4)
        if isinstance(part, Ref):
            return self._name(part)
        if isinstance(part, Terminal):
            return f"{self._ignored} {self._terminal(part)}".strip()
        if isinstance(part, Times):
            return self._repeated(part)
        body = self._body(part)
        return f"({body})" if body != literal("") else ""

    def _repeated(self, part: Times) -> str:
        item, least = part.item, part.least
        if not self._ends(item):
            return ""
        if self._may_be_empty(item):
            solid, least = self._without_empty(item), 0
            if solid is None:
                return ""
            item = solid
        symbol = self._symbol(item)
        if " " in symbol and part.most != 1:  # a rule, since it is named often
            symbol = self._rules.add(self._hint, symbol[1:-1] if symbol[0] == "(" else symbol)
        symbol = f"({symbol})" if " " in symbol and symbol[0] != "(" else symbol
        found = self._rules.repeat(symbol, least, part.most, self._hint)
        return f"({found})" if found else ""

    def _name(self, part: Ref) -> str:
        key = part.name, part.is_solid
        if key not in self._names:
            self._names[key] = self._rules.name(f"{self._hint}-{part.name}")
            self._todo.append(key)
        return self._names[key]

    def _terminal(self, part: Terminal) -> str:
        if part not in self._symbols:
            try:
                body = pattern_grammar(self._rules, part.node, self._form, hint=self._hint)
            except PatternError as e:
                raise LarkError(f"a terminal cannot be held: {e}") from None
            self._symbols[part] = body if _LITERAL.fullmatch(body) else self._rules.add(self._hint, body)
        return self._symbols[part]

    def _skipped(self) -> str:
        """What is ignored before each terminal, and at the end; empty: nothing."""
        ways = [without_empty(node, self._rules.work) for node in self._lark.ignored]
        symbols = [self._terminal(Terminal(node)) for node in ways if node is not None]
        return self._rules.add(self._hint, f"{one_of(symbols)}*") if symbols else ""
