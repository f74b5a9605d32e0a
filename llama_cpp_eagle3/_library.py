"""Import llama_cpp first, so that the compiled module binds to the libllama that it has loaded."""

from __future__ import annotations

import ctypes
import sys

from ._version import LLAMA_CPP_PYTHON_VERSION
from .errors import LibraryMismatchError

_ADVICE = f"""\
Install the version that fits:
    pip install llama-cpp-python=={LLAMA_CPP_PYTHON_VERSION}
(with CMAKE_ARGS="-DGGML_CUDA=on" or "-DGGML_METAL=on" in front for a GPU build)"""


def check_version(found: str) -> None:
    """Raise `LibraryMismatchError` unless `found` is the llama-cpp-python version that we were built for."""
    if found != LLAMA_CPP_PYTHON_VERSION:
        raise LibraryMismatchError(
            f"llama-cpp-eagle3 needs llama-cpp-python {LLAMA_CPP_PYTHON_VERSION}, found {found}. {_ADVICE}"
        )


def load() -> None:
    """Load libllama through llama_cpp, check it, and then load the compiled module against it."""
    try:
        import llama_cpp
    except ModuleNotFoundError as e:
        if e.name != "llama_cpp":
            raise
        raise LibraryMismatchError(f"llama-cpp-python is not installed. {_ADVICE}") from e
    check_version(llama_cpp.__version__)

    if sys.platform == "darwin":
        # macOS resolves our undefined symbols only in libraries that are open globally
        ctypes.CDLL(llama_cpp.llama_cpp._lib._name, mode=ctypes.RTLD_GLOBAL)
    try:
        from . import _core  # noqa: F401
    except ModuleNotFoundError:
        raise
    except ImportError as e:
        # all symbols are bound at load time, so a libllama without them ends here
        raise LibraryMismatchError(
            f"the compiled module does not fit the loaded libllama ({llama_cpp.llama_cpp._lib._name}): {e}. {_ADVICE}"
        ) from e
