"""Turns conversations as agents' clients send them into the messages that llama.cpp's templates take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .blocks import LeftOut, Part, content_of, parts_of, string_of, text_of, text_part

Message = dict[str, Any]

_OTHER_THOUGHTS = ("reasoning", "thinking", "reasoning_details", "thinking_blocks")
"""Fields of messages in which other servers and gateways return a thought (vLLM, Ollama, OpenRouter, LiteLLM)."""
_USES = ("tool_use", "server_tool_use", "mcp_tool_use", "tool_call")
_THOUGHTS = ("thinking", "reasoning")
_SYSTEM = ("system", "developer")
_N_ERROR = 100  # characters of a tool's result in which it may say that it is an error
_BILLING = re.compile(
    r"\A\s*x-anthropic-billing-header:(?:[ \t]*\w+=[^;\r\n]*(?:;|(?=[\r\n])|\Z))*[ \t]*(?:\r?\n)?", re.I
)


def read_messages(messages: Any, left_out: LeftOut | None = None) -> Any:
    """Messages in OpenAI's older form: contents of texts and files, calls of functions, results of tools.

    A block that has text in another form becomes text; a block without text is left out. A message with blocks of
    tools' calls and results (Anthropic's) becomes several. A value that is no list of objects is returned unchanged,
    for `apply_request` to refuse.

    left_out: is told the types of blocks that are left out.

    Raises:
        ValueError: a required field has a wrong type, or nothing is left of the conversation.
    """
    if not isinstance(messages, list):
        return messages
    kinds: list[str] = []
    found: list[Any] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            found.append(message)
            continue
        if not isinstance(message.get("role", ""), str):
            raise ValueError(f"messages.{i}: expected 'role' to be a string, found {message['role']!r:.40}")
        try:
            found += _read(message, kinds)
        except ValueError as e:
            raise ValueError(f"messages.{i}: {e}") from None
    if kinds:
        if not any(_has_something(message) for message in found):
            names = ", ".join(map(repr, dict.fromkeys(kinds)))
            raise ValueError(f"nothing is left of the conversation, since it has no text: blocks of type {names}")
        if left_out is not None:
            left_out.tell(kinds)
    return found


def without_billing_line(text: str) -> str:
    """A system prompt without the line that Claude Code puts before it.

    That line differs by session and version, so no prefix could be reused, and it tells a model nothing.
    """
    return _BILLING.sub("", text, count=1)


def arguments_text(value: Any) -> str:
    """Arguments of a call as JSON: an object without entries if there are none; text stays as it is.

    Raises:
        ValueError: they are a number, or nested too deep.
    """
    if value is None:
        return "{}"
    if isinstance(value, str):
        return value if value.strip() else "{}"
    if not isinstance(value, (Mapping, list)):
        raise ValueError(f"expected a call's arguments to be an object, found {type(value).__name__}")
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise ValueError("a call's arguments are nested too deep") from None


def _read(given: Mapping[str, Any], left_out: list[str]) -> Iterator[Message]:
    message = {name: value for name, value in given.items() if value is not None or name == "content"}
    role = message.get("role")
    if role == "function":
        message = {"tool_call_id": message.get("name", ""), **message, "role": "tool"}
    _take_thoughts(message)
    if message.pop("images", None):  # Ollama's, beside the content
        left_out.append("images")
    calls = _calls(message)
    message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = calls
    if role == "assistant" and not calls and message.get("content") is None and len(given) > 1:
        message["content"] = text_of(next((message[name] for name in ("refusal", "audio") if name in message), ""))
    content = message.get("content")
    if isinstance(content, Mapping):
        content = [content]
    if isinstance(content, str) and role in _SYSTEM:
        text = without_billing_line(content)
        if text or not content:
            yield {**message, "content": text}
    elif not isinstance(content, list):
        yield message
    else:
        yield from _split({**message, "content": content}, left_out)


def _take_thoughts(message: Message) -> None:
    """Put a thought where templates look for it; gateways send one by several names."""
    others = [message.pop(name, None) for name in _OTHER_THOUGHTS]
    if message.get("role") == "assistant" and not message.get("reasoning_content"):
        text = next(filter(None, (_joined_thoughts(other) for other in others)), "")
        if text:
            message["reasoning_content"] = text


def _joined_thoughts(value: Any) -> str:
    """The text of a thought, or of the parts of one."""
    return "".join(map(text_of, value)) if isinstance(value, list) else text_of(value)


def _split(message: Message, left_out: list[str]) -> Iterator[Message]:
    """Split a message of blocks: a tool's results become messages of their own, in the same order."""
    role, blocks = message.get("role"), message.pop("content")
    given_calls, thought = message.pop("tool_calls", []), message.pop("reasoning_content", "")
    if not isinstance(thought, str):
        raise ValueError("expected 'reasoning_content' to be a string")
    thoughts = [thought]
    parts: list[Part] = []
    calls: list[Message] = []
    n_results = 0

    def finished() -> Iterator[Message]:
        thought = "".join(thoughts)
        if parts or calls or thought:
            more = {"tool_calls": calls, "reasoning_content": thought}
            content = content_of(parts, "\n") if role == "tool" else parts  # templates show no parts of a result
            yield {**message, "content": content or "", **{k: v for k, v in more.items() if v}}

    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if isinstance(kind, str) and kind.endswith("tool_result"):
            yield from finished()
            parts, calls, thoughts, n_results = [], [], [], n_results + 1
            yield {"role": "tool", "tool_call_id": string_of(block, "tool_use_id"), "content": _result(block, left_out)}
        elif kind in _USES:
            calls.append(_use(block))
        elif kind in _THOUGHTS and role == "assistant":
            thoughts.append(_thought(block, left_out))
        elif role in _SYSTEM:
            parts += _without_billing_line(parts_of(block, left_out))
        else:
            parts += parts_of(block, left_out)
    calls = [*given_calls, *calls]
    if not blocks or not (n_results or parts or calls or any(thoughts) or role == "assistant"):
        yield {**message, "content": "", **({"tool_calls": calls} if calls else {})}
    else:
        yield from finished()


