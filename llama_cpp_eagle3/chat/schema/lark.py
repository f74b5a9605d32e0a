"""Reads grammars in Lark: rules, terminals, and terminals that are ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase
from typing import NoReturn

from .code_points import ANY_BUT_ENDS, CharClass, any_of, chars, common
from .gbnf import COUNT_MAX
from .pattern import ANY, Chars, Either, Node, PatternError, Repeat, Sequence_, parse, solid
from .work import SchemaError, Work

_NESTING_MAX = 60
_TOKEN = re.compile(
    r"(?P<space>[ \t\r\f]+|//[^\n]*|\#[^\n]*)|(?P<line>\n)|(?P<name>_?[A-Za-z][A-Za-z0-9_]*|_)|(?P<number>[0-9]+)"
    r'|(?P<text>"(?:\\.|[^"\\\n])*"i?)|(?P<pattern>/(?![/*])(?:\\.|[^/\\\n])+/[A-Za-z]*)|(?P<word>%[a-z]+)'
    r"|(?P<sign>\.\.|->|[:|()\[\]{}*+?~!.,<>=-])"
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([^\\]+)", re.DOTALL)
_LINE_END = re.compile(r"\r\n?")
_SHORT = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "a": "\a", "0": "\0"}
_PLAIN = frozenset("\\\"'/")
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""The terminals that `%import common.NAME` brings, as regular expressions."""


class LarkError(SchemaError):
    """A text is no grammar in Lark, or one that cannot be held; the message names the line."""


def refuse(line: int, why: str) -> NoReturn:
    """Raise the error of a line."""
    raise LarkError(f"line {line}: {why}")


@dataclass(frozen=True, slots=True)
class Terminal:
    """Characters."""

    node: Node


@dataclass(frozen=True, slots=True)
class Ref:
    """A rule or a terminal by its name."""

    name: str
    line: int
    is_solid: bool = False
    """Whether its empty text is left out."""


