"""Rules of a grammar in GBNF as they are written: names, literals, sets of characters, repetitions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from os.path import commonprefix

from .work import SchemaError, Work

Ranges = Sequence[tuple[int, int]]
"""Code points, from and to, in order and apart."""

_BLOCK = 128
"""Repetitions that one rule has, since llama.cpp writes them out; more are repeated blocks."""
_SIZE_MAX = 4 << 20  # a sampler takes no larger grammar
COUNT_MAX = 100_000
"""Most repetitions that a grammar can require."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")
_NAME_MAX = 48
_RULE = re.compile(r"^[ \t]*([A-Za-z0-9_-]+)\s*::=", re.MULTILINE)
JSON_RULES = {
    "space": r'| " " | "\n"{1,2} [ \t]{0,20}',
    # a whole character: the two \u escapes of a surrogate pair count as the one character that they are
    "char": (
        r'[\x20-!#-\x5B\x5D-~\x80-\uD7FF\uE000-\U0010FFFF] | "\\" (["\\bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | '
        r'[dD] [0-7] [0-9a-fA-F]{2} | [dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2}))'
    ),
    "string": r'"\"" char* "\""',
    "integral": r"[0] | [1-9] [0-9]{0,15}",
    "integer": r'"-"? integral',
    "number": r'"-"? integral ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?',
    "boolean": r'"true" | "false"',
    "null": r'"null"',
    "array": r'"[" space (value ("," space value)* space)? "]"',
    "object": r'"{" space (string space ":" space value ("," space string space ":" space value)* space)? "}"',
    "value": "object | array | string | number | boolean | null",
}
"""GBNF of JSON values, and of their parts."""


class Rules:
    """The rules of one grammar. A hint is the beginning of the names of a part's rules."""

    def __init__(self, taken: Collection[str] = (), work: Work | None = None, values: Mapping[str, str] = JSON_RULES):
        """taken: names of rules that the grammar has already. work: is charged; None: its own. values: their GBNF."""
        self.work = work or Work()
        self._values = values
        self._taken = set(taken)
        self._n_chars = 0
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._json: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def name(self, hint: str) -> str:
        """Reserve a name, for `set`."""
        base = _NOT_IN_NAMES.sub("-", hint)[:_NAME_MAX].strip("-") or "part"
        name = base
        while name in self._taken:
            self._numbers[base] = self._numbers.get(base, 0) + 1
            name = f"{base}-{self._numbers[base]}"
        self._taken.add(name)
        return name

    def set(self, name: str, body: str) -> None:
        """Write a rule whose name was reserved.

        Raises:
            SchemaError: the grammar becomes too large.
        """
        self.work.take(5)
        self._n_chars += len(name) + len(body)
        if self._n_chars > _SIZE_MAX:
            raise SchemaError(f"its grammar has more than {_SIZE_MAX} characters")
        self._bodies[name] = body

    def add(self, hint: str, body: str) -> str:
        """Write a rule, unless there is one of the same body; returns its name."""
        self.work.take(1 + len(body) // 64)
        if body not in self._names:
            self._names[body] = self.name(hint)
            self.set(self._names[body], body)
        return self._names[body]

    def json(self, kind: str) -> str:
        """The rule of a value or a part of one: a char of a string, a value, a number, ..."""
        if kind == "space" and kind in self._taken:
            return kind  # llama.cpp's grammars have the same rule
        if kind not in self._json:
            self._json[kind] = self.name(kind)
            words = re.split(r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])', self._values[kind])
            body = "".join(
                word if i % 2 else re.sub(r"[a-z]{2,}", lambda found: self.json(found[0]), word)
                for i, word in enumerate(words)
            )
            self._bodies[self._json[kind]] = body
        return self._json[kind]

    def is_any(self, name: str) -> bool:
        """Whether a rule is that of any value."""
        return name == self._json.get("value")

    def repeat(self, item: str, least: int, most: int | None, hint: str = "repeat") -> str:
        """GBNF of least to most of an item (None: any number), which is one symbol or stands in brackets.

        It is empty if there can be none. least is COUNT_MAX at most.
        """
        parts = [self._times(item, least, hint)] if least else []
        if most is None:
            parts.append(f"{item}*")
        elif most - least > _BLOCK:
            block = self._times(item, _BLOCK, hint)
            n, rest = divmod(most - least, _BLOCK)
            block = self.add(f"{hint}-block", block)
            short = f"{self.repeat(block, 0, n - 1, hint)} {item}{{0,{_BLOCK - 1}}}".strip()
            whole = f"{self._times(block, n, hint)} {item}{{0,{rest}}}" if rest else self._times(block, n, hint)
            parts.append(f"({short} | {whole})")
        elif most > least:
            parts.append(f"{item}?" if most - least == 1 else f"{item}{{0,{most - least}}}")
        return " ".join(parts)

    def _times(self, item: str, n: int, hint: str) -> str:
        if n <= _BLOCK:
            return item if n == 1 else f"{item}{{{n}}}"
        block = self.add(f"{hint}-block", f"{item}{{{_BLOCK}}}")
        n_blocks, rest = divmod(n, _BLOCK)
        return f"{self._times(block, n_blocks, hint)} {self._times(item, rest, hint) if rest else ''}".strip()

    @staticmethod
    def names_in(grammar: str) -> list[str]:
        """The rules that a grammar has."""
        return _RULE.findall(grammar)

    def text(self) -> str:
        """GBNF, without rules that were never written."""
        return "".join(f"{name} ::= {body}\n" for name, body in self._bodies.items())


