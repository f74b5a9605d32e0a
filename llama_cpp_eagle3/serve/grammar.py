"""Grammars from requests: JSON schemas, and limits, so that none can keep the server busy for long.

llama.cpp keeps a stack for every place in the grammar where a text may be, and expands rules anew for each of them. How
many there can be is worked out here before it gets the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..chat import json_schema_to_grammar
from .errors import invalid

_N_BYTES_MAX = 256 << 10
_N_REPEATED_MAX = 20_000
_DEPTH_MAX = 100
_CHAIN_MAX = 2000
_COST_MAX = 2 * 10**8
"""Of a token: stacks before it, times what each becomes, times those that it is compared with."""
_HUGE = 10**12

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*) | (?P<name>[A-Za-z0-9_-]+)(?P<is_rule>\s*::=)?
    | (?P<open>\() | (?P<close>\)) | (?P<bar>\|)
    | (?P<terminal>"(?:[^"\\]|\\.)*" | \[(?:[^\]\\]|\\.)*\] | \. | !?<[^>\n]*>) | (?P<many>[*?]|\+)
    | \{\s*(?P<low>\d*)\s*(?:,\s*(?P<high>\d*)\s*)?\}""",
    re.VERBOSE | re.DOTALL,
)


def schema_to_grammar(schema: Any) -> str:
    """A GBNF grammar of what a JSON schema allows.

    Raises:
        ApiError: it is no schema, or beyond a limit.
    """
    try:
        grammar = json_schema_to_grammar(schema)
    except (ValueError, RecursionError) as e:
        raise invalid(f'"json_schema": {e}') from None
    check_grammar(grammar)
    return grammar


def check_grammar(grammar: str) -> None:
    """Raise ApiError for a grammar that llama.cpp would take too long over."""
    if len(grammar) > _N_BYTES_MAX:
        raise invalid(f"the grammar has {len(grammar)} characters, {_N_BYTES_MAX} are allowed")
    cost = _Cost(_parse(grammar)).of_a_token()
    if cost > _COST_MAX:
        raise invalid(
            "the grammar is too ambiguous: too many of its places can be where a text is. Use fewer parts that may be "
            "left out, and fewer alternatives that begin alike"
        )


@dataclass(slots=True)
class _Part:
    """What stands in an alternative: a terminal, a rule's name, or a group."""

    rule: str = ""
    group: list[list[_Part]] = field(default_factory=list)
    optional: bool = False


_Rules = dict[str, list[list[_Part]]]


def _parse(grammar: str) -> _Rules:
    """Alternatives of each rule. What is no grammar is left to llama.cpp, which says where."""
    rules: _Rules = {}
    stack: list[list[list[_Part]]] = []
    position = n_repeated = 0
    while position < len(grammar):
        found = _TOKEN.match(grammar, position)
        if found is None:
            raise invalid(f"cannot parse the grammar at {grammar[position : position + 20]!r}")
        position = found.end()
        if found["is_rule"]:
            stack = [rules.setdefault(found["name"], [[]])]
            continue
        if found["space"]:
            continue
        if not stack:
            raise invalid("cannot parse the grammar: it does not begin with a rule")
        alternatives = stack[-1]
        if found["name"]:
            alternatives[-1].append(_Part(rule=found["name"]))
        elif found["terminal"]:
            alternatives[-1].append(_Part(optional=found["terminal"] == '""'))
        elif found["open"]:
            part = _Part(group=[[]])
            alternatives[-1].append(part)
            stack.append(part.group)
            if len(stack) > _DEPTH_MAX:
                raise invalid(f"the grammar's groups are more than {_DEPTH_MAX} levels deep")
        elif found["close"]:
            if len(stack) == 1:
                raise invalid("cannot parse the grammar: a group ends that did not begin")
            stack.pop()
        elif found["bar"]:
            alternatives.append([])
        elif alternatives[-1]:
            last = alternatives[-1][-1]
            low, high = found["low"], found["high"]
            last.optional = last.optional or found["many"] in ("*", "?") or low in ("", "0")
            n_repeated += int((high or low or "0")[:9])
            if n_repeated > _N_REPEATED_MAX:
                raise invalid(f"the grammar's repetitions are more than {_N_REPEATED_MAX} altogether")
    return rules


