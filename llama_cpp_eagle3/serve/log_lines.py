"""Log lines: for people, or one JSON object each."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

ACCESS = logging.getLogger("llama_cpp_eagle3.serve.access")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)  # ASCII: control characters beyond it reach terminals too


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        text = _printable(super().format(record), keep="\n")
        fields = getattr(record, "fields", {})
        return text + "".join(f" {name}={_word(value)}" for name, value in fields.items() if value not in ("", None))

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _printable(super().formatMessage(record))


def _printable(text: str, keep: str = "") -> str:
    """Escape control characters: text of clients must not forge lines or move a terminal's cursor."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def _word(value: Any) -> str:
    """Return a field's value as text, in quotes if it could be taken for several."""
    text = _printable(str(value))
    return json.dumps(text) if " " in text else text


def configure(log_format: str, verbose: bool) -> None:
    """Send the server's messages to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logger = logging.getLogger("llama_cpp_eagle3.serve")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
