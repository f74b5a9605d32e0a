"""Turn Hugging Face EAGLE-3 heads into GGUF files, and describe heads. Needs the extra `convert`."""

try:
    import gguf  # noqa: F401
    import tqdm  # noqa: F401
except ModuleNotFoundError as e:
    from ..extras import install_command

    raise ImportError(f"{e.name} is missing: {install_command('convert')}", name=e.name) from e

from .api import Conversion, convert
from .draft_vocab import count_tokens
from .quantize_file import quantize
from .report import Report, inspect

__all__ = ["Conversion", "Report", "convert", "count_tokens", "inspect", "quantize"]
