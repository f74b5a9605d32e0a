"""Grammars of objects, arrays and strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .code_points import common, complement
from .core import Core, Schemas, distinct
from .form import Form
from .formats import FORMATS, NOT_KEPT
from .gbnf import COUNT_MAX, Ranges, Rules, characters, literal, one_of
from .keywords import LARK
from .lark import LarkError
from .lark_grammar import lark_grammar
from .matching import Pattern
from .pattern import PatternError
from .pattern_grammar import pattern_grammar
from .reader import Reader

_STATES_MAX = 20_000
"""Most states of a grammar that counts properties."""
_KEY_MAX = 100
"""Other names must differ from a property's within so many characters."""
_TEXT = {"type": "string"}


class Writer(Protocol):
    """Writes the grammars of parts."""

    rules: Rules
    reader: Reader
    form: Form

    def value(self, schemas: Schemas, hint: str, path: str, must: bool = False) -> str | None:
        """The rule of a value; None: there is none."""

    def say(self, path: str, reason: str) -> None:
        """Report a part that is not enforced."""


def inside(path: str, name: str) -> str:
    """The path of a property."""
    return f"{path}.{name}" if path else name


# strings


def string_body(writer: Writer, core: Core, hint: str, path: str) -> str:
    """GBNF of a text."""
    least, most = _counts(writer, core.length, "Length", path)
    sources = [(pattern, f"pattern {pattern.source!r}") for pattern in core.patterns]
    for name in core.formats:
        if name in FORMATS:
            sources.append((Pattern(f"^(?:{FORMATS[name]})$", writer.rules.work), f"format {name!r}"))
        elif name in NOT_KEPT:
            writer.say(path, f"format {name} is not kept")
    body = _lark(writer, core.larks, hint, path)
    if body is not None and (least, most) != (0, None):
        writer.say(path, f"minLength and maxLength are not kept beside {LARK}")
    for pattern, name in sources:
        if body is not None:
            writer.say(path, f"{name} is not kept beside another one")
            continue
        body = _pattern(writer, pattern, name, (least, most), hint, path)
    if body is None and (least, most) == (0, None):
        return writer.rules.json("string")
    if body is None:
        body = writer.rules.repeat(writer.rules.json("char"), least, most, f"{hint}-char")
    quote = literal(writer.form.quote)
    return f"{quote} {one_of([body]) if ' | ' not in body else f'({body})'} {quote}".replace("  ", " ")


def _lark(writer: Writer, larks: Sequence[str], hint: str, path: str) -> str | None:
    body = None
    for text in larks:
        if body is not None:
            writer.say(path, f"{LARK} is not kept beside another one")
            continue
        try:
            body = lark_grammar(writer.rules, text, writer.form, hint=f"{hint}-lark")
        except LarkError as e:
            writer.say(path, f"{LARK} is not kept: {e}")
    return body


def _pattern(
    writer: Writer, pattern: Pattern, name: str, length: tuple[int, int | None], hint: str, path: str
) -> str | None:
    try:
        node = pattern.node()
        bare = pattern_grammar(Rules(work=writer.rules.work), node, writer.form)
    except PatternError as e:
        writer.say(path, f"{name} is not kept: {e}")
        return None
    try:
        least, most = length
        return pattern_grammar(writer.rules, node, writer.form, shortest=least, longest=most, hint=hint)
    except PatternError as e:
        writer.say(path, f"minLength and maxLength are not kept beside {name}: {e}")
        return pattern_grammar(writer.rules, node, writer.form, hint=hint) if bare else None


def _counts(writer: Writer, counts: tuple[int, int | None], noun: str, path: str) -> tuple[int, int | None]:
    least, most = counts
    if most is not None and most < least:
        writer.say(path, f"max{noun} {most} is less than min{noun} {least}")
        most = None
    if least > COUNT_MAX:
        writer.say(path, f"min{noun} {least} is kept as {COUNT_MAX}, which is the most")
        least = COUNT_MAX
    if most is not None and most > COUNT_MAX:
        writer.say(path, f"max{noun} {most} is not kept: a grammar counts to {COUNT_MAX}")
        most = None
    return least, most


# arrays


