"""Reads conversations from files, in the shapes that are in common use."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_cpp_eagle3.errors import Eagle3Error
from llama_cpp_eagle3.files.text_lines import read_lines

_OF_TEMPLATES = ("tools", "tool_choice", "chat_template_kwargs", "reasoning_effort")
"""Fields of a request that change its prompt."""

_LISTS = ("messages", "conversations", "conversation", "turns", "prompt", "chosen")
"""Fields with the turns of a conversation: OpenAI's, ShareGPT's, MT-bench's, TRL's."""

_QUESTIONS = ("prompt", "question", "instruction", "query", "problem")
"""Fields with a question: TRL's and OpenAI's, question and answer, Alpaca's, MetaMath's, problems with solutions."""

_BESIDE = ("input", "context")
"""Fields with the text that a question is about: Alpaca's, Dolly's and SQuAD's."""

_SYSTEM = ("system", "system_prompt")

_ROLES = {
    "human": "user", "user": "user", "prompter": "user",
    "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "assistant": "assistant",
    "model": "assistant", "function_call": "assistant",
    "system": "system", "developer": "developer",
    "tool": "tool", "function": "tool", "observation": "tool",
}  # fmt: skip
"""Names of roles in ShareGPT's and other files -> OpenAI's."""

SHAPES = (
    "messages, conversations (from and value, or role and content), turns, prompt, question, instruction with input, "
    "query, text, or body with one of these"
)


def read_prompts(path: Path, left_out: list[str] | None = None) -> Iterator[dict[str, Any] | str]:
    """Conversations as requests have them, or texts to go on from as they are, from a file.

    Plain text has a question in each line. JSON Lines, an array in a JSON file (also as the only field of an object),
    CSV, TSV and Parquet have records of one of these shapes: see `SHAPES`; "body" is a request of OpenAI's batch
    format, "text" is gone on from without the chat template. The assistant's turn at the end is dropped, answers are
    not read.

    Args:
        path: the file.
        left_out: gets the reason for each conversation that is left out, as it has no user's turn.

    Raises:
        ValueError: a record has none of these shapes; the message names it, and what was found.
        Eagle3Error: Parquet is not read without pyarrow.
    """
    left_out = [] if left_out is None else left_out
    for where, record in _records(path):
        try:
            yield _parse(record)
        except _NoQuestion as e:
            left_out.append(f"'{path}', {where}: {e}")
        except ValueError as e:
            raise ValueError(f"'{path}', {where}: {e}") from None


class _NoQuestion(ValueError):
    """A conversation in which no user says anything."""


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """(where it is, record)."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    lines = read_lines(path)
    if path.suffix in (".csv", ".tsv"):
        mark = "\t" if path.suffix == ".tsv" else ","
        for number, row in enumerate(csv.DictReader(io.StringIO("\n".join(lines), newline=""), delimiter=mark), 1):
            yield f"record {number}", {name: value for name, value in row.items() if name and value}
        return
    written = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    is_json = path.suffix in (".jsonl", ".json", ".ndjson")
    first = written[0][1] if written else ""
    if is_json or first.lstrip().startswith(("{", "[")):
        whole = _whole("\n".join(lines)) if len(written) == 1 or not _is_json(first) else None
        if whole is not None:
            yield from ((f"record {number}", record) for number, record in enumerate(whole, 1))
            return
        if is_json or _is_json(first):
            for number, line in written:
                yield f"line {number}", _Unread(line)
            return
    for number, line in written:
        yield f"line {number}", line


class _Unread(str):
    """A line of JSON Lines, which is read where its errors get its number."""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _whole(text: str) -> list[Any] | None:
    """The records of a file that is one JSON value; None = it is not."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if isinstance(value, list) and not _are_turns(value):
        return value
    if isinstance(value, dict) and len(value) == 1:
        (only,) = value.values()
        if isinstance(only, list) and all(isinstance(record, dict) for record in only) and not _are_turns(only):
            return only  # {"data": [...]}
    return [value]


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise Eagle3Error(
            f"'{path}' is a Parquet file, which needs pyarrow: pip install pyarrow, or write it as JSON Lines"
        ) from None
    number = 0
    with ParquetFile(path) as file:
        for batch in file.iter_batches():
            for record in batch.to_pylist():
                number += 1
                yield f"record {number}", _without_null(record)


