"""What is good to know, told to users."""

from __future__ import annotations

import logging

_log = logging.getLogger("llama_cpp_eagle3")


def tell(verbose: bool, text: str) -> None:
    """Log it; with `verbose` it is seen. No method of the model: who holds it would keep that."""
    if verbose and not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("Eagle3Llama: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
    _log.log(logging.INFO if verbose else logging.DEBUG, text)
