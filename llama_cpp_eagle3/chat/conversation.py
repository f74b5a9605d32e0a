"""A conversation becomes a request: the one door for the server, `create_chat_completion` and the terminal.

`apply_request` renders it by llama-server's rules, `Conversation.request` makes the engine's request of that.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from ..engine.request import RequestOptions
from ..engine.sampling import Reasoning
from ..engine.vocab import Vocab
from ..media import TIMEOUT_S, Projector, Prompt, take_media
from .bare_call import callable_tools
from .blocks import LeftOut, text_of
from .constraints import constraint_of
from .fitting import apply_fitting
from .history import read_messages
from .other_forms import in_one_form
from .schema import SchemaError, SchemaGrammar
from .schema.gbnf import Rules, literal, through
from .templates import ChatParams, ChatTemplates
from .tool_fields import each_once, name_of

_log = logging.getLogger("llama_cpp_eagle3")
_LEFT_OUT = LeftOut()
_EMPTY = {"role": "assistant", "content": ""}
_ROLES = ("system", "developer", "user", "assistant", "tool")
_NAME = re.compile(r"(?!\s)[^\x00-\x1f\x7f]+(?<!\s)")
_SPECIAL = re.compile(r"[.^$|()*+?\[\]{}\\]")
_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_video": "video",
    "video_url": "video",
}


class Tokenize(Protocol):
    """Tokens of a text, special ones parsed."""

    def __call__(self, text: str, add_special: bool = False) -> list[int]:
        """add_special: add the tokens that the model wants before and after a text."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation as a request to the engine."""

    tokens: list[int]
    """The prompt."""
    sampling: dict[str, Any]
    """Options of `Sampling`: grammar, triggers, a limit of the reasoning."""
    options: RequestOptions
    """Other fields of `Request`: media, special tokens, where messages begin, what ends a thought."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as a prompt, with rules for its answer."""

    params: ChatParams
    files: Sequence[bytes] = ()
    """Images and sounds; a marker stands for each in the prompt."""
    projector: Projector | None = None

    def prompt(self, tokenize: Tokenize) -> Prompt:
        """Its tokens, and its images.

        Raises:
            ValueError: an image cannot be used.
        """
        if self.projector is not None and self.files:
            return self.projector.prompt(self.params.prompt, self.files)
        return Prompt(tokenize(self.params.prompt, True), [])

    def request(self, tokenize: Tokenize, vocab: Vocab, budget: int = -1, message: str = "") -> ChatRequest:
        """The request for an answer, whose sampling is constrained as llama-server's.

        budget: tokens that the reasoning may have; -1: no limit. message: written before its end when they are spent.

        Raises:
            ValueError: the conversation cannot be answered, or a trigger is not among the preserved tokens.
        """
        params, prompt = self.params, self.prompt(tokenize)
        special = frozenset(t[0] for t in map(tokenize, params.preserved_tokens) if len(t) == 1)
        patterns, tokens = _triggers(params, tokenize, special) if params.grammar_triggers else ([], [])
        is_whole = bool(params.grammar) and not (params.grammar_lazy or params.grammar_begins_in_prompt)
        reasoning = None
        if is_whole and budget >= 0:
            _warn_no_budget()
        elif params.thinking_start_tag and params.thinking_end_tags and (params.grammar_lazy or budget >= 0):
            ends = [tokenize(tag) for tag in params.thinking_end_tags]
            forced = [*(tokenize(message) if message else ()), *ends[0]]
            reasoning = Reasoning(start=tokenize(params.thinking_start_tag), ends=ends, forced=forced, budget=budget)
        begins_in_prompt = params.grammar_begins_in_prompt or reasoning is not None
        sampling: dict[str, Any] = {
            "grammar_root": params.grammar_root,
            "grammar_lazy": params.grammar_lazy,
            "grammar_triggers": patterns,
            "grammar_trigger_tokens": tokens,
            "grammar_prefill": _prefill(params.generation_prompt, tokenize, vocab) if begins_in_prompt else (),
            "reasoning": reasoning,
            **({"grammar": params.grammar} if params.grammar else {}),  # else that of the sampling options stays
        }
        options: RequestOptions = {
            "media": prompt.media,
            "special": special,
            "boundaries": message_boundaries(params, prompt.tokens, tokenize),
            "thought_ends": thought_ends(params, tokenize),
        }
        return ChatRequest(prompt.tokens, sampling, options)


