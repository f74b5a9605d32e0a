"""Arguments of users, by their types: a value of another type is refused by its name, before it fails deep inside."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, ItemsView, Iterable, Mapping, Sequence, Set
from functools import cache
from numbers import Real
from operator import is_
from reprlib import repr as shown
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "True or False", type(None): "None"}
_SCALARS = (bool, int, float)
_NO_LIST = (str, bytes, bytearray, Mapping)
_NO_NAMES = {"\0", *(chr(c) for c in range(0xD800, 0xE000) if not 0xDC80 <= c < 0xDD00)}  # those are bytes of a name
_WRONG: Any = object()


def as_type(name: str, value: Any, hint: Any) -> Any:
    """The value of an argument as its type says: NumPy's numbers are Python's then, and NaN is no number.

    Raises:
        ValueError: it has another type.
    """
    if type(value) is hint and hint in _SCALARS and value == value:
        return value
    found = _convert(value, hint)
    if found is _WRONG:
        raise ValueError(f"expected {name} to be {_words(hint)}, found {shown(value)}")
    return found


def check_fields(made: Any) -> None:
    """Check the fields of a frozen dataclass by their types, in its `__post_init__`. Raises ValueError."""
    for name, hint in hints(made.__class__):
        value = getattr(made, name)
        if (found := as_type(name, value, hint)) is not value:
            object.__setattr__(made, name, found)


@cache
def hints(kind: Any) -> ItemsView[str, Any]:
    """The types of a class's fields or of a function's arguments, by name."""
    return get_type_hints(kind).items()


def _convert(value: Any, hint: Any) -> Any:
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (int, float):
        return _number(value, origin)
    if origin is bool:
        return bool(value) if isinstance(value, (bool, np.bool_)) else _WRONG
    if origin is str:
        return value if isinstance(value, str) and value == value.encode(errors="ignore").decode() else _WRONG
    if origin in (Union, UnionType):
        if isinstance(value, (str, os.PathLike)) and any(get_origin(arg) is os.PathLike for arg in args):
            is_name = isinstance(path := os.fspath(value), str) and not set(path) & _NO_NAMES
            return value if is_name else _WRONG
        exact = [arg for arg in args if type(value) is arg] or args
        return next((found for arg in exact if (found := _convert(value, arg)) is not _WRONG), _WRONG)
    if origin is Literal:
        return next((arg for arg in args if isinstance(value, type(arg)) and arg == value), _WRONG)
    if origin is Any or origin is None:
        return value
    if origin is Callable or getattr(origin, "_is_protocol", False):
        return value if callable(value) else _WRONG
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return _WRONG
        keys = [int(key) if args[0] is int and isinstance(key, str) and key.isdecimal() else key for key in value]
        pairs = _all([*keys, *value.values()], [args[0]] * len(keys) + [args[1]] * len(keys))
        return _WRONG if pairs is None else dict(zip(pairs[: len(keys)], pairs[len(keys) :], strict=True))
    if not (args and issubclass(origin, Collection)):
        return value if isinstance(value, origin) else _WRONG
    is_list = isinstance(value, Iterable) and not isinstance(value, _NO_LIST) and getattr(value, "ndim", 1) > 0
    if not is_list or isinstance(value, Set) > (origin is Collection):
        return _WRONG
    found = value.tolist() if isinstance(value, np.ndarray) else [*value]
    items: list[Any] | None = found
    if args[0] is not int or {*map(type, found)} - {int}:
        items = _all(found, args if origin is tuple and args[-1] is not ... else args[:1] * len(found))
    if items is None:
        return _WRONG
    own = origin if origin in (list, tuple) else (list, tuple, Set, range)
    if isinstance(value, own) and all(map(is_, value, items)):
        return value
    return tuple(items) if origin is tuple else items


def _all(values: list[Any], kinds: Sequence[Any]) -> list[Any] | None:
    """Values of these types; None: one of them has another one."""
    found = [*map(_convert, values, kinds)] if len(values) == len(kinds) else [_WRONG]
    return None if any(item is _WRONG for item in found) else found


def _number(value: Any, kind: Any) -> Any:
    if not isinstance(value, Real) or isinstance(value, bool) or value != value:
        return _WRONG
    try:
        number = value if type(value) is kind else kind(value)
    except OverflowError:  # not finite, or too large
        return _WRONG
    return number if kind is float or number == value else _WRONG


def _words(hint: Any) -> str:
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, args)))
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin is Callable:
        return "a function"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping ({_words(args[0])}: {_words(args[1])})"
    if origin is tuple and args[-1] is not ...:
        return f"({', '.join(map(_words, args))})"
    if args and isinstance(origin, type) and issubclass(origin, Collection):
        return f"a list (of {_words(args[0])})"
    return _NAMES.get(origin) or str(getattr(origin, "__name__", origin))
