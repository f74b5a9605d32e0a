"""Changes errors of `Eagle3Llama`, which name options, into a command's, which name flags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..config.eagle3_options import OPTIONS
from ..draft.kinds import KINDS, NGRAM

_FLAGS = {name: option.flag for name, option in OPTIONS.items() if option.flag is not None}
_SOURCES = {kind.source: kind.spec_types[0] for kind in KINDS} | {NGRAM: "ngram-simple"}
# names that are words too are arguments before a colon or a value alone; a part of a path is none
_NAMES = "|".join(rf"(?P<{name}>{name}{'' if '_' in name else '(?=[:=])'})" for name in _FLAGS)
_ARGUMENT = re.compile(rf"(?<![\w./\\'-])(?:{_NAMES})(?![\w/\\-])(?:=(?P<value>-?\w+(?:\.\w+)*))?")
_SOURCE = re.compile(rf"(?<!architecture )'({'|'.join(_SOURCES)})'")


def in_flags(text: str) -> str:
    """An error's text with flags in place of options, and --spec-type's names in place of sources."""
    return _SOURCE.sub(lambda found: _SOURCES[found[1]], _ARGUMENT.sub(_flag, text))


def _flag(found: re.Match[str]) -> str:
    flag = next(flag for name, flag in _FLAGS.items() if found[name])
    value = found["value"]
    if value is None:
        return flag.names[0]
    if value in ("True", "False"):
        if flag.metavar:
            return f"{flag.names[0]} {'on' if value == 'True' else 'off'}"
        names = flag.names if value == "True" else flag.no
        return names[0] if names else found[0]
    return f"{flag.names[0]} {value}"


@contextmanager
def errors_in_flags() -> Iterator[None]:
    """Let errors about options name flags."""
    try:
        yield
    except (RuntimeError, ValueError) as e:
        if len(e.args) == 1 and isinstance(e.args[0], str):
            e.args = (in_flags(e.args[0]),)
        raise
