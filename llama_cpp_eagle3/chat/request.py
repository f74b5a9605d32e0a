"""A whole request to /v1/chat/completions, as far as it concerns the conversation: llama-server's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .constraints import constraint_of
from .fit import apply_fitting
from .schema import SchemaError
from .schema.gbnf import Rules, through
from .templates import ChatParams, ChatTemplates

_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_video": "video",
    "video_url": "video",
}


def apply_request(
    templates: ChatTemplates,
    body: Mapping[str, Any],
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    enable_thinking: bool | None = None,
    reasoning_format: str = "auto",
    prefill_assistant: bool = True,
    has_markers: bool = False,
) -> ChatParams:
    """Render a request's conversation, as llama-server's `oaicompat_chat_params_parse` does.

    A conversation that the template refuses is rendered in a form that it takes, if there is one (`fit`).

    Looks at messages, tools, tool_choice, parallel_tool_calls, the fields of `CONSTRAINTS`, chat_template_kwargs,
    reasoning_effort, reasoning_format, add_generation_prompt and continue_final_message. A
    tool_choice that names a function leaves the model that one to call.

    Args:
        templates: the model's.
        body: the request.
        chat_template_kwargs: the server's own, which those of the request override; `preserve_reasoning` is True
            unless they set another.
        enable_thinking: the default of requests; None = whether the template supports reasoning.
        reasoning_format: the same.
        prefill_assistant: an assistant's message at the end of a request is gone on with.
        has_markers: markers stand for images (`media.take_media`), as parts of type "media_marker".

    Raises:
        ValueError: the request is not as it should be; the message is for the client.
    """
    messages = _messages(body, has_markers)
    tools, tool_choice = _tools(body)
    has_tools = tools is not None and tool_choice != "none"
    constraint = constraint_of(body)
    if has_tools and constraint is not None and constraint.grammar:
        raise ValueError(f"Cannot use custom grammar constraints with tools: '{constraint.name}'")
    continuation = body.get("continue_final_message", False)
    if continuation not in (True, "content", "reasoning_content"):
        continuation = False
    add_generation_prompt = _get(body, "add_generation_prompt", bool, True)
    if not continuation and prefill_assistant and messages and messages[-1].get("role") == "assistant":
        if len(messages) > 1 and messages[-2].get("role") == "assistant":
            raise ValueError("Cannot have 2 or more assistant messages at the end of the list.")
        continuation, add_generation_prompt = True, False
    if continuation and add_generation_prompt:
        raise ValueError("Cannot set both add_generation_prompt and continue_final_message to true.")
    if continuation and messages and messages[-1].get("role") == "assistant" and messages[-1].get("tool_calls"):
        raise ValueError("Cannot continue an assistant message that contains tool calls.")
    kwargs = {
        "preserve_reasoning": True,
        **(chat_template_kwargs or {}),
        **_get(body, "chat_template_kwargs", dict, {}),
    }
    if "enable_thinking" in kwargs:
        if isinstance(kwargs["enable_thinking"], str):
            raise ValueError('invalid type for "enable_thinking" (expected boolean, got string)')
        if isinstance(kwargs["enable_thinking"], bool):
            enable_thinking = kwargs["enable_thinking"]
    effort = _get(body, "reasoning_effort", str, "")
    if effort == "none":
        enable_thinking = False
        kwargs.pop("reasoning_effort", None)
    elif effort:
        kwargs["reasoning_effort"] = effort
    try:
        params = apply_fitting(
            templates.apply,
            templates.habits,
            messages,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=_get(body, "parallel_tool_calls", bool, None),
            json_schema=None if constraint is None else constraint.json_schema,
            grammar="" if constraint is None else constraint.grammar,
            enable_thinking=enable_thinking,
            reasoning_format=_get(body, "reasoning_format", str, reasoning_format),
            chat_template_kwargs=kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continuation,
        )
    except SchemaError as e:
        raise ValueError(f"'{constraint.name}': {e}" if constraint is not None else str(e)) from None
    if constraint is not None and constraint.grammar and constraint.name != "grammar" and params.begins_in_reasoning:
        return _after_reasoning(params)
    return params


def _after_reasoning(params: ChatParams) -> ChatParams:
    """Hold the content to the grammar, and not the reasoning that comes before it."""
    rules = Rules(Rules.names_in(params.grammar))
    root, end = rules.name("answer"), params.thinking_end_tags[0].strip()
    parser = params.new_parser()
    parser.update(f"x{end}\n\ny", is_partial=False)
    lines = '"\\n"{0,2} ' if parser.message.get("content") == "y" else ""  # else they would be part of the content
    rules.set(root, f"{through(rules, end, 'reasoning')} {lines}root")
    grammar = f"{params.grammar}\n{rules.text()}"
    return replace(params, grammar=grammar, grammar_root=root, grammar_begins_in_prompt=True)


def _get(body: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    """A value of the request; null stands for none."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        names = {str: "a string", bool: "true or false", dict: "an object", list: "an array"}
        raise ValueError(f"expected '{key}' to be {names[kind]}, found {type(value).__name__}")
    return value


def _messages(body: Mapping[str, Any], has_markers: bool) -> list[dict[str, Any]]:
    if "messages" not in body:
        raise ValueError("'messages' is required")
    messages = body["messages"]
    if not isinstance(messages, list):
        raise ValueError("Expected 'messages' to be an array")
    for message in messages:
        if not isinstance(message, dict):
            raise ValueError("Expected each of 'messages' to be an object")
        if message.get("role") != "assistant" and "content" not in message:
            raise ValueError("All non-assistant messages must contain 'content'")
        if "content" not in message and "tool_calls" not in message:
            raise ValueError("Assistant message must contain either 'content' or 'tool_calls'!")
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise ValueError("Expected 'content' to be a string or an array")
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in _MEDIA:
                hint = "" if _MEDIA[kind] == "video" else ": no projector was loaded (serve: --mmproj)"
                raise ValueError(f"{_MEDIA[kind]} input is not supported{hint}")
            if kind != "text" and not (has_markers and kind == "media_marker"):
                raise ValueError("unsupported content[].type")
    return messages


def _tools(body: Mapping[str, Any]) -> tuple[list[dict[str, Any]] | None, Any]:
    """The tools and llama.cpp's word for which of them to call."""
    tools = _get(body, "tools", list, None) or None
    choice = body.get("tool_choice")
    if choice is None or isinstance(choice, str):
        return tools, choice or "auto"
    if not isinstance(choice, dict):
        raise ValueError(f"tool_choice: expected auto, none, required or a tool, found {type(choice).__name__}")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    named = [tool for tool in tools or () if isinstance(tool, dict) and _tool_name(tool) == name]
    if not named:
        raise ValueError(f"tool_choice: expected one of the tools' names, found {name!r}")
    return named, "required"


def _tool_name(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None