@dataclass(frozen=True, slots=True)
class All:
    """Parts, one after another."""

    items: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several parts."""

    items: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """A part, from `least` to `most` times; None: without limit."""

    item: Part
    least: int
    most: int | None


Part = Terminal | Ref | All | OneOf | Times
NOTHING = All(())


@dataclass(frozen=True, slots=True)
class Lark:
    """A grammar; rules and terminals by their names, with the lines that they begin in."""

    rules: dict[str, tuple[int, Part]]
    terminals: dict[str, Node]
    ignored: tuple[Node, ...]


def read_lark(text: str, work: Work) -> Lark:
    """Read a grammar. work: is charged.

    Raises:
        LarkError: what is wrong in which line.
        SchemaError: it takes too much work.
    """
    return _Reader(text, work).read()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def _tokens(text: str, work: Work) -> list[_Token]:
    text = _LINE_END.sub("\n", text.removeprefix("\ufeff"))  # as in files of other editors
    found, at, line = [], 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            refuse(line, f"no part of a grammar in Lark begins with {text[at : at + 20].splitlines()[0]!r}")
        kind = str(match.lastgroup)
        work.take(10)
        if kind != "space":
            found.append(_Token(kind, match[0], line))
        line += kind == "line"
        at = match.end()
    return [*found, _Token("line", "\n", line), _Token("end", "", line)]


class _Reader:
    def __init__(self, text: str, work: Work):
        self._tokens, self._at, self._depth, self._work = _tokens(text, work), 0, 0, work
        self._rules: dict[str, tuple[int, Part]] = {}
        self._terminals: dict[str, tuple[int, Part]] = {}
        self._nodes: dict[str, Node | None] = {}
        """Terminals without references; None: one whose parts are being read."""
        self._ignored: list[Part] = []

    def read(self) -> Lark:
        while self._next.kind != "end":
            if not self._skip("\n"):
                self._statement()
        terminals = {name: self._named(name, line) for name, (line, _) in self._terminals.items()}
        if "start" not in self._rules:
            raise LarkError('it has no rule named start: expected one, as in start: "yes" | "no"')
        ignored = tuple(self._solid(self._node(part), 1) for part in self._ignored)
        return Lark(self._rules, terminals, ignored)

    # tokens

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _skip(self, text: str) -> bool:
        is_next = self._next.text == text and self._next.kind != "text"
        self._at += is_next
        return is_next

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            refuse(self._next.line, f"expected {text!r}, found {self._found()}")

    def _found(self) -> str:
        return "its end" if self._next.kind in ("line", "end") else repr(self._next.text[:40])

    def _skip_lines(self) -> None:
        while self._skip("\n"):
            pass

    # statements

    def _statement(self) -> None:
        token = self._take()
        if token.kind == "word":
            self._directive(token)
        else:
            while token.text in ("?", "!"):
                token = self._take()
            if token.kind != "name":
                refuse(token.line, f"expected the name of a rule, found {token.text[:40]!r}")
            self._define(token)
        if self._next.kind != "end":
            self._expect("\n")

    def _directive(self, token: _Token) -> None:
        if token.text == "%import":
            self._import(token.line)
        elif token.text == "%ignore":
            self._ignored.append(self._alternatives())
        elif token.text == "%llguidance":
            self._expect("{")
            if not self._skip("}"):
                refuse(token.line, "options of %llguidance are not supported: expected {}")
        else:
            refuse(token.line, f"{token.text} is not supported: expected %import common.NAME, or %ignore")

    def _import(self, line: int) -> None:
        source = self._take().text
        while self._next.text == "." and self._tokens[self._at + 1].kind == "name":
            self._at += 1
            source += f".{self._take().text}"
        module, _, name = source.partition(".")
        names = [name] if name else []
        if module == "common" and not name and self._skip("("):
            while not self._skip(")"):
                names.append(self._take().text)
                self._skip(",")
                if self._next.kind == "line":
                    refuse(line, "expected ')' after the names to import")
        if module != "common" or not names:
            refuse(line, f"{source!r} cannot be imported: expected common.NAME")
        for name in names:
            if name not in _COMMON:
                refuse(line, f"common has no {name!r}: expected one of {', '.join(_COMMON)}")
            known_as = self._take().text if len(names) == 1 and self._skip("->") else name
            self._terminals[known_as] = line, Terminal(self._pattern(_COMMON[name], line))

    def _define(self, token: _Token) -> None:
        name = token.text
        if self._skip("."):  # a priority, which changes no text that the grammar has
            self._skip("-")
            self._take()
        if self._next.text in ("{", "["):
            refuse(token.line, f"{name}: templates and attributes of rules are not supported")
        self._expect(":")
        known = self._terminals if is_terminal(name) else self._rules
        if name in known:
            refuse(token.line, f"{name} is defined twice: in line {known[name][0]}, too")
        known[name] = token.line, self._alternatives()

    # expressions

    def _alternatives(self) -> Part:
        items = []
        while True:
            if self._depth:
                self._skip_lines()
            items.append(self._sequence())
            if self._skip("->"):
                self._take()  # what a parser calls it
            at = self._at
            self._skip_lines()
            if not self._skip("|"):
                self._at = at
                return items[0] if len(items) == 1 else OneOf(tuple(items))

    def _sequence(self) -> Part:
        items: list[Part] = []
        while True:
            if self._depth:
                self._skip_lines()
            if self._next.kind in ("line", "end") or self._next.text in ("|", ")", "]", "->"):
                return items[0] if len(items) == 1 else All(tuple(items))
            items.append(self._repeated(self._atom()))

    def _repeated(self, item: Part) -> Part:
        line = self._next.line
        if self._skip("*"):
            return Times(item, 0, None)
        if self._skip("+"):
            return Times(item, 1, None)
        if self._skip("?"):
            return Times(item, 0, 1)
        if self._skip("~"):
            least = self._count()
            return self._times(item, least, self._count() if self._skip("..") else least, line)
        if self._skip("{"):
            least = 0 if self._next.text == "," else self._count()
            most: int | None = least
            if self._skip(","):
                most = None if self._next.text == "}" else self._count()
            self._expect("}")
            return self._times(item, least, most, line)
        return item

    def _times(self, item: Part, least: int, most: int | None, line: int) -> Part:
        if most is not None and most < least:
            refuse(line, f"a part is repeated at least {least} and at most {most} times")
        if max(least, most or 0) > COUNT_MAX:
            refuse(line, f"expected at most {COUNT_MAX} repetitions")
        return Times(item, least, most)

    def _count(self) -> int:
        token = self._take()
        if token.kind != "number" or len(token.text) > 9:
            refuse(token.line, f"expected a number of repetitions, found {token.text[:40]!r}")
        return int(token.text)

    def _atom(self) -> Part:
        token = self._take()
        if token.kind == "name":
            return Ref(token.text, token.line)
        if token.kind == "text":
            return self._text(token)
        if token.kind == "pattern":
            return Terminal(self._regex(token))
        if token.text in ("(", "["):
            self._depth += 1
            if self._depth > _NESTING_MAX:
                refuse(token.line, f"brackets are nested deeper than {_NESTING_MAX}")
            found = self._alternatives()
            self._skip_lines()
            self._expect(")" if token.text == "(" else "]")
            self._depth -= 1
            return found if token.text == "(" else Times(found, 0, 1)
        if token.kind == "word" or token.text == "<":
            refuse(token.line, f"{token.text[:40]!r} inside of a rule is not supported")
        refuse(token.line, f"expected a rule, a terminal, a text or a regular expression, found {token.text[:40]!r}")

    def _text(self, token: _Token) -> Part:
        text = _unescaped(token)
        if self._skip(".."):
            end = self._take()
            last = _unescaped(end) if end.kind == "text" else ""
            if len(text) != 1 or len(last) != 1 or last < text:
                refuse(token.line, f"expected a range of characters, found {token.text[:20]}..{end.text[:20]}")
            return Terminal(Chars(chars((ord(text), ord(last)))))
        nodes = tuple(Chars(chars((ord(c), ord(c)))) for c in text)
        self._work.take(2 * len(nodes))
        return Terminal(_either_case(Sequence_(nodes)) if token.text.endswith("i") else Sequence_(nodes))

    def _regex(self, token: _Token) -> Node:
        source, _, flags = token.text[1:].rpartition("/")
        if set(flags) - set("isu"):
            refuse(token.line, f"flags {flags!r} of a regular expression are not supported: expected i, s or u")
        node = self._pattern(source, token.line)
        node = _with_ends(node) if "s" in flags else node
        return _either_case(node) if "i" in flags else node

    def _pattern(self, source: str, line: int) -> Node:
        try:
            return parse(source, self._work, whole=True)
        except PatternError as e:
            refuse(line, f"the regular expression /{source[:60]}/ cannot be held: {e}")

    # terminals

    def _named(self, name: str, line: int) -> Node:
        known = self._nodes.get(name)
        if known is not None:
            return known
        if name in self._nodes:
            refuse(line, f"the terminal {name} contains itself: expected a rule, whose name has small letters")
        if name not in self._terminals:
            refuse(line, f"there is no terminal {name}")
        self._nodes[name] = None
        found = self._nodes[name] = self._solid(self._node(self._terminals[name][1]), self._terminals[name][0])
        return found

    def _solid(self, node: Node, line: int) -> Node:
        try:
            return solid(node, self._work)
        except PatternError as e:
            refuse(line, f"the terminal cannot be held: {e}")

    def _node(self, part: Part) -> Node:
        """A part of a terminal without references."""
        self._work.take(4)
        if isinstance(part, Terminal):
            return part.node
        if isinstance(part, Ref):
            if not is_terminal(part.name):
                refuse(part.line, f"a terminal cannot contain the rule {part.name}")
            return self._named(part.name, part.line)
        if isinstance(part, Times):
            return Repeat(self._node(part.item), part.least, part.most)
        nodes = tuple(map(self._node, part.items))
        return Either(nodes) if isinstance(part, OneOf) else Sequence_(nodes)


def is_terminal(name: str) -> bool:
    """Whether a name is that of a terminal, which begins with a large letter."""
    return name.lstrip("_")[:1].isupper()


def _unescaped(token: _Token) -> str:
    text = ""
    for x, u, big, short, plain in _ESCAPE.findall(token.text.removesuffix("i")[1:-1]):
        code = int(x or u or big or "0", 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            refuse(token.line, f"the text {token.text[:40]} has an escape of no character")
        if short and short not in _SHORT and short not in _PLAIN:
            refuse(token.line, f"the text {token.text[:40]} has the escape \\{short}, which is unknown")
        text += chr(code) if x or u or big else _SHORT.get(short, short) or plain
    return text


def _with_classes(node: Node, change: Callable[[CharClass], CharClass]) -> Node:
    if isinstance(node, Chars):
        return Chars(change(node.of))
    if isinstance(node, Repeat):
        return Repeat(_with_classes(node.item, change), node.least, node.most)
    if isinstance(node, (Sequence_, Either)):
        return type(node)(tuple(_with_classes(item, change) for item in node.items))
    return node


def _either_case(node: Node) -> Node:
    """The node with each letter of ASCII in both cases."""

    def change(of: CharClass) -> CharClass:
        letters = [c for c in ascii_lowercase if any(common(of.sure, ((ord(x),) * 2,)) for x in (c, c.upper()))]
        return any_of([of, chars(*((ord(x), ord(x)) for c in letters for x in (c, c.upper())))])

    return _with_classes(node, change)


def _with_ends(node: Node) -> Node:
    """The node with a dot that matches ends of lines, too."""
    return _with_classes(node, lambda of: ANY.of if of == ANY_BUT_ENDS else of)
