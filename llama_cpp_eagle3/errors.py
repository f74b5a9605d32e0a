"""The errors of this package, which all derive from `Eagle3Error`.

The compiled module raises the same classes (csrc/error.h has their C++ counterparts).
"""

from __future__ import annotations


class Eagle3Error(RuntimeError):
    """Base class of all errors of this package."""


class ModelFileError(Eagle3Error, ValueError):
    """A model file is missing, truncated, not GGUF, of the wrong architecture, or has a bad key or tensor."""


class IncompatibleDraftError(Eagle3Error, ValueError):
    """Draft and target do not fit together; the message names both files, both numbers and what to do."""


class HubError(Eagle3Error, ValueError):
    """The Hugging Face hub does not have the named file or repository, refuses it, or does not answer."""


class ContextFullError(Eagle3Error, ValueError):
    """The context has no room for the tokens to evaluate."""


class LogitsError(Eagle3Error):
    """The target computed logits that are NaN: its weights or states are damaged, or it overflows."""


class RpcError(Eagle3Error, ConnectionError):
    """A ggml-rpc server cannot be reached, has another protocol, or was lost."""


class LibraryMismatchError(Eagle3Error, ImportError):
    """llama-cpp-python is not the version that this package was built for, or our compiled module is missing."""


class BusyError(Eagle3Error):
    """One object was used by two threads at once."""
