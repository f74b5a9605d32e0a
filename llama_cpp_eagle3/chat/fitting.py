"""Changes conversations and tools that a template refuses into a form that it takes.

What a template takes is found by rendering small conversations, as llama.cpp finds its capabilities. A conversation
that it takes is not changed, so that its prompts are llama-server's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from .._chat import TemplateLimitError
from .json_limits import is_json
from .schema.core import TYPES
from .tool_fields import Tool, parameters_of, properties_of
from .tool_frame import call_text

Message = Mapping[str, Any]
P = TypeVar("P", bound="_Rendered", covariant=True)

_SYSTEM = ("system", "developer")
_N_ID = 9
_MARK = "snowdrop"
_USER = {"role": "user", "content": "Hello"}
_ANSWER = {"role": "assistant", "content": "Hi"}
_INSTRUCTION = {"role": "system", "content": "Be brief"}
_MARKED = {"role": "system", "content": _MARK}
_TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a word",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}


class _Rendered(Protocol):
    @property
    def prompt(self) -> str: ...


def _called(arguments: str = '{"q": "x"}', id: str = "call00001") -> list[Message]:
    function = {"name": "find", "arguments": arguments}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]}
    return [_USER, call, {"role": "tool", "tool_call_id": id, "name": "find", "content": "y"}]


@dataclass(frozen=True, slots=True)
class _Probe:
    """A conversation with an odd part that some templates refuse or leave out, and one without it."""

    odd: Sequence[Message]
    plain: Sequence[Message]
    marks: tuple[str, ...] = ()
    """Words that its prompt must have."""


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    probe: _Probe
    change: Callable[[list[Message]], list[Message]]
    """Returns the conversation without the odd part; an equal one if it has none."""


class Habits:
    """What a template does with odd conversations. From any thread."""

    def __init__(self, apply: Callable[..., _Rendered]):
        """apply: `ChatTemplates.apply`."""
        self._apply = apply
        self._known: dict[tuple[str, bool], Literal["takes", "refuses", "leaves out"]] = {}

    def of(self, rule: _Rule, has_tools: bool) -> Literal["takes", "refuses", "leaves out"]:
        """What the template does with a rule's probe; "takes" also if it refuses the plain form too."""
        key = rule.name, has_tools
        if key not in self._known:
            prompt, probe = self._render(rule.probe.odd, has_tools), rule.probe
            if prompt is None:
                is_probe_wrong = self._render(probe.plain, has_tools) is None
                self._known[key] = "takes" if is_probe_wrong else "refuses"
            else:
                self._known[key] = "takes" if all(mark in prompt for mark in probe.marks) else "leaves out"
        return self._known[key]

    def _render(self, messages: Sequence[Message], has_tools: bool) -> str | None:
        try:
            return self._apply(messages, tools=[_TOOL] if has_tools else None).prompt
        except ValueError:
            return None


def apply_fitting(
    apply: Callable[..., P], habits: Habits, messages: Sequence[Message], *, tools: Any = None, **options: Any
) -> P:
    """Render a conversation, in another form if the template refuses its own.

    Instructions that it would silently leave out, as some templates do with later ones, get another form too.

    apply, habits: of the same `ChatTemplates`. messages, tools, options: arguments of `apply`.

    Raises:
        ValueError: the template takes no form; the error is that of the unchanged conversation.
    """
    given, roles = list(messages), [message.get("role") for message in messages]
    if "user" not in roles or any(role in _SYSTEM for role in roles[1:]):
        for rule in _INSTRUCTIONS:
            given = _changed(rule, habits, given, bool(tools), "leaves out")
    try:
        return apply(given, tools=tools, **options)
    except TemplateLimitError:
        raise
    except ValueError as e:
        fitting = given
        for rule in (*_INSTRUCTIONS, *_OTHERS):
            fitting = _changed(rule, habits, fitting, bool(tools), "refuses")
        if fitting == given:
            raise
        try:
            return apply(fitting, tools=tools, **options)
        except ValueError:
            raise e from None


def _changed(rule: _Rule, habits: Habits, messages: list[Message], has_tools: bool, habit: str) -> list[Message]:
    changed = rule.change(messages)
    return messages if changed == messages or habits.of(rule, has_tools) != habit else changed


def _with_one_instruction(messages: list[Message]) -> list[Message]:
    """Join system messages at the beginning into one."""
    n = _n_instructions(messages)
    return messages if n < 2 else [_joined(messages[:n]), *messages[n:]]


