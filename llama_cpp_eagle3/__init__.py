"""EAGLE-3 speculative decoding for GGUF models, on top of llama-cpp-python."""

from . import _library
from ._version import LLAMA_CPP_PYTHON_VERSION, __version__
from .errors import (
    BusyError,
    ContextFullError,
    Eagle3Error,
    IncompatibleDraftError,
    LibraryMismatchError,
    ModelFileError,
)

_library.load()

__all__ = [
    "LLAMA_CPP_PYTHON_VERSION",
    "BusyError",
    "ContextFullError",
    "Eagle3Error",
    "IncompatibleDraftError",
    "LibraryMismatchError",
    "ModelFileError",
    "__version__",
]
