"""Tools of /v1/messages: functions, Anthropic's own tools that clients run, and those that its servers run.

A client names its tools by a type alone if Anthropic's models have learned them (`bash_20250124`); other models get
their schemas from here. What only Anthropic's servers could run is not offered to the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..chat import LeftOut
from .anthropic_schema import MessagesRequest, Tool
from .api_errors import invalid

_OWN = re.compile(r"(bash|text_editor|memory|computer)_(\d{8})")
_HOSTED = ("web_", "code_execution", "tool_search", "mcp_", "advisor")
_FUNCTIONS = (None, "custom", "function")
"""Types of tools that have a schema of their own."""
_INSERTED = 20250429
"""Since this version the text that the editor inserts has a name of its own."""
_LINE = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "first and last line to show; -1 is the end of the file",
}
_POINT = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}


def functions_of(asked: MessagesRequest, left_out: LeftOut | None) -> list[dict[str, Any]]:
    """The tools of a request that the model is offered, in a chat's form.

    A deferred one is there once a result refers to it, or a call or the choice names it; all of them are if it is for
    Anthropic's server to find them: nobody else would.

    left_out: logs what is not offered.

    Raises:
        ApiError: a function has no name.
    """
    tools = asked.tools or []
    is_searched = any(str(tool.type).startswith("tool_search_tool") for tool in tools)
    named = set() if is_searched else _named(asked)
    found, left = [], []
    for i, tool in enumerate(tools):
        function = _function(tool)
        if function is None:
            is_hosted = str(tool.type).startswith(_HOSTED)
            why = "which Anthropic's servers run" if is_hosted else "whose schema is not known"
            left.append(f"{str(tool.type)[:28]}, {why}")
        elif not function["name"]:
            raise invalid(f"tools.{i}: expected a tool to have a 'name'")
        elif is_searched or not tool.defer_loading or tool.name in named:
            found.append({"type": "function", "function": function})
    if left and left_out is not None:
        left_out.tell(left)
    return found


def _named(asked: MessagesRequest) -> set[str]:
    """Tools that the conversation or the choice names."""
    named = {asked.tool_choice.name} if asked.tool_choice is not None else set()
    left: list[Any] = [message.content for message in asked.messages]
    while left:
        block = left.pop()
        if isinstance(block, list):
            left += block
        elif isinstance(block, dict):
            name = block.get("name") if block.get("type") == "tool_use" else block.get("tool_name")
            named |= {name} if isinstance(name, str) else set()
            left += [block.get("content"), block.get("tool_references")]
    return named


def _function(tool: Tool) -> dict[str, Any] | None:
    """A tool as a function; None: the model cannot call it here."""
    if tool.type in _FUNCTIONS or tool.input_schema is not None:
        schema = tool.input_schema or {}
        return {"name": tool.name, "description": tool.description or "", "parameters": schema}
    own = _OWN.fullmatch(str(tool.type))
    if own is None:
        return None
    description, parameters = _MADE[own[1]](tool, int(own[2]))
    return {"name": tool.name or own[1], "description": tool.description or description, "parameters": parameters}


def _commands(key: str, needed: dict[str, list[str]], others: dict[str, Any]) -> dict[str, Any]:
    """A schema with one property that says what is done, and for each of its values what it needs."""
    return {
        "type": "object",
        "properties": {key: {"type": "string", "enum": list(needed)}, **others},
        "required": [key],
        "anyOf": [{"properties": {key: {"const": name}}, "required": [key, *names]} for name, names in needed.items()],
        "additionalProperties": False,
    }


def _bash(tool: Tool, version: int) -> tuple[str, dict[str, Any]]:
    properties = {
        "command": {"type": "string", "description": "the command to run"},
        "restart": {"type": "boolean", "description": "start a new shell instead"},
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return (
        "Run a command in a bash shell, whose state stays from call to call.",
        {**schema, "anyOf": [{"required": ["command"]}, {"required": ["restart"]}]},
    )


def _editor_commands(version: int) -> tuple[dict[str, list[str]], dict[str, Any]]:
    inserted = "insert_text" if version >= _INSERTED else "new_str"
    needed = {
        "view": ["path"],
        "create": ["path", "file_text"],
        "str_replace": ["path", "old_str", "new_str"],
        "insert": ["path", "insert_line", inserted],
    }
    others: dict[str, Any] = {
        "path": {"type": "string", "description": "of a file or a folder"},
        "view_range": _RANGE,
        "file_text": {"type": "string", "description": "the new file's text"},
        "old_str": {"type": "string", "description": "the text to replace, which the file has once"},
        "new_str": {"type": "string", "description": "what replaces it"},
        "insert_line": {**_LINE, "description": "the line after which text is inserted; 0: the beginning"},
    }
    return needed, others | ({"insert_text": _TEXT} if inserted == "insert_text" else {})


def _editor(tool: Tool, version: int) -> tuple[str, dict[str, Any]]:
    needed, others = _editor_commands(version)
    if version < _INSERTED:
        needed["undo_edit"] = ["path"]
    return "View, create and edit text files.", _commands("command", needed, others)


def _memory(tool: Tool, version: int) -> tuple[str, dict[str, Any]]:
    needed, others = _editor_commands(_INSERTED)
    needed |= {"delete": ["path"], "rename": ["old_path", "new_path"]}
    others |= {"old_path": _TEXT, "new_path": _TEXT}
    return "Read and write files below /memories, which stay between conversations.", _commands(
        "command", needed, others
    )


def _computer(tool: Tool, version: int) -> tuple[str, dict[str, Any]]:
    click = ["left_click", "right_click", "middle_click", "double_click"]
    needed = {"screenshot": [], "cursor_position": [], "key": ["text"], "type": ["text"], "mouse_move": ["coordinate"]}
    needed |= {name: [] if version < 20250124 else ["coordinate"] for name in click}
    needed["left_click_drag"] = ["coordinate"] if version < 20250124 else ["start_coordinate", "coordinate"]
    others: dict[str, Any] = {
        "coordinate": {**_POINT, "description": "x and y in pixels from the left upper corner"},
        "text": {"type": "string", "description": "what is typed, or the keys that are pressed, such as ctrl+s"},
    }
    if version >= 20250124:
        needed |= {
            "triple_click": ["coordinate"],
            "left_mouse_down": [],
            "left_mouse_up": [],
            "hold_key": ["text", "duration"],
            "wait": ["duration"],
            "scroll": ["coordinate", "scroll_direction", "scroll_amount"],
        }
        others |= {
            "start_coordinate": _POINT,
            "duration": {"type": "number", "minimum": 0, "maximum": 100, "description": "seconds"},
            "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
            "scroll_amount": {"type": "integer", "minimum": 0, "maximum": 100},
        }
    more = tool.model_extra or {}
    if version >= 20251124 and more.get("enable_zoom"):
        needed["zoom"] = ["region"]
        others["region"] = {**_POINT, "minItems": 4, "maxItems": 4, "description": "left, upper, right, lower edge"}
    width, height = more.get("display_width_px"), more.get("display_height_px")
    size = f" The screen has {width}x{height} pixels." if width and height else ""
    return f"Use a computer's mouse, keyboard and screen.{size}", _commands("action", needed, others)


_MADE: dict[str, Callable[[Tool, int], tuple[str, dict[str, Any]]]] = {
    "bash": _bash,
    "text_editor": _editor,
    "memory": _memory,
    "computer": _computer,
}
"""[what a type begins with]: makes the description and the schema of a tool that clients run."""
