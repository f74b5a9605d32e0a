"""Images and sounds: from a file or a message to rows of embeddings, with llama.cpp's libmtmd."""

from .fetch_url import TIMEOUT_S
from .files import load_base64_or_url, read_media
from .handlers import hook_handler
from .limits import MediaError
from .messages import take_media
from .placeholders import find_placeholder
from .projector import Projector, Prompt, open_projector

__all__ = [
    "TIMEOUT_S", "MediaError", "Projector", "Prompt", "find_placeholder", "hook_handler", "load_base64_or_url",
    "open_projector", "read_media", "take_media",
]  # fmt: skip
