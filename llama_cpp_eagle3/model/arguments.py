"""The constructor's arguments: how they are shown to users, and how they are read before anything is loaded."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from ..config.eagle3_options import DEFAULTS, OPTIONS, ConstructorOptions
from ..config.llama_options import LLAMA_DEFAULTS
from ..config.option import types_of
from ..draft.kinds import kind_of
from ..draft.kinds.mtp import has_block
from .options import DraftOptions, cache_types, check_values, set_defaults

F = TypeVar("F", bound=Callable[..., Any])


def show_arguments(function: F) -> F:
    """Let `help`, notebooks and `inspect` show our arguments by name, which the function takes as `**options`."""
    signature = inspect.signature(function)
    *named, options = signature.parameters.values()
    types = types_of(ConstructorOptions)
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
        for name, default in DEFAULTS.items()
    ]
    others = options.replace(name="llama_options", annotation="Unpack[LlamaOptions]")
    function.__signature__ = signature.replace(parameters=[*named, *own, others])  # type: ignore[attr-defined]
    return function


def check_names(function: str, given: Iterable[str], *more: str) -> None:
    """Raise TypeError for a keyword that `Eagle3Llama` does not have, and name the nearest one; Llama ignores these.

    more: further ones that the function takes.
    """
    known = [*OPTIONS, *more]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}.{hint}")


def own_arguments(given: ConstructorOptions) -> ConstructorOptions:
    """Our arguments, without those of `Llama`."""
    own = {name: value for name, value in given.items() if name not in LLAMA_DEFAULTS}
    return cast(ConstructorOptions, own)


def read_arguments(path: str, given: ConstructorOptions) -> tuple[DraftOptions, dict[str, Any]]:
    """Check the constructor's arguments, and set defaults: the drafter's options, and all arguments of `Llama`.

    given: our own arguments, with their defaults, and those of `Llama` that were given.

    Raises:
        TypeError: an unknown argument.
        ValueError: a value is invalid, or contradicts another one.
    """
    check_names("Eagle3Llama", given)
    for name, value in given.items():
        check = OPTIONS[name].check
        if check is not None:
            check(name, value)
    options: dict[str, Any] = {name: value for name, value in given.items() if name in LLAMA_DEFAULTS}
    generates = not any(options.get(name) for name in ("draft_model", "embedding", "vocab_only"))
    has_own = generates and given["draft_target_layers"] is None and has_block(path)
    kind = kind_of(os.path.expanduser(os.fspath(given["draft_model_path"] or "")))
    draft = DraftOptions.of(given, has_block=has_own, has_text=generates, draft_kind=kind)
    options |= cache_types(options)
    check_values(draft, options)
    set_defaults(options, has_projector=given["mmproj_path"] is not None, has_servers=bool(given["rpc_servers"]))
    return draft, {**LLAMA_DEFAULTS, **options}