def _without_billing_line(parts: list[Part]) -> Iterator[Part]:
    for part in parts:
        text = part.get("text")
        if not isinstance(text, str) or not text:
            yield part
        elif text := without_billing_line(text):
            yield {**part, "text": text}


def _thought(block: Mapping[str, Any], left_out: list[str]) -> str:
    text = text_of({name: value for name, value in block.items() if name not in ("id", "title")})
    if not text and (block.get("signature") or block.get("encrypted_content")):
        left_out.append(str(block["type"]))
    return text


def _use(block: Mapping[str, Any]) -> Message:
    arguments = arguments_text(next((block[key] for key in ("input", "args", "arguments") if key in block), None))
    function = {"name": string_of(block, "name"), "arguments": arguments}
    return {"id": string_of(block, "id"), "type": "function", "function": function}


def _result(block: Mapping[str, Any], left_out: list[str]) -> str | list[Part]:
    """What a tool returned. Templates have no place for `is_error`: a failure that does not say so gets "Error:"."""
    found = _returned(block, left_out)
    first = found if isinstance(found, str) else found[0].get("text", "")
    if block.get("is_error") is not True or "error" in first[:_N_ERROR].lower():
        return found
    return f"Error: {found}" if isinstance(found, str) else [text_part("Error:"), *found]


def _returned(block: Mapping[str, Any], left_out: list[str]) -> str | list[Part]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, (list, Mapping)):
        raise ValueError(f"expected 'content' of a tool's result to be a string or an array, found {content!r:.40}")
    blocks = content if isinstance(content, list) else [content]
    parts = [part for one in blocks for part in parts_of(one, left_out)]
    is_plain = all(isinstance(one, Mapping) and one.get("type") == "text" for one in blocks)
    return content_of(parts, "" if is_plain else "\n")


def _calls(message: Mapping[str, Any]) -> Any:
    """A message's calls of functions. The older form has one call without an id; newer ones have other types too."""
    calls, older = message.get("tool_calls"), message.get("function_call")
    if calls is None and isinstance(older, Mapping):
        calls = [{"id": older.get("name"), "function": older}]
    if not isinstance(calls, list):
        return calls
    return [_call(call) if isinstance(call, Mapping) else call for call in calls]


def _call(given: Mapping[str, Any]) -> Message:
    call = {name: value for name, value in given.items() if value is not None}
    kind = call.get("type", "function")
    function = next((call[name] for name in (kind, "function") if isinstance(call.get(name), Mapping)), None)
    if function is None:
        return {**call, "type": kind}
    arguments = function.get("arguments")
    if kind == "custom":  # its input is one text
        arguments = arguments_text({"input": function.get("input") or ""})
    elif arguments is None or isinstance(arguments, str):
        arguments = arguments_text(arguments)
    call.pop("custom", None)
    name = {"name": function["name"]} if "name" in function else {}
    return {**call, "type": "function", "function": {**name, "arguments": arguments}}


def _has_something(message: Any) -> bool:
    if not isinstance(message, Mapping) or message.get("role") in _SYSTEM:
        return False
    return any(message.get(name) for name in ("content", "tool_calls", "reasoning_content"))
