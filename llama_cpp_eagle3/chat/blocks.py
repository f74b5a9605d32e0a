"""Turns blocks of messages, in OpenAI's and Anthropic's forms, into the parts that templates know: texts and files."""

from __future__ import annotations

import base64
import binascii
import logging
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

_log = logging.getLogger(__name__)

_TEXTS = {
    **dict.fromkeys(("text", "input_text", "output_text", "reasoning_text", "summary_text"), "text"),
    "refusal": "refusal",
}
"""Type -> the field with the text."""
_IMAGES = ("image", "image_url", "input_image", "computer_screenshot")
_DOCUMENTS = ("document", "file", "input_file")
_AS_THEY_ARE = ("input_audio", "input_video", "video_url", "media_marker")
_TEXT_KEYS = (
    *("title", "source", "url", "tool_name", "query", "queries", "text", "refusal", "thinking", "reasoning"),
    *("summary", "content", "output", "outputs", "results", "tool_references", "logs", "stdout", "stderr"),
    *("transcript", "error", "error_code", "message"),
)
"""Fields with texts of blocks that have no form of their own here, in the order in which they are read."""
_DEPTH_MAX = 8
_N_TOLD_MAX = 100

Part = dict[str, Any]


class LeftOut:
    """What requests had and was left out: the log names each once. From any thread."""

    def __init__(self, text: str = "a conversation has blocks without text, which are left out (said once): type %s"):
        """text: of the warning, with %s for the names."""
        self._text = text
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, kinds: list[str]) -> None:
        """Log those that have not been told yet, in one warning."""
        with self._lock:
            new = [kind for kind in dict.fromkeys(kind[:60] for kind in kinds) if kind not in self._told]
            new = new[: _N_TOLD_MAX - len(self._told)]  # clients choose the names
            self._told.update(new)
        if new:
            _log.warning(self._text, ", ".join(map(repr, new)))


def text_part(text: str) -> Part:
    """OpenAI's form of a text."""
    return {"type": "text", "text": text}


def parts_of(block: Any, left_out: list[str]) -> list[Part]:
    """Parts of type "text" and "image_url", and those with sounds and videos as they are.

    left_out: gets the type of a block that has neither text nor file.

    Raises:
        ValueError: it is no block, or a required field has a wrong type.
    """
    if isinstance(block, str):
        return [text_part(block)]
    if not isinstance(block, Mapping):
        raise ValueError(f"expected a block of a message to be an object, found {type(block).__name__}")
    kind = block.get("type", "text" if "text" in block else None)
    if not isinstance(kind, str):
        raise ValueError("expected a block of a message to have a 'type'")
    if kind in _TEXTS:
        return [text_part(string_of(block, _TEXTS[kind]))]
    if kind in _IMAGES:
        return [_image(block, kind)]
    if kind in _AS_THEY_ARE:
        return [dict(block)]
    parts = _document(block, left_out) if kind in _DOCUMENTS else _if_any(text_of(block))
    if not parts:
        left_out.append(kind)
    return parts


def text_of(value: Any, depth: int = 0) -> str:
    """The text of a block of any kind: its fields with texts, as lines."""
    if isinstance(value, str):
        return value
    if depth < _DEPTH_MAX and isinstance(value, list):
        return "\n".join(filter(None, (text_of(item, depth + 1) for item in value)))
    if depth < _DEPTH_MAX and isinstance(value, Mapping) and value.get("type") not in _IMAGES:
        return "\n".join(filter(None, (text_of(value.get(key), depth + 1) for key in _TEXT_KEYS)))
    return ""


def content_of(parts: list[Part], separator: str = "") -> str | list[Part]:
    """Joins parts that are all texts into one text, since few templates take anything else of tools or instructions."""
    if all(part["type"] == "text" for part in parts):
        return separator.join(part["text"] for part in parts)
    return parts


def _if_any(text: str) -> list[Part]:
    return [text_part(text)] if text else []


def string_of(block: Mapping[str, Any], name: str) -> str:
    """A required field of a block; ValueError if it is no string."""
    value = block.get(name)
    if not isinstance(value, str):
        raise ValueError(f"expected '{name}' of a block of type {block.get('type')!r} to be a string")
    return value


def _image(block: Mapping[str, Any], kind: str) -> Part:
    """An image as {"image_url": {"url": ...}}, without a URL if it has no address or file."""
    source = block.get("source")
    if isinstance(source, Mapping):  # Anthropic's
        if source.get("type") == "base64":
            media_type = source.get("media_type") or "image/jpeg"
            url: Any = f"data:{media_type};base64,{string_of(source, 'data')}"
        elif source.get("type") == "url":
            url = string_of(source, "url")
        else:
            raise ValueError(f"expected an image's source of type 'base64' or 'url', found {source.get('type')!r}")
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "image" and isinstance(block.get("data"), str):  # MCP's
        media_type = block.get("mimeType") or block.get("mime_type") or "image/jpeg"
        return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{block['data']}"}}
    if kind == "image_url":
        return {"type": kind, "image_url": block.get("image_url")}
    url = block.get("image_url" if "image_url" in block else "image")
    if url is None and "file_id" in block:
        raise ValueError("an image by 'file_id' is not supported, since no files are kept: send a data URL")
    return {"type": "image_url", "image_url": url if isinstance(url, Mapping) else {"url": url}}


def _document(block: Mapping[str, Any], left_out: list[str]) -> list[Part]:
    """The text of a document that is text; its title and context come first."""
    source = block.get("source")
    inner = block.get("file")
    file: Mapping[str, Any] = inner if isinstance(inner, Mapping) else block
    title = block.get("title") or file.get("filename")
    parts: list[Part] = []
    if isinstance(source, Mapping):
        content, data = source.get("content"), source.get("data")
        if source.get("type") == "text" and isinstance(data, str):
            parts = _if_any(data)
        elif source.get("type") == "base64" and str(source.get("media_type")).startswith("text/"):
            parts = _if_any(_decoded(data))
        elif content is not None:
            blocks = content if isinstance(content, list) else [content]
            parts = [part for one in blocks for part in parts_of(one, left_out)]
    elif isinstance(file.get("file_data"), str) and file["file_data"].startswith("data:text/"):
        head, _, data = file["file_data"].partition(",")
        text = _decoded(data) if head.endswith(";base64") else unquote_to_bytes(data).decode(errors="replace")
        parts = _if_any(text)
    else:
        parts = _if_any(text_of({"text": block.get("text"), "content": block.get("content")}))
    heads = [text for text in (title, block.get("context")) if isinstance(text, str) and text]
    return [*map(text_part, heads), *parts] if parts else []


def _decoded(data: Any) -> str:
    try:
        return base64.b64decode(data).decode(errors="replace") if isinstance(data, str) else ""
    except (binascii.Error, ValueError):
        return ""
