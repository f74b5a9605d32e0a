"""Turn Hugging Face EAGLE-3 heads into GGUF files, and describe heads."""

from .api import Conversion, convert
from .draft_vocab import count_tokens
from .quantize_file import quantize
from .report import Report, inspect

__all__ = ["Conversion", "Report", "convert", "count_tokens", "inspect", "quantize"]
