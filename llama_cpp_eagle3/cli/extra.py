"""Commands that need more than the package itself does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import Eagle3Error
from ..extras import install_command


@contextmanager
def extra(name: str, of_heads: bool = False) -> Iterator[None]:
    """Around imports: a module that is missing belongs to this extra (of the package that makes heads).

    Raises:
        Eagle3Error: what is missing, and how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        raise Eagle3Error(f"{e.name} is missing: {install_command(name, of_heads=of_heads)}") from e