@dataclass(frozen=True, slots=True)
class _Ways:
    """Of a rule or a part."""

    begin: int
    """Ways in which it can begin."""
    empty: int
    """Ways in which it can be empty."""
    depth: int = 0
    """Rules that begin with each other, in a row."""


_NONE, _TERMINAL = _Ways(0, 0), _Ways(1, 0)


class _Cost:
    """Counts the ways in which parts can begin, and those in which they can be empty."""

    def __init__(self, rules: _Rules):
        self._rules = rules
        self._known: dict[str, _Ways] = {}
        self._open: set[str] = set()
        for name in self._in_order():
            self._of_rule(name)

    def of_a_token(self) -> int:
        """See `_COST_MAX`."""
        most, most_inside = 1, 1
        waiting = list(self._rules.values())
        while waiting:
            alternatives = waiting.pop()
            n_begin = 0
            for parts in alternatives:
                n_ways = 0  # from each part to the end
                for part in reversed(parts):
                    most_inside = max(most_inside, n_ways)
                    ways = self._of_part(part)
                    n_ways = min(_HUGE, ways.begin + ways.empty * n_ways)
                    if part.group:
                        waiting.append(part.group)
                n_begin += n_ways
            most = max(most, n_begin)
        return most * most_inside * most

    def _in_order(self) -> Iterator[str]:
        """All rules, those that others name before them, as far as that goes."""
        seen: set[str] = set()
        for start in self._rules:
            stack = [(start, iter(()) if start in seen else iter(self._named_by(start)))]
            seen.add(start)
            while stack:
                name, rest = stack[-1]
                following = next((other for other in rest if other not in seen), None)
                if following is None:
                    yield name
                    stack.pop()
                else:
                    seen.add(following)
                    stack.append((following, iter(self._named_by(following))))

    def _named_by(self, name: str) -> list[str]:
        found, waiting = [], list(self._rules.get(name, []))
        while waiting:
            for part in waiting.pop():
                waiting += part.group
                if part.rule:
                    found.append(part.rule)
        return found

    def _of_part(self, part: _Part) -> _Ways:
        ways = self._of(part.group) if part.group else self._of_rule(part.rule) if part.rule else _TERMINAL
        return replace(ways, empty=min(_HUGE, ways.empty + 1)) if part.optional else ways

    def _of_rule(self, name: str) -> _Ways:
        if name not in self._known:
            if name in self._open or name not in self._rules:
                return _NONE  # llama.cpp refuses a rule that begins with itself, and one that is not there
            if len(self._open) >= _DEPTH_MAX:
                raise invalid(f"the grammar's rules name each other in circles of more than {_DEPTH_MAX}")
            self._open.add(name)
            ways = self._of(self._rules[name])
            self._open.discard(name)
            if ways.depth >= _CHAIN_MAX:
                raise invalid(f"the grammar's rules begin with each other more than {_CHAIN_MAX} times in a row")
            self._known[name] = replace(ways, depth=ways.depth + 1)
        return self._known[name]

    def _of(self, alternatives: list[list[_Part]]) -> _Ways:
        """Looks no further than a text may begin."""
        begin = empty = depth = 0
        for parts in alternatives:
            n_ways = 1
            for part in parts:
                ways = self._of_part(part)
                begin = min(_HUGE, begin + n_ways * ways.begin)
                depth = max(depth, ways.depth)
                n_ways = min(_HUGE, n_ways * ways.empty)
                if n_ways == 0:
                    break
            empty = min(_HUGE, empty + n_ways)
        return _Ways(begin, empty, depth)
