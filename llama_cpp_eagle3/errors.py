"""What can go wrong, as one tree rooted at `Eagle3Error`.

The compiled module raises the same classes (csrc/error.h has their C++ twins).
"""

from __future__ import annotations


class Eagle3Error(RuntimeError):
    """Base class of all errors of this package."""


class ModelFileError(Eagle3Error, ValueError):
    """A model file is missing, truncated, not GGUF, of the wrong architecture, or has a bad key or tensor."""


class IncompatibleDraftError(Eagle3Error, ValueError):
    """Draft and target do not fit together; the message names both files, both numbers and what to do."""


class HubError(Eagle3Error, ValueError):
    """The Hugging Face hub does not have what was named, does not give it, or does not answer."""


class ContextFullError(Eagle3Error, ValueError):
    """The context has no room for the tokens that were to be evaluated."""


class LogitsError(Eagle3Error):
    """The target computed logits that are no numbers: what it read is damaged, or it overflows."""


class RpcError(Eagle3Error, ConnectionError):
    """A ggml-rpc server cannot be reached, does not understand us, or is gone."""


class LibraryMismatchError(Eagle3Error, ImportError):
    """llama-cpp-python is not the version that this package was built for, or our compiled module is missing."""


class BusyError(Eagle3Error):
    """One object was used by two threads at once."""