def array_body(writer: Writer, core: Core, hint: str, path: str) -> str:
    """GBNF of an array."""
    rules = writer.rules
    rules.json("space")
    least, most = _counts(writer, core.n_items, "Items", path)
    n_first = max((len(part.first) for part in core.items), default=0)
    n_written = n_first if most is None else min(n_first, most)
    if n_written and least == 0:
        least = n_written  # a tuple has all its items, unless its schema allows fewer
    items = core.of_item(n_first)
    is_closed = items == (False,) or (n_first > 0 and not items and least <= n_written)
    values: list[str] = []
    for i in range(n_written):
        value = writer.value(core.of_item(i), f"{hint}-{i}", f"{path}[{i}]", must=i < core.n_items[0])
        if value is None:
            is_closed, least = True, min(least, i)
            break
        values.append(value)
    n = len(values)
    rest = None
    if not is_closed and (most is None or most > n):
        rest = writer.value(items, f"{hint}-item", f"{path}[]", must=least > n)
    if rest is None and least > n:
        writer.say(path, f"minItems {least} is not kept: there are {n} items at most")
        least = n
    tail = ""
    if rest is not None:
        if n == 0:
            values, n = [rest], 1
        more = rules.add(f"{hint}-more", f'"," space {rest}')
        tail = rules.repeat(more, max(0, least - n), None if most is None else most - n, more)
    if n == 0:
        return '"[" space "]"'
    for i in reversed(range(n)):
        part = f'{"" if i == 0 else """"," space """}{values[i]} {tail}{" space" if i == 0 else ""}'.replace("  ", " ")
        tail = part if i >= 1 and i < least else f"{rules.add(f'{hint}-from', part)}?" if i >= least else part
        if i and i < least and i % 50 == 0:
            tail = rules.add(f"{hint}-from", tail)  # long rules are slow to read
    return f'"[" space {tail} "]"'


# objects


def object_body(writer: Writer, core: Core, hint: str, path: str) -> str:
    """GBNF of an object: properties in their order, then others."""
    rules = writer.rules
    rules.json("space")
    entries: list[tuple[str, bool]] = []
    names, required = core.property_names, frozenset(core.required)
    for name in names:
        must = name in required
        may_be = writer.reader.matches(name, core.names) if core.names else True
        if may_be is False and not must:
            continue
        if may_be is not True:
            writer.say(path, f"propertyNames is not kept for {name!r}")
        value = writer.value(core.of_property(name), f"{hint}-{name}", inside(path, name), must)
        if value is not None:
            key = writer.form.key(name)
            if key is None:
                writer.say(inside(path, name), "the format of the model's tool calls cannot write its name")
                continue
            pair = f"{literal(key)} {writer.form.colon} {value}"
            entries.append((rules.add(f"{hint}-{name}-pair", pair), must))
    others = _others(writer, core, names, hint, path)
    least, most = _counts(writer, core.n_properties, "Properties", path)
    n_required = sum(must for _, must in entries)
    top = least if most is None else most
    if (most is not None and most < n_required) or (top + 1) * len(entries) > _STATES_MAX:
        writer.say(path, f"minProperties {least} and maxProperties {most} are not kept")
        least, most = 0, None
    if others is None and least > len(entries):
        writer.say(path, f"minProperties {least} is not kept: there are {len(entries)} properties")
        least = len(entries)
    if others is not None and least > n_required + 1:
        writer.say(path, "minProperties: a name that comes twice is counted twice")
    members = _members(rules, entries, others, least if least > n_required else 0, most, hint)
    return f'"{{" space {members} "}}"'.replace("  ", " ")


def _members(
    rules: Rules, entries: Sequence[tuple[str, bool]], others: str | None, least: int, most: int | None, hint: str
) -> str:
    """GBNF of an object's members: a rule for each (next entry, number of members), as far as that number matters."""
    top = max(1, least if most is None else most)
    reached: list[set[int]] = [{0}]  # [entry]: possible numbers of members before it
    for _, must in entries:
        written = {min(count + 1, top) for count in reached[-1] if most is None or count < most}
        reached.append(written if must else written | reached[-1])
    # [number of members]: what follows; None: nothing can
    after = {count: _end(rules, others, count, least, most, hint) for count in sorted(reached[-1])}
    for (pair, must), counts in zip(reversed(entries), reversed(reached[:-1]), strict=True):
        before: dict[int, str | None] = {}
        for count in sorted(counts):
            is_full = most is not None and count >= most
            rest = None if is_full else after[min(count + 1, top)]
            ways = [] if rest is None else [f'{"" if count == 0 else """"," space """}{pair} {rest}'.strip()]
            if not must and after[count] is not None:
                ways.append(after[count] or '""')
            before[count] = rules.add(f"{hint}-next", " | ".join(ways)) if ways else None
        after = before
    return after[0] or ""


