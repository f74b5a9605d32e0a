"""A tool that must be called, with llama_cpp's chat formats: our grammar makes its arguments match its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_cpp import Llama, LlamaGrammar

from .json_limits import check_tools
from .schema import log_loosened
from .schema.tools import arguments_grammar
from .tool_fields import name_of, parameters_of


def forced_tool(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The tool that the model must call, by the arguments of `create_chat_completion`; None if there is none.

    Args:
        arguments: those of `create_chat_completion`; functions and function_call are older names.

    Raises:
        ValueError: there is no such tool, or the model must choose one of several, which these formats cannot do.
    """
    tools = arguments.get("tools") or []
    choice = arguments.get("tool_choice")
    if arguments.get("functions") is not None:
        tools = [{"type": "function", "function": function} for function in arguments["functions"]]
    if arguments.get("function_call") is not None:
        call = arguments["function_call"]
        choice = {"function": call} if isinstance(call, Mapping) else call
    if choice in (None, "auto", "none"):
        return None
    check_tools(tools)
    if choice == "required":
        if len(tools) != 1:
            raise ValueError(
                f"tool_choice 'required' with {len(tools)} tools: this chat format takes the name of one, "
                "chat_format='auto' lets the model choose"
            )
        return dict(tools[0])
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else choice
    for tool in tools:
        if name_of(tool) == name:
            return dict(tool)
    raise ValueError(f"tool_choice: expected one of the tools' names, found {name!r}")


def with_forced_tool(arguments: Mapping[str, Any], tool: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the tool named as llama_cpp's handlers read it."""
    function = {**tool["function"], "parameters": parameters_of(tool) or {"type": "object"}}
    others = {name: value for name, value in arguments.items() if name not in ("functions", "function_call")}
    tools = [
        {**one, "function": function} if name_of(one) == name_of(tool) else one for one in arguments.get("tools") or []
    ]
    named = {"type": "function", "function": {"name": name_of(tool)}}
    if not tools:  # the older names need the older form of the answer
        functions = [function if one.get("name") == name_of(tool) else one for one in arguments["functions"]]
        return {**others, "functions": functions, "function_call": named["function"]}
    return {**others, "tools": tools, "tool_choice": named}


class WithForcedTool:
    """A model as a chat handler sees it, whose completions are arguments of a tool."""

    def __init__(self, llama: Llama, tool: Mapping[str, Any]):
        """llama: the model. tool: in OpenAI's form."""
        grammar = arguments_grammar(tool)
        log_loosened(grammar.loosened)
        self.__dict__.update(_llama=llama, _grammar=LlamaGrammar.from_string(grammar.text, verbose=False))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_llama"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_llama"], name, value)

    def create_completion(self, *args: Any, **options: Any) -> Any:
        """Complete as the model does, by the grammar of the tool in place of the handler's."""
        return self.__dict__["_llama"].create_completion(*args, **{**options, "grammar": self.__dict__["_grammar"]})
