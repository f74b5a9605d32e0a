"""Files of a work folder that are read again: a crash may leave one empty, or cut off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file if it is damaged, whatever its reader raises then.

    Raises:
        ValueError: it is damaged.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as e:
        why = f"{type(e).__name__}: {e}"
        raise ValueError(f"'{path}' is damaged: remove it, and what it had is made again ({why:.200})") from e
