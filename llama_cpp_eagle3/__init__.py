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
from ._core import NgramStore  # noqa: E402
from .engine.stats import Stats  # noqa: E402
from .llama import Eagle3Llama  # noqa: E402
from .llama.features import Features  # noqa: E402
from .llama.generate_batch import BatchResult  # noqa: E402
from .llama.state import Eagle3State  # noqa: E402

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
