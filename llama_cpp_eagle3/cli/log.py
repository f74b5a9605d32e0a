"""--log-file: log messages go to a file too."""

from __future__ import annotations

import logging
from pathlib import Path

_ROOTS = ("llama_cpp_eagle3", "llama_cpp_eagle3.serve")


def log_to(path: Path) -> None:
    """Write the log to a file too, after what it has.

    Raises:
        OSError: it cannot be written.
    """
    handler = logging.FileHandler(path.expanduser(), encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for logger in map(logging.getLogger, _ROOTS):
        if logger.name == _ROOTS[0]:
            if not logger.hasHandlers():
                logger.addHandler(logging.StreamHandler())
            logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
        elif logger.propagate:
            continue  # it comes there anyway
        logger.addHandler(handler)