def _end(rules: Rules, others: str | None, count: int, least: int, most: int | None, hint: str) -> str | None:
    """The part after the named properties: others, and the space before the bracket."""
    fewest, room = max(0, least - count), None if most is None else most - count
    if (room is not None and room < fewest) or (others is None and fewest):
        return None
    space = "space" if count else ""
    if others is None or room == 0:
        return space
    more = rules.add(f"{hint}-other", f'"," space {others}')
    if count:
        return f"{rules.repeat(more, fewest, room, more)} space".strip()
    rest = rules.repeat(more, max(0, fewest - 1), None if room is None else room - 1, more)
    some = f"{others} {rest} space".replace("  ", " ")
    return some if fewest else f"({some})?"


def _others(writer: Writer, core: Core, names: Sequence[str], hint: str, path: str) -> str | None:
    """A rule for any one of the properties without a name of their own; None: there are none."""
    rules, form = writer.rules, writer.form.names or writer.form
    pairs: list[str] = []
    is_open = has_patterns = False
    for part in core.properties:
        for pattern, schema in part.by_pattern:
            has_patterns = True
            if any(pattern.matches(name) is not False for name in names):
                continue  # other names of this pattern are never written
            try:
                key = pattern_grammar(rules, pattern.node(), form, hint=f"{hint}-key")
            except PatternError as e:
                writer.say(path, f"patternProperties {pattern.source!r} is not kept: {e}")
                is_open = True
                continue
            schemas = distinct((schema, *(s for other in core.properties if other is not part for s in other.others)))
            value = writer.value(schemas, f"{hint}-matching", f"{path}[{pattern.source}]")
            if value is not None:
                quote = literal(form.quote)
                pairs.append(f"{quote} ({key}) {quote} {writer.form.colon} {value}")
    if pairs and sum(len(part.by_pattern) for part in core.properties) > 1:
        writer.say(path, "patternProperties: a name may match more than one of them")
    if pairs and core.names:
        writer.say(path, "propertyNames is not kept beside patternProperties")
    if core.may_add and (is_open or not has_patterns):
        schemas = distinct(schema for part in core.properties for schema in part.others)
        value = writer.value(schemas, f"{hint}-other", f"{path}.*" if path else "*")
        key_rule = None if value is None else _key(writer, core, names, hint, path)
        if value is not None and key_rule is not None:
            pairs.append(f"{key_rule} {writer.form.colon} {value}")
    return rules.add(f"{hint}-pair", " | ".join(pairs)) if pairs else None


def _key(writer: Writer, core: Core, names: Sequence[str], hint: str, path: str) -> str | None:
    """The rule of a name that no property has."""
    if (
        core.names
        and writer.form.names is None
        and all(writer.reader.matches(name, core.names) is False for name in names)
    ):
        return writer.value((*core.names, _TEXT), f"{hint}-name", path)
    if core.names:
        writer.say(path, "propertyNames is not kept")
    if not names:
        return writer.rules.json("string" if writer.form.names is None else "name")
    form = writer.form.names or writer.form
    quote = literal(form.quote)
    name = _other_than(writer.rules, form.raw, set(names), 0, hint)
    return writer.rules.add(f"{hint}-name", f"{quote} {name} {quote} ")


def _other_than(rules: Rules, raw: Ranges, names: set[str], depth: int, hint: str) -> str:
    """GBNF of a text without escapes that is none of the names, nor begins with one of the longest."""
    nexts: dict[str, set[str]] = {}
    rules.work.take(30 + 2 * len(names))
    for name in names:
        if len(name) > depth:
            nexts.setdefault(name[depth], set()).add(name)
    rules.work.take(4 * len(nexts))
    taken: Ranges = sorted((ord(c), ord(c)) for c in nexts)
    rest = characters(common(raw, complement(taken)))
    any_ = rules.add("name-char", characters(raw))
    ways = [f"{rest} {any_}*"]
    if depth < _KEY_MAX:
        ways += [
            f"{literal(c)} {_other_than(rules, raw, found, depth + 1, hint)}"
            for c, found in sorted(nexts.items())
            if common(raw, ((ord(c), ord(c)),))
        ]
    if not any(len(name) == depth for name in names):
        ways.append('""')
    return rules.add(f"{hint}-name", " | ".join(ways))