def _with_first_instructions(messages: list[Message]) -> list[Message]:
    """Make later instructions a part of the next user's message, or a user's message of their own."""
    found = messages[: _n_instructions(messages)]
    later: list[Message] = []
    for message in messages[len(found) :]:
        if message.get("role") in _SYSTEM:
            later.append({"role": "user", "content": message.get("content")})
        elif message.get("role") == "user":
            found.append(_joined([message, *later], reverse=True))
            later = []
        else:
            found += [_joined(later), message] if later else [message]
            later = []
    return [*found, _joined(later)] if later else found


def _with_a_user(messages: list[Message]) -> list[Message]:
    """Make the first message after the instructions a user's."""
    n = _n_instructions(messages)
    if n < len(messages) and messages[n].get("role") == "user":
        return messages
    return [*messages[:n], {"role": "user", "content": ""}, *messages[n:]]


def _with_any_user(messages: list[Message]) -> list[Message]:
    """Add a user's message if there is none."""
    return messages if any(message.get("role") == "user" for message in messages) else _with_a_user(messages)


def _without_tools(messages: list[Message]) -> list[Message]:
    """Make calls text of the assistant, and results text of the user."""
    found: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if message.get("role") == "tool":
            found.append({"role": "user", "content": message.get("content")})
        elif isinstance(calls, list):
            texts = [call_text(call) for call in calls if isinstance(call, Mapping)]
            plain = {name: value for name, value in message.items() if name != "tool_calls"}
            found.append(_joined([plain, *({"content": text} for text in texts)]))
        else:
            found.append(message)
    return found


def _with_results(messages: list[Message]) -> list[Message]:
    """Add empty results to calls that have none before a user's message."""
    found: list[Message] = []
    for message in messages:
        calls = found[-1].get("tool_calls") if found else None
        if message.get("role") == "user" and isinstance(calls, list):
            ids = [call.get("id") or "" for call in calls if isinstance(call, Mapping)]
            found += [{"role": "tool", "tool_call_id": id, "content": ""} for id in ids]
        found.append(message)
    return found


def _with_turns(messages: list[Message]) -> list[Message]:
    """Join neighbours of one role, except an assistant's message at the end, which the answer may continue."""

    def joins(group: list[Message], i: int) -> bool:
        role = messages[i].get("role")
        can = role == "user" or (role == "assistant" and i < len(messages) - 1 and not group[-1].get("tool_calls"))
        return can and group[-1].get("role") == role

    return _grouped(messages, joins)


def _with_results_alone(messages: list[Message]) -> list[Message]:
    """Make a user's message right after a tool's result a part of the result."""
    return _grouped(messages, lambda group, i: (group[0].get("role"), messages[i].get("role")) == ("tool", "user"))


def _grouped(messages: list[Message], joins: Callable[[list[Message], int], bool]) -> list[Message]:
    """Join neighbours. joins: whether the message of an index belongs to the group before it."""
    groups: list[list[Message]] = []
    for i, message in enumerate(messages):
        if groups and joins(groups[-1], i):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [_joined(group) if group[1:] else group[0] for group in groups]


def _with_objects(is_taken: Callable[[str], bool]) -> Callable[[list[Message]], list[Message]]:
    """Put arguments that are not taken as they are as a text into an object."""

    def change(messages: list[Message]) -> list[Message]:
        return [_with_calls(message, lambda call: _with_object(call, is_taken)) for message in messages]

    return change


def _with_object(call: Message, is_taken: Callable[[str], bool]) -> Message:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or arguments is None:
        return call
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if is_taken(text):
        return call
    return {**call, "function": {**function, "arguments": json.dumps({"arguments": text}, ensure_ascii=False)}}


def _is_object(text: str) -> bool:
    return is_json(text) and text.lstrip().startswith("{")


def _with_ids(messages: list[Message]) -> list[Message]:
    """Give calls ids of nine letters and digits, as Mistral's have."""
    found = []
    for message in messages:
        message = _with_calls(message, lambda call: {**call, "id": _short(call.get("id"))})
        if message.get("role") == "tool":
            message = {**message, "tool_call_id": _short(message.get("tool_call_id"))}
        found.append(message)
    return found


def _short(id: Any) -> str:
    text = id if isinstance(id, str) else ""
    if len(text) == _N_ID and text.isalnum() and text.isascii():
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_N_ID]


def _with_calls(message: Message, change: Callable[[Message], Message]) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    changed = [change(call) if isinstance(call, Mapping) else call for call in calls]
    return message if changed == calls else {**message, "tool_calls": changed}


def _n_instructions(messages: Sequence[Message], *, anywhere: bool = False) -> int:
    """How many are at the beginning, or anywhere."""
    if anywhere:
        return sum(message.get("role") in _SYSTEM for message in messages)
    return next((i for i, message in enumerate(messages) if message.get("role") not in _SYSTEM), len(messages))


