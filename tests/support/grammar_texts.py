"""Random texts of a grammar in GBNF: an own reader, so that no model and no code of llama.cpp takes part."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\])|(?P<name>[A-Za-z0-9-]+)|(?P<sign>[|()*+?])'
    r"|\{(?P<least>\d+)(?P<comma>,?)(?P<most>\d*)\})",
    re.DOTALL,
)
_CHARACTER = re.compile(r"\\x(..)|\\u(....)|\\U(........)|\\(.)|(.)", re.DOTALL)
_SHORT = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(eq=False)
class _Part:
    """A text, a set of characters, the name of a rule, or alternatives in brackets; with its repetitions."""

    text: str | None = None
    ranges: list[tuple[int, int]] | None = None
    is_negated: bool = False
    name: str = ""
    ways: list[list[_Part]] | None = None
    least: int = 1
    most: int | None = 1


class GrammarTexts:
    """Writes random texts that a grammar allows."""

    def __init__(self, grammar: str):
        self._rules: dict[str, list[list[_Part]]] = {}
        for line in re.split(r"\n(?=[A-Za-z0-9-]+ ::= )", grammar.strip()):
            name, _, body = line.partition(" ::=")
            parts = _Reader(body).ways()
            self._rules[name] = parts
        self._costs: dict[str, float] = dict.fromkeys(self._rules, math.inf)
        is_new = True
        while is_new:
            is_new = False
            for name, ways in self._rules.items():
                cost = 1 + min(map(self._way_cost, ways))
                is_new, self._costs[name] = is_new or cost < self._costs[name], min(cost, self._costs[name])

    def write(self, dice: random.Random, n: int = 60) -> str:
        """Return a text; after about n parts it takes the shortest way to the end."""
        self._left = n
        return "".join(self._rule("root", dice))

    def _way_cost(self, way: list[_Part]) -> float:
        return sum(self._cost(part) for part in way)

    def _cost(self, part: _Part) -> float:
        if part.least == 0:
            return 0.0
        if part.ways is not None:
            return part.least * min(map(self._way_cost, part.ways))
        return part.least * (self._costs[part.name] if part.name else 1)

    def _rule(self, name: str, dice: random.Random) -> list[str]:
        return self._ways(self._rules[name], dice)

    def _ways(self, ways: list[list[_Part]], dice: random.Random) -> list[str]:
        self._left -= 1
        possible = [way for way in ways if self._way_cost(way) < math.inf]
        if self._left < 0:
            way = min(possible, key=self._way_cost)
        else:
            way = dice.choice(possible)
        return [text for part in way for text in self._part(part, dice)]

    def _part(self, part: _Part, dice: random.Random) -> list[str]:
        most = part.least + 3 if part.most is None else min(part.most, part.least + 3)
        if part.most is not None and dice.random() < 0.2:
            most = part.most
        n = part.least if self._left < 0 else dice.randint(part.least, most)
        found: list[str] = []
        for _ in range(n):
            if part.text is not None:
                found.append(part.text)
            elif part.ranges is not None:
                found.append(_character(part, dice))
            elif part.ways is not None:
                found += self._ways(part.ways, dice)
            else:
                found += self._rule(part.name, dice)
        return found


def _character(part: _Part, dice: random.Random) -> str:
    assert part.ranges is not None
    if part.is_negated:
        while True:
            code = dice.randrange(0x20, 0x250)
            if not any(low <= code <= high for low, high in part.ranges):
                return chr(code)
    low, high = dice.choice(part.ranges)
    near = [item for item in part.ranges if item[0] < 0x80]
    if near and dice.random() < 0.8:
        low, high = dice.choice(near)
        high = min(high, 0x7E)
    return chr(dice.randint(low, high))


class _Reader:
    def __init__(self, body: str):
        self._tokens = [found for found in _TOKEN.finditer(body) if found[0].strip()]
        assert "".join(found[0] for found in self._tokens).split() == body.split(), body
        self._at = 0

    def ways(self) -> list[list[_Part]]:
        ways: list[list[_Part]] = [[]]
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token["sign"] == ")":
                break
            self._at += 1
            if token["sign"] == "|":
                ways.append([])
            elif token["sign"] == "(":
                ways[-1].append(_Part(ways=self.ways()))
                self._at += 1
            elif token["sign"]:
                ways[-1][-1].least, ways[-1][-1].most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[token["sign"]]
            elif token["least"] is not None:
                part = ways[-1][-1]
                part.least = int(token["least"])
                part.most = int(token["most"]) if token["most"] else None if token["comma"] else part.least
            elif token["text"]:
                ways[-1].append(_Part(text="".join(map(chr, _codes(token["text"][1:-1])))))
            elif token["set"]:
                ways[-1].append(_set(token["set"][1:-1]))
            else:
                ways[-1].append(_Part(name=token["name"]))
        return ways


def _codes(text: str) -> list[int]:
    found = []
    for x, u, big, short, plain in _CHARACTER.findall(text):
        found.append(int(x or u or big, 16) if x or u or big else ord(_SHORT.get(short, short) or plain))
    return found


def _set(text: str) -> _Part:
    is_negated = text.startswith("^")
    words = _CHARACTER.findall(text[is_negated:])
    plain = ["-" if word[4] == "-" else "" for word in words]
    codes = _codes(text[is_negated:])
    ranges, i = [], 0
    while i < len(codes):
        is_range = i + 2 < len(codes) and plain[i + 1] == "-"
        ranges.append((codes[i], codes[i + 2] if is_range else codes[i]))
        i += 3 if is_range else 1
    return _Part(ranges=ranges, is_negated=is_negated)
