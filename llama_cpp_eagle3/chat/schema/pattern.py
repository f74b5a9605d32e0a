"""Reads regular expressions: the syntax that ECMAScript, which JSON schemas use, and Python have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .code_points import ANY_BUT_ENDS, CharClass, any_of, category, chars, named
from .work import Work

_COUNTS = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}(?<!\{\})")
_ESCAPES = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_HEX = {"x": 2, "u": 4}
_DIGITS = re.compile("[0-9a-fA-F]+")
_NAME_MAX = 100
_NESTING_MAX = 60
_SIZE_MAX = 20_000
"""Limit of a pattern's characters, when repetitions are written out."""


class PatternError(ValueError):
    """A pattern is no regular expression, or has a construct that no grammar has."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a class."""

    of: CharClass


@dataclass(frozen=True, slots=True)
class Sequence_:
    """Nodes, one after another."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of several."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `least` to `most` times; None: without limit."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """The beginning of the text, or its end."""

    is_start: bool


Node = Chars | Sequence_ | Either | Repeat | Edge
EMPTY = Sequence_(())
ANY = Chars(chars((0, 0x10FFFF)))
"""Any character of a text, before or after a pattern that is not anchored."""
_ANYTHING = Repeat(ANY, 0, None)


def parse(pattern: str, work: Work, whole: bool = False) -> Node:
    """Read a pattern. The result has no edges: it matches a whole text.

    work: is charged. whole: the pattern must match the whole text; else it may match anywhere, unless it has ^ and $.

    Raises:
        PatternError: it is no regular expression, or no grammar can be made of it.
    """
    node = _Reader(pattern, work).read()
    _check_size(node)
    return solid(_place(node, _ANCHORED if whole else _FREE, _ANCHORED if whole else _FREE), work)


def solid(node: Node, work: Work) -> Node:
    """A node for the same texts, without repetitions of parts that can be empty, which a grammar would never leave.

    Raises:
        PatternError: it has too many characters.
    """
    _check_size(node)
    node = _solid(node, work)
    if _size(node) > 2 * _SIZE_MAX:
        raise PatternError("its repetitions can be empty in too many ways")
    return node


def _check_size(node: Node) -> None:
    if _size(node) > _SIZE_MAX:
        raise PatternError(f"it repeats more than {_SIZE_MAX} characters")


class _Reader:
    def __init__(self, text: str, work: Work):
        self.text, self.work, self.at, self.depth = text, work, 0, 0

    def read(self) -> Node:
        node = self._either()
        if self.at < len(self.text):
            raise PatternError("a ')' without '('")
        return node

    def _peek(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def _take(self) -> str:
        if self.at >= len(self.text):
            raise PatternError("it ends too early")
        self.work.take(6)
        self.at += 1
        return self.text[self.at - 1]

    def _skip(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def _either(self) -> Node:
        items = [self._sequence()]
        while self._skip("|"):
            items.append(self._sequence())
        return items[0] if len(items) == 1 else Either(tuple(items))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._repeated(self._atom()))
        return items[0] if len(items) == 1 else Sequence_(tuple(items))

    def _repeated(self, atom: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return atom
        if isinstance(atom, Edge):
            raise PatternError("an anchor is repeated")
        self._skip("?")  # a lazy repetition matches the same texts
        if self._peek() == "+" or self._counts() is not None:
            raise PatternError("a repetition is repeated")
        return Repeat(atom, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if simple is not None:
            self.at += 1
            return simple
        found = _COUNTS.match(self.text, self.at) if self._peek() == "{" else None
        if found is None:
            return None  # a literal brace
        least, comma, most = found.groups()
        if not least:
            raise PatternError(f"dialects disagree about {found[0][:20]}")
        if len(least) > 6 or len(most) > 6:
            raise PatternError(f"it repeats more than {_SIZE_MAX} characters")
        self.at = found.end()
        counts = int(least), int(most) if most else None if comma else int(least)
        if counts[1] is not None and counts[1] < counts[0]:
            raise PatternError(f"{{{least},{most}}} repeats less often than it has to")
        return counts

    def _atom(self) -> Node:
        c = self._take()
        if c == "(":
            return self._group()
        if c == "[":
            return Chars(self._class())
        if c == ".":
            return Chars(ANY_BUT_ENDS)
        if c in "^$":
            return Edge(c == "^")
        if c in "*+?":
            raise PatternError("there is nothing to repeat")
        if c == "\\":
            if self._peek() in ("A", "Z", "z"):
                return Edge(self._take() == "A")
            return Chars(self._escape())
        return Chars(chars((ord(c), ord(c))))

    def _group(self) -> Node:
        if self._skip("?"):
            if self._skip("<") or self._skip("P<"):
                name = self._until(">")
                if not name.isidentifier():
                    raise PatternError("lookarounds have no grammar")
            elif not self._skip(":"):
                raise PatternError("lookarounds, flags and references to groups have no grammar")
        self.depth += 1
        if self.depth > _NESTING_MAX:
            raise PatternError("its groups are nested too deep")
        node = self._either()
        if not self._skip(")"):
            raise PatternError("a '(' without ')'")
        self.depth -= 1
        return node

    def _escape(self, in_class: bool = False) -> CharClass:
        c = self._take()
        if c in "dwsDWS":
            return named(c)
        if c in "pP" and self._skip("{"):
            name = self._until("}")
            found = category(name)
            if found is None:
                raise PatternError(f"\\{c}{{{name}}} is no general category of Unicode")
            self.work.take(len(found.sure))
            return found if c == "p" else ~found
        if c == "b" and in_class:
            code = 8
        elif c in _ESCAPES and not (c == "0" and self._peek().isdigit()):
            code = _ESCAPES[c]
        elif c in _HEX:
            code = self._hex(_HEX[c])
        elif c == "c" and self._peek().isascii() and self._peek().isalpha():
            code = ord(self._take()) % 32
        elif c.isdigit() or (c.isascii() and c.isalpha()):
            raise PatternError(f"\\{c} has no grammar")
        else:
            code = ord(c)
        return chars((code, code))

    def _hex(self, n: int) -> int:
        if n == 4 and self._skip("{"):
            digits = self._until("}")
            n = len(digits)
        else:
            digits = self._peek(n)
            self.at += n
        code = int(digits, 16) if _DIGITS.fullmatch(digits) else -1
        if len(digits) != n or not 0 <= code <= 0x10FFFF:
            raise PatternError("an escape lacks hexadecimal digits")
        if 0xD800 <= code < 0xE000:
            raise PatternError("a half of a surrogate pair is no character")
        return code

    def _until(self, end: str) -> str:
        """Take a short name and the character after it; empty if there is none."""
        at = self.text.find(end, self.at, self.at + _NAME_MAX)
        name = self.text[self.at : max(self.at, at)]
        self.at = max(self.at, at + 1)
        return name

    def _class(self) -> CharClass:
        negated = self._skip("^")
        if self._peek() == "]":
            raise PatternError("dialects disagree about a class that begins with ']'")
        found: list[CharClass] = []
        while not self._skip("]"):
            first = self._member()
            end = _only(first)
            if self._peek() == "-" and self._peek(2) not in ("-]", "-") and end is not None:
                start = self.at
                self.at += 1
                last = _only(self._member())
                if last is None:
                    self.at = start  # a class after a dash, which is literal then
                elif last < end:
                    raise PatternError(f"the range from {chr(end)!r} to {chr(last)!r} is empty")
                else:
                    first = chars((end, last))
            found.append(first)
            self.work.take(4 * (len(first.sure) + len(first.possible)))
        both = any_of(found)
        return ~both if negated else both

    def _member(self) -> CharClass:
        c = self._take()
        return self._escape(in_class=True) if c == "\\" else chars((ord(c), ord(c)))


def _only(of: CharClass) -> int | None:
    """The only character of a class."""
    if of.sure == of.possible and len(of.sure) == 1 and of.sure[0][0] == of.sure[0][1]:
        return of.sure[0][0]
    return None


def _size(node: Node, known: dict[int, int] | None = None) -> int:
    """Characters of a node, when all of it is written out. known: sizes of its parts, which it may have many times."""
    known = {} if known is None else known
    size = known.get(id(node))
    if size is None:
        if isinstance(node, Repeat):
            size = max(1, node.least if node.most is None else node.most) * _size(node.item, known)
        else:
            parts = node.items if isinstance(node, (Sequence_, Either)) else ()
            size = max(1, sum(_size(item, known) for item in parts))
        known[id(node)] = size
    return size


# edges

_FREE, _ANCHORED, _INNER = "free", "anchored", "inner"


def _place(node: Node, left: str, right: str) -> Node:
    """The node without edges, with any text before or after it if it is not anchored there.

    left, right: the kind of its sides: an end of the pattern that is not anchored, one that is, or neither.
    """
    if isinstance(node, Either):
        return Either(tuple(_place(item, left, right) for item in node.items))
    items = list(node.items if isinstance(node, Sequence_) else (node,))
    while items and left != _INNER and items[0] == Edge(True):
        left = _ANCHORED
        del items[0]
    while items and right != _INNER and items[-1] == Edge(False):
        right = _ANCHORED
        del items[-1]
    if not items:
        return _ANYTHING if _FREE in (left, right) else EMPTY
    for i, item in enumerate(items):
        if not _has_edges(item):
            continue
        own_left = left if i == 0 else _INNER
        own_right = right if i == len(items) - 1 else _INNER
        if not isinstance(item, (Either, Sequence_)) or (own_left, own_right) == (_INNER, _INNER):
            raise PatternError("an anchor in its middle has no grammar")
        items[i] = _place(item, own_left, own_right)
        left = _INNER if i == 0 else left
        right = _INNER if i == len(items) - 1 else right
    around = [_ANYTHING] if left == _FREE else [], [_ANYTHING] if right == _FREE else []
    return Sequence_((*around[0], *items, *around[1]))


def _has_edges(node: Node) -> bool:
    if isinstance(node, (Sequence_, Either)):
        return any(map(_has_edges, node.items))
    return _has_edges(node.item) if isinstance(node, Repeat) else isinstance(node, Edge)


# repetitions of nodes that can be empty


def _solid(node: Node, work: Work) -> Node:
    work.take()
    if isinstance(node, Repeat):
        item = _solid(node.item, work)
        if node.most == 0:
            return EMPTY
        if not is_nullable(item):
            return Repeat(item, node.least, node.most)
        rest = without_empty(item, work)
        return EMPTY if rest is None else Repeat(rest, 0, node.most)
    if isinstance(node, (Sequence_, Either)):
        return type(node)(tuple(_solid(item, work) for item in node.items))
    return node


def is_nullable(node: Node) -> bool:
    """Whether it matches the empty text."""
    if isinstance(node, Sequence_):
        return all(map(is_nullable, node.items))
    if isinstance(node, Either):
        return any(map(is_nullable, node.items))
    return isinstance(node, Repeat) and (node.least == 0 or is_nullable(node.item))


def without_empty(node: Node, work: Work) -> Node | None:
    """A node for the same texts without the empty one; None: there are no others."""
    if not is_nullable(node):
        return node
    if isinstance(node, Repeat):
        return Repeat(node.item, 1, node.most)
    assert isinstance(node, (Sequence_, Either))
    found = list(_parts_without_empty(node.items, isinstance(node, Sequence_), work))
    if not found:
        return None
    return found[0] if len(found) == 1 else Either(tuple(found))


def _parts_without_empty(items: Sequence[Node], in_sequence: bool, work: Work) -> Iterator[Node]:
    """Alternatives: in a sequence each begins with the first item that is not empty."""
    for i, item in enumerate(items):
        rest = without_empty(item, work)
        work.take(len(items) - i if in_sequence else 1)
        if rest is not None:
            yield Sequence_((rest, *items[i + 1 :])) if in_sequence else rest


def lengths(node: Node) -> tuple[int, int | None]:
    """The least and the greatest length of its texts, in characters (None: no limit)."""
    if isinstance(node, Repeat):
        least, most = lengths(node.item)
        return least * node.least, None if most is None or node.most is None else most * node.most
    if isinstance(node, Sequence_):
        pairs = list(map(lengths, node.items))
        tops = [most for _, most in pairs if most is not None]
        return sum(least for least, _ in pairs), sum(tops) if len(tops) == len(pairs) else None
    if isinstance(node, Either):
        pairs = list(map(lengths, node.items))
        tops = [most for _, most in pairs if most is not None]
        return min(least for least, _ in pairs), max(tops) if len(tops) == len(pairs) else None
    return 1, 1
