"""Log lines: for people, or one JSON object each."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from ..log import TextLines, printable

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


class _Text(TextLines):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        values = "".join(f" {name}={_word(value)}" for name, value in fields.items() if value not in ("", None))
        return super().format(record) + values


def _word(value: Any) -> str:
    """Return a field's value as text, in quotes if it could be taken for several."""
    text = printable(str(value))
    return json.dumps(text) if " " in text else text


def configure(log_format: str, verbose: bool) -> None:
    """Send the messages of the server, and of all else that it uses, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logger = logging.getLogger("llama_cpp_eagle3")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
