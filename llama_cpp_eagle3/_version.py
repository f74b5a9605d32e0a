"""Versions in one place. `LLAMA_CPP_PYTHON_VERSION` is what vendor/llama_cpp_python_version says; a test compares the two."""

__version__ = "0.1.0"

LLAMA_CPP_PYTHON_VERSION = "0.3.36"
