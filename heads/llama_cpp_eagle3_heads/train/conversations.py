"""Reads conversations from files, in the shapes that are in common use."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from llama_cpp_eagle3.errors import Eagle3Error
from llama_cpp_eagle3.files.text_file import iter_lines, whole_characters

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
    "ai": "assistant", "bot": "assistant", "model": "assistant", "function_call": "assistant", "tool_call": "assistant",
    "system": "system", "developer": "developer",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool", "environment": "tool",
    "tool_response": "tool", "function_response": "tool",
}  # fmt: skip
"""Names of roles in ShareGPT's and other files, with - as _ -> OpenAI's."""

_N_FIELD_MAX = 2**31 - 1
"""Characters of a table's field, at most."""

_BYTES = re.compile("[\udc80-\udcff]")
"""Bytes that are no UTF-8, as `iter_lines` has them."""
_BYTES_OF_LINES = re.compile("[\0\udc80-\udcff]")
"""The same and NUL, of which a file of UTF-16 without its mark is full; texts of JSON may have it."""
_PACKED = re.compile(r"\.(gz|bz2|xz)$")

SHAPES = (
    "messages, conversations (from and value, or role and content), turns, prompt, question, instruction with input, "
    "query, text, or body with one of these"
)


def read_prompts(path: Path, left_out: list[str] | None = None) -> Iterator[dict[str, Any] | str]:
    """Conversations as requests have them, or texts to go on from as they are, from a file.

    Plain text has a question in each line. JSON Lines, an array in a JSON file (also as the only field of an object),
    CSV, TSV and Parquet have records of one of these shapes: see `SHAPES`; "body" is a request of OpenAI's batch
    format, "text" is gone on from without the chat template. The assistant's turn at the end is dropped, answers are
    not read. All but Parquet may be packed (gzip, bzip2, xz).

    Args:
        path: the file.
        left_out: gets the reason for each record that is left out, or of which a part is.

    Raises:
        OSError, ValueError: the file cannot be read.
        Eagle3Error: Parquet is not read without pyarrow.
    """
    left_out = [] if left_out is None else left_out
    for where, record in _records(path):
        notes: list[str] = []
        try:
            yield _parse(record, notes)
        except (ValueError, RecursionError) as e:
            notes = [str(e)]
        left_out += [f"'{path}', {where}: {note}" for note in notes]


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """(where it is, record)."""
    suffix = Path(_PACKED.sub("", path.name.lower())).suffix
    if suffix == ".parquet":
        yield from _parquet(path)
        return
    lines = ((number, line) for number, line in enumerate(iter_lines(path), 1) if line.strip())
    if suffix in (".csv", ".tsv"):
        yield from _table(suffix, iter_lines(path))
        return
    first = list(islice(lines, 2))
    is_json = suffix in (".jsonl", ".json", ".ndjson")
    if first and (is_json or first[0][1].lstrip().startswith(("{", "["))):
        is_line = _is_json(first[0][1])
        if len(first) == 1 or not is_line:
            first += lines
            whole = _whole("\n".join(line for _, line in first))
            if whole is not None:
                yield from ((f"record {number}", record) for number, record in enumerate(whole, 1))
                return
        is_json = is_json or is_line
    for number, line in chain(first, lines):
        yield f"line {number}", _Unread(line) if is_json else line


class _Unread(str):
    """A line of JSON Lines, which is read where its errors get its number."""


