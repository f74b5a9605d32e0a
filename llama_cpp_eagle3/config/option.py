"""Options, and checks of their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

from .flag import Flag

Check = Callable[[str, Any], None]
"""(name, value): ValueError if the option cannot have the value."""


@dataclass(frozen=True, slots=True)
class Option:
    """A note on a key of a TypedDict: everything about an option besides its name and type."""

    doc: str = ""
    """What it does, in Markdown for docs/; empty: llama_cpp documents it."""
    flag: Flag | None = None
    default: Any = None
    check: Check | None = None
    """Checks a value by itself, without regard to other options."""


def options_of(keys: type) -> dict[str, Option]:
    """The options of a TypedDict, by name."""
    return {name: _note(hint) or Option() for name, hint in keys.__annotations__.items()}


def types_of(keys: type) -> dict[str, Any]:
    """The types of a TypedDict's options, by name."""
    return {name: get_args(hint)[0] if _note(hint) else hint for name, hint in keys.__annotations__.items()}


def _note(hint: Any) -> Option | None:
    return next((arg for arg in get_args(hint) if isinstance(arg, Option)), None)


def flags_of(options: dict[str, Option], title: str) -> tuple[Flag, ...]:
    """The flags of options under a title of the help; an option's value goes to the attribute of its name."""
    found = []
    for name, option in options.items():
        flag = option.flag
        if flag is not None and flag.title == title:
            default = option.default if flag.default is None else flag.default
            found.append(replace(flag, dest=flag.dest or name, default=default))
    return tuple(found)


def in_range(low: float, high: float, *, or_zero: bool = False) -> Check:
    """A number of this range, or None; or_zero: 0 is the same as None."""

    def check(name: str, value: Any) -> None:
        if value is not None and not low <= value <= high and not (or_zero and value == 0):
            raise ValueError(f"expected {name} in {low}..{high}, or None, found {value}")

    return check