def literal(text: str) -> str:
    """GBNF of a text."""
    return '"' + "".join(_escaped(c) if c in '"\\' or not c.isprintable() else c for c in text) + '"'


def characters(ranges: Ranges) -> str:
    """GBNF of a set of characters."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return literal(chr(ranges[0][0]))
    return "[" + "".join(_in_set(a) if a == b else f"{_in_set(a)}-{_in_set(b)}" for a, b in ranges) + "]"


def one_of(alternatives: Iterable[str]) -> str:
    """GBNF of alternatives, in brackets if they are several."""
    found = list(dict.fromkeys(alternatives))
    return found[0] if len(found) == 1 else f"({' | '.join(found)})"


def one_text_of(rules: Rules, texts: Iterable[str], hint: str) -> str:
    """GBNF of one of several texts; common beginnings are written once, so that few stacks are open at a time."""
    found = sorted(set(texts))
    if len(found) <= 8:
        return one_of(map(literal, found))
    return _trie(rules, found, hint)


def through(rules: Rules, end: str, hint: str) -> str:
    """The rule of any text up to and including the first occurrence of `end`."""
    names = [rules.name(hint) for _ in end]
    for n, name in enumerate(names):
        ways = []
        for c in sorted(set(end)):
            seen = end[:n] + c
            state = next(k for k in range(len(seen), -1, -1) if seen.endswith(end[:k]))
            ways.append(literal(c) if state == len(end) else f"{literal(c)} {names[state]}")
        others = "".join(_in_set(ord(c)) for c in sorted(set(end)))
        rules.set(name, " | ".join([*ways, f"[^{others}] {names[0]}"]))
    return names[0]


def _trie(rules: Rules, texts: Sequence[str], hint: str) -> str:
    """GBNF of sorted texts, with a rule for each place where some of them part."""
    forks: list[tuple[int, list[str]]] = [(0, [])]  # where the last text parted from others, and what follows there
    for text, following in zip(texts, (*texts[1:], ""), strict=True):
        n_same = len(commonprefix((text, following)))
        rules.work.take(5 + len(text) // 8)
        rest, end = "", len(text)
        while forks[-1][0] > n_same:
            start, ways = forks.pop()
            rest = rules.add(hint, " | ".join([*ways, _joined(text[start:end], rest)]))
            end = start
        if forks[-1][0] < n_same:
            forks.append((n_same, []))
        forks[-1][1].append(_joined(text[n_same:end], rest))
    return rules.add(hint, " | ".join(forks[0][1])) if len(forks[0][1]) > 1 else forks[0][1][0]


def _joined(text: str, rest: str) -> str:
    return f"{literal(text)} {rest}" if text and rest else rest or literal(text)


def _in_set(code: int) -> str:
    c = chr(code)
    return c if c.isalnum() and code < 0x80 else _escaped(c)


def _escaped(c: str) -> str:
    code = ord(c)
    if c in '"\\':
        return f"\\{c}"
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