def _table(suffix: str, lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    r"""Records of a table, of which the first line names the columns. Excel for Macs ends lines by \r alone."""
    lines = (part for line in lines for part in line.split("\r"))
    head = next((line for line in lines if line.strip()), "")
    mark = "\t" if suffix == ".tsv" else max(",;\t", key=head.count)
    csv.field_size_limit(_N_FIELD_MAX)
    is_at_end = False

    def feed() -> Iterator[str]:
        nonlocal is_at_end
        yield from (f"{line}\n" for line in chain([head], lines))
        is_at_end = True  # the reader asks for more only within a record

    reader = csv.DictReader(feed(), delimiter=mark)
    reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
    for number, row in enumerate(reader, 1):
        fields = {name: value for name, value in row.items() if name and value}
        yield (
            f"record {number}",
            ValueError("a quote in it is not closed: it takes all lines after it") if is_at_end else fields,
        )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _whole(text: str) -> list[Any] | None:
    """The records of a file that is one JSON value; None = it is not."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
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


def _without_halves(value: Any) -> Any:
    """A record with a mark for each half surrogate, as of an emoji that JavaScript has cut: no tokenizer takes one."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(field) for name, field in value.items()}
    return [_without_halves(item) for item in value] if isinstance(value, list) else value


def _texts(value: Any) -> Iterator[str]:
    """All texts of a record."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(item)


def _question(text: str, record: Mapping[str, Any] | None = None) -> dict[str, Any]:
    if not text.strip():
        raise ValueError("its question is empty")
    system = _text(record or {}, _SYSTEM)
    before = [{"role": "system", "content": system}] if system else []
    return {"messages": [*before, {"role": "user", "content": text}]}


def _text(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of these fields that is a text and not empty."""
    return next((record[name] for name in names if isinstance(record.get(name), str) and record[name].strip()), "")


def _parse(value: Any, notes: list[str]) -> dict[str, Any] | str:
    """A record's prompt. notes: gets what of it is left out."""
    if isinstance(value, ValueError):
        raise value
    fields = value.values() if isinstance(value, dict) else (value,)
    found = next(filter(None, map(_BYTES_OF_LINES.search, (text for text in fields if isinstance(text, str)))), None)
    found = found or next(filter(None, map(_BYTES.search, _texts(value))), None)
    if found is not None:
        raise ValueError(f"expected text in UTF-8, found the byte {ord(found[0]) % 0xDC00:#x}")
    if isinstance(value, _Unread):
        value = json.loads(value)
    value = _without_halves(value)
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
            return _conversation(turns, value, notes)
        if isinstance(turns, list) and turns and isinstance(turns[0], str):
            return _question(turns[0], value)
        if isinstance(turns, list) and not turns:
            raise ValueError(f"its {name} are empty")
    for name in _QUESTIONS:
        if isinstance(value.get(name), str):
            about = _text(value, _BESIDE)
            return _question(f"{value[name]}\n\n{about}" if about else value[name], value)
    if isinstance(value.get("text"), str):
        if not value["text"]:
            raise ValueError("its text is empty")
        return str(value["text"])
    raise ValueError(f"expected {SHAPES}; found {_shape(value)}")


def _are_turns(value: Sequence[Any]) -> bool:
    """Whether it is a conversation's turns."""
    return bool(value) and all(isinstance(turn, dict) and ("role" in turn or "from" in turn) for turn in value)


def _conversation(turns: Sequence[Mapping[str, Any]], record: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        message = _message(turn)
        if message is not None:
            messages.append(message)
            continue
        notes.append(f"expected turns of {', '.join(_ROLES)}; found {_speaker(turn)!r}")
        if any(known["role"] == "user" for known in messages):
            break  # what follows may answer it
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not any(message["role"] == "user" for message in messages):
        raise ValueError("; ".join(["it has no user's turn", *notes]))
    system = _text(record, _SYSTEM)
    more = {name: record[name] for name in _OF_TEMPLATES if record.get(name)}
    if isinstance(more.get("tools"), str):
        if _is_json(more["tools"]):
            more["tools"] = json.loads(more["tools"])
        else:
            notes.append(f"its tools are left out, as they are no JSON: {more.pop('tools')[:40]!r}")
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return {**more, "messages": messages}


def _speaker(turn: Mapping[str, Any]) -> str:
    return str(turn["role"] if "role" in turn else turn["from"])


def _message(turn: Mapping[str, Any]) -> dict[str, Any] | None:
    """A turn as a message in OpenAI's form; None: its role is not known."""
    role = _ROLES.get(_speaker(turn).lower().replace("-", "_"))
    if role is None:
        return None
    message = {name: value for name, value in turn.items() if name not in ("role", "from", "value")}
    if "content" not in message and "value" in turn:
        message["content"] = turn["value"]
    if not isinstance(message.get("content"), (str, list, type(None))):
        raise ValueError(f"expected a text as a turn's content, found {_shape(message['content'])}")
    if isinstance(message.get("tool_calls"), str):
        message["tool_calls"] = json.loads(message["tool_calls"])
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