def _joined(messages: Sequence[Message], *, reverse: bool = False) -> Message:
    """The first one with the contents of all, and fields of its role's; reverse: the others' contents first."""
    first, *others = messages
    same = [message for message in reversed(messages) if message.get("role") == first.get("role")]
    fields = {name: value for message in same for name, value in message.items()}
    contents = [message.get("content") or "" for message in ([*others, first] if reverse else messages)]
    contents = [content for content in contents if content]
    if all(isinstance(content, str) for content in contents):
        return {**fields, "content": "\n\n".join(contents)}
    parts = [[{"type": "text", "text": c}] if isinstance(c, str) else c for c in contents]
    return {**fields, "content": [part for some in parts for part in some]}


_INSTRUCTIONS = (
    _Rule(
        "instructions",
        _Probe([_INSTRUCTION, _MARKED, _USER], [_INSTRUCTION, _USER], ("Be brief", _MARK)),
        _with_one_instruction,
    ),
    _Rule(
        "a later instruction",
        _Probe([_USER, _ANSWER, _MARKED, _USER], [_USER, _ANSWER, _USER], (_MARK,)),
        lambda messages: (
            _with_first_instructions(messages) if _n_instructions(messages, anywhere=True) < 2 else messages
        ),
    ),
    _Rule(
        "later instructions",
        _Probe(
            [_INSTRUCTION, _USER, _ANSWER, _MARKED, _USER], [_INSTRUCTION, _USER, _ANSWER, _USER], ("Be brief", _MARK)
        ),
        lambda messages: (
            _with_first_instructions(messages) if _n_instructions(messages, anywhere=True) > 1 else messages
        ),
    ),
    _Rule("no user", _Probe([_MARKED], [_INSTRUCTION, _USER], (_MARK,)), _with_any_user),
)
_OTHERS = (
    _Rule("arguments", _Probe(_called('{"q": "x'), _called()), _with_objects(is_json)),
    _Rule("arguments of other types", _Probe(_called('["x"]'), _called()), _with_objects(_is_object)),
    _Rule("tools", _Probe(_called(), [_USER, _ANSWER, _USER]), _without_tools),
    _Rule("missing results", _Probe([*_called()[:2], _USER], [*_called(), _ANSWER, _USER]), _with_results),
    _Rule("ids", _Probe(_called(id="call_1"), _called()), _with_ids),
    _Rule("beginning", _Probe([_ANSWER, _USER], [_USER, _ANSWER, _USER]), _with_a_user),
    _Rule("turns", _Probe([_USER, _USER], [_USER]), _with_turns),
    _Rule("results", _Probe([*_called(), _USER], [*_called(), _ANSWER, _USER]), _with_results_alone),
)


def shown_tools(tools: Sequence[Tool], can_show: Callable[[Tool], bool]) -> tuple[list[Tool], list[Tool]]:
    """(tools for the template, those of them whose schemas were replaced).

    Some templates fail at a schema that is invalid, or that their authors did not foresee. The prompt then has a plain
    schema for that tool; the answer must still match the tool's own.
    """
    shown, changed = [], []
    for tool in tools:
        best = tool if can_show(tool) else next(filter(can_show, _plainer(tool)), tool)
        shown.append(best)
        if best is not tool:
            changed.append(tool)
    return shown, changed


def _plainer(tool: Tool) -> Iterator[Tool]:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return
    given, named = parameters_of(tool), properties_of(tool) or {}
    required = given.get("required") if isinstance(given, dict) else None
    names = [name for name in required if name in named] if isinstance(required, list) else []
    for plain in (_plain, _plainest):
        parameters = {
            "type": "object",
            "properties": {name: plain(schema) for name, schema in named.items()},
            "required": names,
        }
        yield {**tool, "function": {**tool["function"], "parameters": parameters}}


def _plain(schema: Any) -> dict[str, Any]:
    """The schema with one type, and a description that says in words what it is."""
    own = schema if isinstance(schema, dict) else {}
    kinds = own.get("type") if isinstance(own.get("type"), list) else [own.get("type")]
    kind = next((kind for kind in kinds or () if kind in TYPES and kind != "null"), "string")
    found: dict[str, Any] = {"type": kind, "description": _description(own)}
    if isinstance(own.get("enum"), list) and own["enum"] and all(isinstance(value, str) for value in own["enum"]):
        found["enum"] = own["enum"]
    if kind == "array":
        found["items"] = {"type": "string"}
    return found


def _plainest(schema: Any) -> dict[str, Any]:
    return {"type": "string", "description": _description(schema if isinstance(schema, dict) else {})}


def _description(schema: dict[str, Any]) -> str:
    text = schema.get("description")
    return text if isinstance(text, str) else ""