def _without_null(value: Any) -> Any:
    """A record without its nulls: tables have a null where JSON has no field."""
    if isinstance(value, dict):
        return {name: _without_null(field) for name, field in value.items() if field is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


def _question(text: str, record: Mapping[str, Any] | None = None) -> dict[str, Any]:
    if not text.strip():
        raise _NoQuestion("its question is empty")
    system = _text(record or {}, _SYSTEM)
    before = [{"role": "system", "content": system}] if system else []
    return {"messages": [*before, {"role": "user", "content": text}]}


def _text(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of these fields that is a text and not empty."""
    return next((record[name] for name in names if isinstance(record.get(name), str) and record[name].strip()), "")


def _parse(value: Any) -> dict[str, Any] | str:
    if isinstance(value, _Unread):
        value = json.loads(value)
    if isinstance(value, str):
        return _question(value)
    if isinstance(value, list) and _are_turns(value):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise ValueError(f"expected an object or a text, found {_shape(value)}")
    if isinstance(value.get("body"), dict):
        value = value["body"]
    for name in _LISTS:
        turns = value.get(name)
        if isinstance(turns, list) and _are_turns(turns):
            return _conversation(turns, value)
        if isinstance(turns, list) and turns and isinstance(turns[0], str):
            return _question(turns[0], value)
        if isinstance(turns, list) and not turns:
            raise _NoQuestion(f"its {name} are empty")
    for name in _QUESTIONS:
        if isinstance(value.get(name), str):
            about = _text(value, _BESIDE)
            return _question(f"{value[name]}\n\n{about}" if about else value[name], value)
    if isinstance(value.get("text"), str):
        return str(value["text"])
    raise ValueError(f"expected {SHAPES}; found {_shape(value)}")


def _are_turns(value: Sequence[Any]) -> bool:
    """Whether it is a conversation's turns."""
    return bool(value) and all(isinstance(turn, dict) and ("role" in turn or "from" in turn) for turn in value)


def _conversation(turns: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> dict[str, Any]:
    messages = [_message(turn) for turn in turns]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not any(message["role"] == "user" for message in messages):
        raise _NoQuestion("it has no user's turn")
    system = _text(record, _SYSTEM)
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    more = {name: record[name] for name in _OF_TEMPLATES if record.get(name)}
    if isinstance(more.get("tools"), str):
        more["tools"] = json.loads(more["tools"])
    return {**more, "messages": messages}


def _message(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn as a message in OpenAI's form."""
    speaker = str(turn["role"] if "role" in turn else turn["from"])
    role = _ROLES.get(speaker.lower())
    if role is None:
        raise ValueError(f"expected a turn of one of {', '.join(_ROLES)}; found {speaker!r}")
    message = {name: value for name, value in turn.items() if name not in ("role", "from", "value")}
    if "content" not in message and "value" in turn:
        message["content"] = turn["value"]
    return {"role": role, **message}


def _shape(value: Any) -> str:
    """A description of a value's shape, for an error."""
    if isinstance(value, dict):
        fields = [f"{name} ({_kind(field)})" for name, field in list(value.items())[:12]]
        return "an object with " + (", ".join(fields) + (", ..." if len(value) > 12 else "") if fields else "no fields")
    return _kind(value)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        inner = f" of {_shape(value[0])}" if value and isinstance(value[0], dict) else ""
        return f"an array of {len(value)}" if not inner else f"an array{inner}"
    return {dict: "an object", str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")
