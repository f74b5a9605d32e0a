"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """A new file beside `path` that becomes it if the block ends well, and vanishes if not.

    Its name is its own: whoever else writes `path` at the same time, in this process or another, has another one, and
    who reads sees one of both.

    Raises:
        OSError: as the system says.
    """
    handle, name = tempfile.mkstemp(suffix=".part", prefix=f".{path.name[:200]}.", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
