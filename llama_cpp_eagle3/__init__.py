"""EAGLE-3 speculative decoding for GGUF models, on top of llama-cpp-python."""

from . import _library
from ._version import LLAMA_CPP_PYTHON_VERSION, __version__
from .errors import (
    BusyError,
    ContextFullError,
    Eagle3Error,
    HubError,
    IncompatibleDraftError,
    LibraryMismatchError,
    LogitsError,
    ModelFileError,
    RpcError,
)

_library.load()

# these need the compiled module
with _library.mismatches():
    from ._core import NgramStore
    from .engine.stats import Stats
    from .llama import Eagle3Llama
    from .llama.features import Features
    from .llama.generate_batch import BatchResult
    from .llama.state import Eagle3State

__all__ = [
    "LLAMA_CPP_PYTHON_VERSION",
    "BatchResult",
    "BusyError",
    "ContextFullError",
    "Eagle3Error",
    "Eagle3Llama",
    "Eagle3State",
    "Features",
    "HubError",
    "IncompatibleDraftError",
    "LibraryMismatchError",
    "LogitsError",
    "ModelFileError",
    "NgramStore",
    "RpcError",
    "Stats",
    "__version__",
]
