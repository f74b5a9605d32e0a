"""`python -m llama_cpp_eagle3`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