def _no_file(source: Any, deadline: float) -> bytes:
    raise ValueError("files are not read here")


def read_conversation(
    body: Mapping[str, Any],
    templates: ChatTemplates,
    *,
    projector: Projector | None = None,
    load: Callable[[Any, float], bytes] = _no_file,
    left_out: LeftOut = _LEFT_OUT,
    **defaults: Any,
) -> Conversation:
    """Read a request's messages and files, and render them.

    Args:
        body: the request in OpenAI's form, or with messages in Anthropic's; see `apply_request`.
        templates: the model's.
        projector: encodes files; None: messages may not name any.
        load: loads a file that a message names, until a time of `time.monotonic`.
        left_out: is told the types of blocks that are left out; by default one for the whole process.
        **defaults: options of `apply_request` for what the request leaves open.

    Raises:
        MediaError: a file cannot be read.
        ValueError: the request is invalid; the message is for the client.
    """
    body = in_one_form(body)
    messages: Any = read_messages(body.get("messages"), left_out)
    files: list[bytes] = []
    if projector is not None and isinstance(messages, list):
        deadline = time.monotonic() + TIMEOUT_S
        messages, files = take_media(messages, projector.marker, lambda source: load(source, deadline))
    given = {name: value for name, value in body.items() if value is not None}
    params = apply_request(templates, {**given, "messages": messages}, has_markers=bool(files), **defaults)
    _check_roles(messages, params.prompt)
    return Conversation(params, files, projector)


def _check_roles(messages: list[dict[str, Any]], prompt: str) -> None:
    """Refuse a message of an unknown role that the template has passed over: a word of it does not follow the last."""
    at = 0
    for i, message in enumerate(messages):
        words = (found[0] for found in re.finditer(r"\w+", text_of(message.get("content"))))
        at = at if message["role"] in _ROLES else prompt.find(max(words, key=len, default=""), at)
        if at < 0:
            raise ValueError(
                f"messages.{i}: expected a 'role' of {', '.join(_ROLES)}, found {message['role']!r:.60}, which the "
                "model's chat template leaves out"
            )


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

    Reads messages, tools, tool_choice, parallel_tool_calls, the fields of `CONSTRAINTS`, chat_template_kwargs,
    reasoning_effort, reasoning_format, add_generation_prompt, continue_final_message and echo. If tool_choice names a
    function, the model gets only that one.

    Args:
        templates: the model's.
        body: the request.
        chat_template_kwargs: the server's own, which those of the request override; `preserve_reasoning` is True
            unless they set another.
        enable_thinking: the default of requests; None = whether the template supports reasoning.
        reasoning_format: the same.
        prefill_assistant: the answer continues an assistant's message at the end of a request.
        has_markers: markers stand for images (`media.take_media`), as parts of type "media_marker".

    Raises:
        ValueError: the request is invalid; the message is for the client.
    """
    messages = _messages(body, has_markers)
    tools, tool_choice = _tools(body)
    has_tools = tools is not None and tool_choice != "none"
    constraint = constraint_of(body)
    if has_tools and constraint is not None and constraint.grammar:
        raise ValueError(f"Cannot use custom grammar constraints with tools: '{constraint.name}'")
    continuation = body.get("continue_final_message", False)
    if continuation not in (None, True, False, "", "content", "reasoning_content"):
        names = "true, false, content or reasoning_content"
        raise ValueError(f"expected 'continue_final_message' to be {names}, found {continuation!r:.40}")
    continuation = continuation or False
    add_generation_prompt = _get(body, "add_generation_prompt", bool, True)
    if (continuation or prefill_assistant) and len(messages) > 1 and messages[-1] == _EMPTY:
        messages, continuation, add_generation_prompt = messages[:-1], False, True  # there is nothing to go on from
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
        # some of llama.cpp's formats know no schemas of answers
        is_open = constraint is not None and constraint.json_schema is not None and not params.grammar
        if constraint is not None and is_open:
            params = _with_schema(params, constraint.compile())
    except SchemaError as e:
        raise ValueError(f"'{constraint.name}': {e}" if constraint is not None else str(e)) from None
    if tools is not None and tool_choice == "auto" and constraint is None and not params.is_continuation:
        params = replace(params, bare_tools=callable_tools(tools))
    if _get(body, "echo", bool, False):
        params = replace(params, is_continuation=False)
    if constraint is None or not (constraint.grammar or is_open):
        return params
    params = replace(params, grammar_field=constraint.name)
    return _after_reasoning(params) if constraint.name != "grammar" and params.begins_in_reasoning else params


def _with_schema(params: ChatParams, held: SchemaGrammar) -> ChatParams:
    """Apply the grammar of a schema to the content, in a format that knows none."""
    opening = _opening(params)
    params = replace(params, grammar=held.text, loosened=(*params.loosened, *held.loosened))
    if not opening:
        return params
    rules = Rules(Rules.names_in(held.text))
    root = rules.name("answer")
    rules.set(root, f"{literal(opening)} root")
    return replace(params, grammar=f"{held.text}\n{rules.text()}", grammar_root=root)


def _opening(params: ChatParams) -> str:
    """What comes before the content: Functionary 3.2 names the one to whom it speaks."""
    for opening in ("", "all\n"):
        parser = params.new_parser()
        with suppress(ValueError):
            parser.update(f"{opening}{{}}", is_partial=False)
            if parser.message.get("content") == "{}":
                return opening
    return ""


def _after_reasoning(params: ChatParams) -> ChatParams:
    """Apply the grammar to the content only, and not to the reasoning before it."""
    rules = Rules(Rules.names_in(params.grammar))
    root, end = rules.name("answer"), params.thinking_end_tags[0].strip()
    parser = params.new_parser()
    parser.update(f"x{end}\n\ny", is_partial=False)
    lines = '"\\n"{0,2} ' if parser.message.get("content") == "y" else ""  # otherwise they would be part of the content
    rules.set(root, f"{through(rules, end, 'reasoning')} {lines}{params.grammar_root}")
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
            whose = f"of the message of role '{message.get('role')}'"
            raise ValueError(f"Expected 'content' {whose} to be a string or an array, found {content!r:.40}")
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            _refuse_media(kind)
            if kind != "text" and not (has_markers and kind == "media_marker"):
                raise ValueError("unsupported content[].type")
    return messages


def _refuse_media(kind: Any) -> None:
    if kind in _MEDIA:
        hint = "" if _MEDIA[kind] == "video" else ": no projector was loaded (mmproj_path=, or --mmproj of serve)"
        raise ValueError(f"{_MEDIA[kind]} input is not supported{hint}")


def refuse_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Refuse images and sounds, where there is no projector; returns whether a content has parts, which are texts then.

    Raises:
        ValueError: one of the messages has an image or a sound.
    """
    contents = [content for message in messages if isinstance(content := message.get("content"), list)]
    for part in itertools.chain.from_iterable(contents):
        _refuse_media(part.get("type") if isinstance(part, dict) else None)
    return bool(contents)


