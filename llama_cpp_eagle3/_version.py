"""Our version, which stands here alone: pip reads it from this file, for the second wheel too.

`LLAMA_CPP_PYTHON_VERSION` repeats vendor/llama_cpp_python_version; a test compares them.
"""

__version__ = "0.1.0"

LLAMA_CPP_PYTHON_VERSION = "0.3.36"
