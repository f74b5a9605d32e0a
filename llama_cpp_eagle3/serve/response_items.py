"""Translate items of /v1/responses, which clients send again with each turn, to messages of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..chat import LeftOut, arguments_text, text_of
from .api_errors import invalid

_ROLES = ("user", "system", "developer", "assistant")
_ARGUMENTS = ("arguments", "action", "operation", "code", "queries", "query", "prompt", "revised_prompt")
"""Fields of hosted tools' calls that hold their arguments."""
_RESULTS = ("output", "outputs", "results", "error")


def messages_of(
    items: Any, instructions: Any, name_of: Callable[[Mapping[str, Any]], str], left_out: LeftOut | None = None
) -> list[dict[str, Any]]:
    """Messages of a request's input.

    Calls of hosted and custom tools become calls of functions, and their outputs results; other items with text become
    messages. Items without text are left out, and their types logged. Contents keep their blocks, for `read_messages`.

    Args:
        items: The request's `input`.
        instructions: The request's `instructions`.
        name_of: Returns the name that the model knows a called tool by.
        left_out: Logs the types of items that are left out.

    Raises:
        ApiError: the input has another type, an item lacks a required field, or no item has text.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        if not isinstance(instructions, (str, list)):
            raise invalid(f"Field 'instructions': expected a text or an array, found {instructions!r:.40}")
        messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise invalid("'input' must be a string or array of objects")
    n, kinds = len(messages), list[str]()
    for i, item in enumerate(items):
        try:
            kind = _add_item(messages, item, name_of)
        except (ValueError, RecursionError) as e:
            raise invalid(f"input.{i}: {e or 'it is nested too deep'}") from None
        kinds += [kind] if kind else []
    for message in messages:
        if "reasoning_content" in message:
            message["reasoning_content"] = "\n\n".join(message["reasoning_content"])
    if kinds and len(messages) == n:
        raise invalid(f"nothing is left of 'input', since it has no text: items of type {', '.join(map(repr, kinds))}")
    if kinds and left_out is not None:
        left_out.tell(kinds)
    return messages


def _add_item(
    messages: list[dict[str, Any]], item: Mapping[str, Any], name_of: Callable[[Mapping[str, Any]], str]
) -> str:
    """Add an item as a message, or to the last message; returns the item's type if it is left out, else ""."""
    kind, role = item.get("type", "message" if "role" in item else None), item.get("role")
    if not isinstance(kind, str):
        raise ValueError("expected an item to have a 'type'")
    if kind == "message":
        if role not in _ROLES:
            raise ValueError(f"expected 'role' of a message to be one of {', '.join(_ROLES)}, found {role!r}")
        content = _content(item.get("content"))
        if role == "assistant":
            _assistant(messages)["content"] += content
        else:
            messages.append({"role": role, "content": content})
    elif kind == "reasoning":
        text = _thought(item)
        if not text:
            return kind if item.get("encrypted_content") else ""
        _assistant(messages).setdefault("reasoning_content", []).append(text)
    elif kind in ("function_call", "custom_tool_call") or (kind.endswith("_call") and "name" in item):
        arguments = item.get("arguments")
        if kind == "custom_tool_call":  # a custom tool takes one text instead of arguments
            arguments = {"input": item.get("input") or ""}
        id = "id" if item.get("call_id") is None else "call_id"
        _string(item, "name")
        _add_call(messages, _string(item, id), name_of(item), arguments)
        _add_results(messages, item)
    elif kind.endswith("_output") and "output" in item:
        messages.append({"role": "tool", "tool_call_id": _call_id(item), "content": _output(item["output"])})
    elif kind.endswith("_call"):
        arguments = {name: item[name] for name in _ARGUMENTS if item.get(name)}
        if not arguments and not any(item.get(name) for name in _RESULTS):
            return kind
        if len(arguments) == 1 and isinstance(only := next(iter(arguments.values())), Mapping):
            arguments = only
        _add_call(messages, _call_id(item), kind.removesuffix("_call"), arguments)
        _add_results(messages, item)
    else:
        text = text_of({name: value for name, value in item.items() if name != "output"}) or text_of(item.get("output"))
        if not text:
            return kind
        messages.append({"role": role if role in _ROLES else "user", "content": [{"type": "input_text", "text": text}]})
    return ""


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last message if it is the assistant's, else a new one: the assistant's items are parts of it."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": []})
    return messages[-1]


def _add_call(messages: list[dict[str, Any]], id: str, name: str, arguments: Any) -> None:
    function = {"name": name, "arguments": arguments_text(arguments)}
    calls = _assistant(messages).setdefault("tool_calls", [])
    calls.append({"id": id, "type": "function", "function": function})


def _add_results(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add the results of a tool that the host ran: its call holds them too."""
    text = text_of([item.get(name) for name in _RESULTS])
    if text:
        messages.append({"role": "tool", "tool_call_id": _call_id(item), "content": text})


def _call_id(item: Mapping[str, Any]) -> str:
    return next((item[name] for name in ("call_id", "id") if isinstance(item.get(name), str)), "")


def _string(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ValueError(f"expected '{name}' of an item of type {item.get('type')!r} to be a string")
    return value


def _content(content: Any) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("expected 'content' to be a string or an array")
    return content


def _output(output: Any) -> Any:
    """A tool's output: text, or blocks."""
    if output is None or isinstance(output, str):
        return output or ""
    if isinstance(output, Mapping):
        output = [output]
    if not isinstance(output, list):
        raise ValueError("expected 'output' to be a string or an array")
    return [
        block
        if isinstance(block, Mapping) and "type" in block
        else {"type": "input_text", "text": text_of(block) or arguments_text(block)}
        for block in output
    ]


def _thought(item: Mapping[str, Any]) -> str:
    """What was thought; its summary if there is nothing else."""
    content = item.get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise ValueError("expected 'content' of a reasoning item to be an array")
    text = content if isinstance(content, str) else "".join(text_of(part) for part in content or ())
    return text or text_of(item.get("summary"))