def _tools(body: Mapping[str, Any]) -> tuple[list[dict[str, Any]] | None, Any]:
    """The tools and llama.cpp's word for which of them to call: those that the choice allows, if it names some."""
    tools = _get(body, "tools", list, None) or None
    for i, tool in enumerate(tools or []):
        try:
            _check_tool(tool)
        except ValueError as e:
            raise ValueError(f"tools.{i}: {e}") from None
    tools = tools and each_once(((name_of(tool),), tool) for tool in tools)
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and not choice.keys() & {"name", "function", "tools", "allowed_tools"}:
        choice = choice.get("type", choice)  # Anthropic's form of a word
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools, choice = _allowed(tools or [], choice)
    elif isinstance(choice, dict):
        tools, choice = _named(tools or [], [choice]), "required"
    elif choice not in (None, "", "any", "auto", "none", "required"):
        raise ValueError(f"tool_choice: expected auto, none, required or a tool, found {choice!r:.80}")
    elif choice == "any":
        choice = "required"
    if choice == "required" and not tools:
        raise ValueError("tool_choice: a call is required, and there are no tools")
    return tools, choice or "auto"


def _allowed(tools: list[Any], choice: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """OpenAI's `allowed_tools`, whose fields are in an object of that name, or beside its type."""
    inner = choice.get("allowed_tools", choice)
    mode, allowed = (inner.get("mode", "auto"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
    if mode not in ("auto", "required"):
        raise ValueError(f"tool_choice: expected 'mode' of allowed_tools to be auto or required, found {mode!r}")
    if not isinstance(allowed, list) or not allowed or not all(isinstance(one, dict) for one in allowed):
        raise ValueError("tool_choice: expected 'tools' of allowed_tools to be an array of tools")
    return _named(tools, allowed), mode


def _check_tool(tool: Any) -> None:
    """Refuse what is no function, and names that no call could have: formats drop the white space around a name."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    function = tool.get("function") if isinstance(tool, dict) else None
    if kind != "function" or not isinstance(function, dict):
        raise ValueError(
            f"expected a tool of type 'function' with an object 'function', or a custom tool, found {tool!r:.80}"
        )
    name, description = function.get("name"), function.get("description", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"expected a tool's name without white space at its ends and without control characters, found {name!r:.80}"
        )
    if not isinstance(description, str):
        raise ValueError(f"expected the description of tool {name!r:.80} to be a string, found {description!r:.80}")


def _name_in(choice: Mapping[str, Any]) -> Any:
    """The name of a tool in a choice of it; the choice itself if there is none."""
    function = choice.get("function")
    named = function if isinstance(function, Mapping) else choice
    return named.get("name", choice)


def _named(tools: list[Any], choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools that choices name, as `{"type": "function", "function": {"name": NAME}}`."""
    names = {name_of(tool) for tool in tools if isinstance(tool, dict)}
    chosen = [_name_in(choice) for choice in choices]
    for name in chosen:
        if not isinstance(name, str) or name not in names:
            raise ValueError(f"tool_choice: expected one of the tools' names, found {name!r:.80}")
    return [tool for tool in tools if isinstance(tool, dict) and name_of(tool) in chosen]


@cache  # once
def _warn_no_budget() -> None:
    _log.warning("the reasoning budget has no effect on requests whose `grammar` is the whole answer's")


def _triggers(params: ChatParams, tokenize: Tokenize, preserved: frozenset[int]) -> tuple[list[str], list[int]]:
    """Regular expressions and tokens that a lazy grammar waits for."""
    patterns, tokens = [], []
    for trigger in params.grammar_triggers:
        if trigger.type == "pattern":
            patterns.append(trigger.value)
        elif trigger.type == "pattern_full":
            start = "" if trigger.value.startswith("^") else "^"
            end = "" if trigger.value.endswith("$") else "$"
            patterns.append(start + trigger.value + end)
        else:
            found = tokenize(trigger.value)
            if len(found) != 1:
                patterns.append(_SPECIAL.sub(r"\\\g<0>", trigger.value))
            elif found[0] in preserved:
                tokens.append(found[0])
            else:
                raise ValueError(f"the trigger {trigger.value!r} is a token, but not among those that are preserved")
    return patterns, tokens


def _prefill(text: str, tokenize: Tokenize, vocab: Vocab) -> Sequence[int]:
    """Tokens of the end of the prompt that belongs to the answer."""
    tokens = tokenize(text) if text else []
    if tokens and vocab.piece(tokens[0], True)[:1].isspace() and not text[:1].isspace():
        return tokens[1:]  # some tokenizers put a space before a special token
    return tokens


def message_boundaries(params: ChatParams, tokens: Sequence[int], tokenize: Callable[[str], list[int]]) -> list[int]:
    """Indices in a prompt at which messages begin, in order: there another conversation may go on differently.

    The last one is where the answer begins, if the prompt begins it: after the role's name, at the part that later
    turns may show differently. The first message that has a delimiter follows the system prompt and the tools, which
    have none in most templates.

    tokens: of the prompt; those of images are negative. tokenize: without tokens before and after a text.
    """
    tokens = list(tokens)
    found: set[int] = set()
    for _, delimiter in params.message_delimiters:
        part, at = tokenize(delimiter), -1
        while part:
            try:
                at = tokens.index(part[0], at + 1)
            except ValueError:
                break
            if tokens[at : at + len(part)] == part:
                found.add(at)
    answer = params.generation_prompt
    if answer:
        n_answer = len(tokenize(answer))
        for text in (answer[len(params.answer_begin) :], answer):
            begin = _begin_of(tokens, tokenize(text) if text else [])
            if begin is not None:
                found = {n for n in found if n < len(tokens) - n_answer} | {begin}
                break
    return sorted(found)


def _begin_of(tokens: list[int], end: list[int]) -> int | None:
    """Where `end` begins at the end of the tokens: its first token may be joined with the text before it."""
    for part in (end, end[1:]):
        at = len(tokens) - len(part)
        if tokens[at:] == part and (part or not end):
            return at
    return None


def thought_ends(params: ChatParams, tokenize: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """Token sequences that may end the answer's thought: some clients send back the text after it changed."""
    tags = dict.fromkeys(tag.strip() for tag in params.thinking_end_tags)
    return tuple(tuple(tokenize(tag)) for tag in tags if tag)
