"""Files of requests and of their results."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files.text_file import read_lines
from ..files.whole_file import whole_file

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A line of the input."""

    custom_id: str
    url: str
    body: dict[str, Any]
    category: str = ""
    turns: list[str] = field(default_factory=list)
    """The user's messages of a conversation, in order; empty: the body has all messages."""


@dataclass(slots=True)
class Total:
    """Counts the results of requests."""

    n: int = 0
    n_errors: int = 0
    n_tokens: int = 0
    n_steps: int = 0
    n_accepted: int = 0

    def add(self, bodies: list[dict[str, Any]]) -> None:
        """Count answers."""
        for body in bodies:
            figures = body["metrics"]["speculative_decoding"]
            self.n_tokens += body["usage"]["completion_tokens"]
            self.n_steps += figures["num_steps"]
            self.n_accepted += figures["num_accepted_draft_tokens"]

    @property
    def mean_acceptance_length(self) -> float:
        """Mean acceptance length over all steps."""
        return 1.0 + self.n_accepted / self.n_steps if self.n_steps else 1.0


def read_requests(path: Path) -> list[BatchRequest]:
    """The requests of a file: OpenAI's batch format, prompts, mt-bench's questions, or lines of text.

    Raises:
        ValueError: a line is none of these, or an id comes twice.
    """
    found: list[BatchRequest] = []
    is_json = path.suffix in (".jsonl", ".json", ".ndjson")
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            if not is_json and _is_request(line):
                raise ValueError(
                    "expected a prompt, found a request in JSON: give the file a name that ends with .jsonl"
                )
            found.append(_request(json.loads(line) if is_json else line, number))
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise ValueError(f"'{path}', line {number}: {e}") from None
    ((most, n),) = Counter(request.custom_id for request in found).most_common(1) or [("", 0)]
    if n > 1:
        raise ValueError(f"'{path}': the id {most!r} comes {'twice' if n == 2 else f'{n} times'}")
    return found


def _is_request(line: str) -> bool:
    """Whether a line of text is an object of OpenAI's batch format."""
    if not line.lstrip().startswith("{"):
        return False
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "body" in value and "url" in value


def _request(value: Any, number: int) -> BatchRequest:
    if isinstance(value, str):
        return BatchRequest(f"line-{number}", COMPLETION, {"prompt": value})
    if not isinstance(value, dict):
        raise ValueError(f"expected an object or a text, found {type(value).__name__}")
    category = str(value.get("category", ""))
    if "turns" in value:
        turns = value["turns"]
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
            raise ValueError(f"turns: expected a list of texts, found {str(turns)[:40]}")
        return BatchRequest(str(value.get("question_id", f"line-{number}")), CHAT, {}, category, turns)
    custom_id = str(value.get("custom_id", f"line-{number}"))
    if "body" in value:
        if value.get("url") not in (CHAT, COMPLETION) or not isinstance(value["body"], dict):
            raise ValueError(f"expected a body and as url {CHAT} or {COMPLETION}, found {value.get('url')!r}")
        return BatchRequest(custom_id, value["url"], value["body"], category)
    if "prompt" in value:
        return BatchRequest(custom_id, COMPLETION, {k: v for k, v in value.items() if k != "custom_id"}, category)
    raise ValueError(f"expected one of body, prompt and turns, found {', '.join(map(str, value))[:40] or 'nothing'}")


_BEGIN = b'{"id":"batch_req_'
"""How each line of an output begins."""


def read_done(path: Path, retry_errors: bool) -> tuple[set[str], list[dict[str, Any]]]:
    """(ids, lines) of the results in an output. Removes from it what must be done again: a last line that was cut off,
    and errors if they are retried.

    Raises:
        ValueError: it has lines that are no results of a batch; the file is not changed.
    """
    if not path.exists():
        return set(), []
    *whole, last = path.read_bytes().split(b"\n")
    lines = [(text, _read_result(path, number, text)) for number, text in enumerate(whole, 1) if text.strip()]
    if last.strip():
        try:
            lines.append((last, _read_result(path, len(whole) + 1, last)))
        except ValueError:
            if not (last.startswith(_BEGIN) or _BEGIN.startswith(last)):
                raise
            print(f"'{path}': the last line was cut off, its request is done again", file=sys.stderr)
    kept = [(text, line) for text, line in lines if not (retry_errors and line["error"] is not None)]
    if last or len(kept) < len(lines):
        with whole_file(path) as part:
            part.write_bytes(b"".join(text + b"\n" for text, _ in kept))
    return {line["custom_id"] for _, line in kept}, [line for _, line in kept]


def _read_result(path: Path, number: int, text: bytes) -> dict[str, Any]:
    """A line of an output."""
    try:
        line = json.loads(text)
        if not isinstance(line["custom_id"], str):
            raise TypeError
        count_result(Total(), line)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"'{path}', line {number}: expected a result of this command, found {text[:60]!r}. Results are added to "
            "what the output has: give it another name, or move that file away."
        ) from None
    return dict(line)


def count_result(total: Total, line: dict[str, Any]) -> None:
    """Count a line of an output."""
    total.n += 1
    if line["error"] is not None:
        total.n_errors += 1
    else:
        total.add(line.get("turns") or [line["response"]["body"]])
