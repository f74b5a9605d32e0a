"""Images and sounds in the messages of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .files import decode_base64
from .limits import N_BYTES_SUM_MAX, MediaError, too_large

_KINDS = ("image_url", "input_audio")


def take_media(
    messages: Sequence[Mapping[str, Any]], marker: str, load: Callable[[Any], bytes]
) -> tuple[list[Mapping[str, Any]], list[bytes]]:
    """Put a marker in place of each image and sound.

    Args:
        messages: in OpenAI's form: parts of type "image_url" and "input_audio". Others stay as they are.
        marker: the text that stands for a file in the prompt.
        load: returns the file for a URL, or for the value in its place.

    Returns:
        The messages, and the files in their order.

    Raises:
        MediaError: a part is invalid, or `load` raised it.
    """
    files: list[bytes] = []
    n_bytes = 0
    found: list[Mapping[str, Any]] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, (list, tuple)):
            found.append(message)
            continue
        parts = []
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind == "media_marker":
                raise MediaError("unsupported content[].type")
            if kind in _KINDS:
                files.append(load(_source(part, kind)))
                n_bytes += len(files[-1])
                if n_bytes > N_BYTES_SUM_MAX:
                    raise too_large("what all images and sounds are together", N_BYTES_SUM_MAX)
                part = {"type": "media_marker", "text": marker}
            parts.append(part)
        found.append({**message, "content": parts})
    return found, files


def _source(part: Mapping[str, Any], kind: str) -> Any:
    value = part.get(kind)
    if isinstance(value, Mapping):
        data = value.get("data") if kind == "input_audio" else None
        if isinstance(data, str) and not data.startswith("data:"):
            return decode_base64(data)
        value = value.get("url") if data is None else data
    if value is None or value == "":
        raise MediaError(f"expected '{kind}' to name a file: {{'url': ...}}")
    return value
