"""Requests in other forms than OpenAI's present one: its older functions, and other servers' words for thinking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .custom_tools import custom_names, with_functions

THINKING_FIELDS = ("reasoning", "thinking", "enable_thinking", "thinking_budget")
"""Fields in which OpenRouter, Anthropic's gateways and Qwen's servers say how much a model thinks."""


def has_functions(body: Mapping[str, Any]) -> bool:
    """Whether a request has OpenAI's older `functions` instead of tools."""
    return body.get("functions") is not None and not body.get("tools")


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form of an answer's calls, by the tools of the request."""

    has_functions: bool = False
    """OpenAI's older form (`functions`): the message has one `function_call`."""
    custom: Mapping[str, str] = field(default_factory=dict)
    """[function's name]: the custom tool that it stands for; its calls have one text."""


def call_form(body: Mapping[str, Any]) -> CallForm:
    """The form of the calls in the answer to a request."""
    return CallForm(has_functions(body), custom_names(body.get("tools")))


def in_one_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same request with tools that are functions, and with one field for each wish about thinking.

    Fields of functions that are null, as packages send them, are left out.

    Raises:
        ValueError: a field has another form, or a second one says something else; the message names it.
    """
    return _with_thinking(_with_tools(body))


def _with_tools(body: Mapping[str, Any]) -> dict[str, Any]:
    functions, tools, choice = body.get("functions"), body.get("tools"), body.get("function_call")
    if functions is not None and not (isinstance(functions, list) and all(isinstance(f, Mapping) for f in functions)):
        raise ValueError("expected 'functions' to be an array of objects")
    if not isinstance(choice, (str, Mapping, type(None))):
        raise ValueError("expected 'function_call' to be none, auto or an object with a name")
    if isinstance(choice, Mapping):
        choice = {"type": "function", "function": choice}
    if functions and tools:
        raise ValueError("expected 'tools' or 'functions', its older name, found both: send 'tools'")
    if choice is not None and body.get("tool_choice") not in (None, choice):
        raise ValueError("expected 'tool_choice' or 'function_call', its older name, found both: send 'tool_choice'")
    if choice is not None:  # also beside tools, by a client that has one of the new names
        body = {**body, "tool_choice": choice}
    found = {name: value for name, value in body.items() if name not in ("functions", "function_call")}
    if functions is not None and not tools:
        functions = [_without_nulls({"type": "function", "function": function}) for function in functions]
        return {**found, "tools": functions or None, "parallel_tool_calls": False}
    if isinstance(tools, list):
        if any(isinstance(tool, Mapping) and tool.get("type") == "custom" for tool in tools):
            found = with_functions(found)
        found["tools"] = [_without_nulls(tool) for tool in found["tools"]]
    return found


def _without_nulls(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return tool
    return {**tool, "function": {name: value for name, value in function.items() if value is not None}}


def _with_thinking(body: dict[str, Any]) -> dict[str, Any]:
    if all(body.get(name) is None for name in (*THINKING_FIELDS, "output_config")):
        return body
    others = {name: value for name, value in body.items() if value is not None and name not in THINKING_FIELDS}
    reasoning, thinking = _object(body, "reasoning"), _object(body, "thinking")
    kinds = {"enabled": True, "disabled": False, "adaptive": None, "None": None}
    if str(thinking.get("type")) not in kinds:
        raise ValueError(
            f"expected 'thinking.type' to be enabled, disabled or adaptive, found {thinking['type']!r:.40}"
        )
    switches = body.get("enable_thinking"), reasoning.get("enabled"), kinds[str(thinking.get("type"))]
    budgets = body.get("thinking_budget"), reasoning.get("max_tokens"), thinking.get("budget_tokens")
    is_on, budget = (next((x for x in wishes if x is not None), None) for wishes in (switches, budgets))
    if not isinstance(is_on, (bool, type(None))):
        raise ValueError(f"expected 'enable_thinking' to be true or false, found {is_on!r:.40}")
    if is_on is not None:
        others["chat_template_kwargs"] = {"enable_thinking": is_on, **_object(body, "chat_template_kwargs")}
    efforts = reasoning.get("effort"), _object(body, "output_config").get("effort")
    effort = None if is_on is False else next((x for x in efforts if x is not None), None)
    wishes = {"reasoning_effort": effort, "thinking_budget_tokens": budget}
    return {name: value for name, value in wishes.items() if value is not None} | others


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if not isinstance(value, (Mapping, type(None))):
        raise ValueError(f"expected '{name}' to be an object, found {type(value).__name__}")
    return value or {}
