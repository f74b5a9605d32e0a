"""Chat templates: a conversation becomes a prompt, and rules for sampling and parsing what follows it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix
from typing import Any, Literal, get_args

from .. import _chat
from .._chat import Parser, TemplateLimitError
from .bare_call import CallableTool
from .fitting import Habits, shown_tools
from .json_limits import check_messages, check_tools, to_json
from .schema import Loosened, SchemaGrammar, log_loosened
from .schema.tools import as_shown, complete
from .tool_frame import PROBE, framed

_log = logging.getLogger("llama_cpp_eagle3")
_TEXTS = ("aaq0", "bbq1", "ccq2", "ddq3", "eeq4")
"""Texts that no template has, and that differ from each other."""


TriggerType = Literal["token", "word", "pattern", "pattern_full"]


@dataclass(frozen=True, slots=True)
class GrammarTrigger:
    """A trigger of a lazy grammar."""

    type: TriggerType
    """"pattern": a regular expression that is searched in the text; "pattern_full": one that matches all of it."""
    value: str


_TRIGGER_TYPES: tuple[TriggerType, ...] = get_args(TriggerType)

PLAIN: dict[str, Any] = {
    "tools": None,
    "framed_tools": None,
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "one_call": False,
    "json_schema": None,
    "grammar": "",
    "enable_thinking": False,
    "reasoning_format": "none",
    "chat_template_kwargs": {},
    "add_generation_prompt": False,
    "continue_final_message": False,
}
"""Arguments of `_chat.Templates.apply` for small conversations, which show what a template does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatParams:
    """A rendered request: llama.cpp's `common_chat_params`."""

    prompt: str
    """The prompt, which must be tokenized with special tokens parsed."""
    grammar: str
    """The grammar in GBNF; empty without one."""
    grammar_lazy: bool
    """Whether the grammar waits for one of its triggers."""
    grammar_begins_in_prompt: bool
    """Whether the grammar begins with the generation_prompt; not if the request has the grammar."""
    grammar_triggers: tuple[GrammarTrigger, ...]
    preserved_tokens: tuple[str, ...]
    """Special tokens that must be part of the text that the parser gets."""
    additional_stops: tuple[str, ...]
    """Strings that end the answer, beside those of the request."""
    generation_prompt: str
    """The end of the prompt that belongs to the answer: the grammar and the parser begin with it."""
    answer_begin: str
    """The beginning of it that earlier answers have too: without that of a thought, which later turns lack."""
    thinking_start_tag: str
    thinking_end_tags: tuple[str, ...]
    """Texts that end the reasoning, of which the first one is written if it is cut off; empty without reasoning."""
    message_delimiters: tuple[tuple[str, str], ...]
    """(role, text with which its messages begin)."""
    format: int
    """The format of the answer; `format_name` is its name."""
    parser: str
    """The parser of the answer, as llama.cpp saves it."""
    is_continuation: bool
    """Whether the answer goes on with the conversation's last message, and has only what is new."""
    is_forced: bool = False
    """Whether the answer is a call, which the request's stop strings do not cut."""
    begun: str = ""
    """The text of that message with which the prompt ends."""
    grammar_root: str = "root"
    """The rule that the grammar begins with."""
    grammar_field: str = ""
    """The request's field that has the grammar; empty: it was made of schemas and tools."""
    loosened: tuple[Loosened, ...] = ()
    """Parts of schemas, of tools or of the content, that the grammar does not enforce."""
    bare_tools: tuple[CallableTool, ...] = ()
    """Tools whose call may be bare JSON, the whole answer: only if no call is required."""

    @property
    def begins_in_reasoning(self) -> bool:
        """Whether the prompt ends where the model's reasoning begins."""
        tag = self.thinking_start_tag
        return bool(tag and self.thinking_end_tags) and self.generation_prompt.rstrip().endswith(tag)

    @property
    def format_name(self) -> str:
        """Name of the answer's format, as llama-server writes it."""
        return _chat.format_name(self.format)

    def new_parser(self) -> Parser:
        """A parser for one answer."""
        return Parser(self.format, self.generation_prompt, self.parser, self.is_continuation, self.begun)


class ChatTemplates:
    """A model's chat templates, or one that is given: llama.cpp's `common_chat_templates`. From any thread.

    A template is a program, which may take half a minute and 512 MiB for a conversation. Take templates from the model
    and from the operator of the server, never from a request.
    """

    def __init__(self, model: int | None = None, template: str = "", bos_token: str = "", eos_token: str = ""):
        """Parse the templates.

        Args:
            model: address of the loaded llama_model, which names the tokens and has templates of its own.
            template: Jinja, instead of the model's own; "chatml" is a built-in one.
            bos_token: text of the token, without a model.
            eos_token: text of the token, without a model.

        Raises:
            ValueError: the template is no Jinja that llama.cpp supports; or neither a model nor a template is given.
        """
        self._templates = _chat.Templates(model or 0, template, bos_token, eos_token)

    def source(self, variant: Literal["", "tool_use"] = "") -> str:
        """Jinja source of the default template, or of a variant; empty if there is no such variant."""
        return self._templates.source(variant)

    @property
    def is_explicit(self) -> bool:
        """Whether there was a template, rather than llama.cpp's ChatML for models without one."""
        return self._templates.is_explicit

    @cached_property
    def caps(self) -> dict[str, bool]:
        """What the template can express, as in llama-server's /props (`chat_template_caps`)."""
        return self._templates.caps

    @cached_property
    def supports_thinking(self) -> bool:
        """Whether the template supports reasoning."""
        return self._templates.supports_thinking

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template shows tools and calls in a form that llama.cpp can parse.

        If not, tools are described in the instructions, and a call is a JSON object in `<tool_call>` tags.
        """

        messages = [{"role": "user", "content": _TEXTS[0]}]
        request = {**PLAIN, "messages": messages, "tools": [PROBE], "tool_choice": "required"}
        try:
            params = self._templates.apply(to_json({**request, "add_generation_prompt": True}))
            if params["grammar"] and PROBE["function"]["name"] in params["prompt"]:
                return True
        except ValueError:
            pass
        _log.warning(
            "the chat template knows no tools: they are described in the instructions, and calls are JSON in "
            "<tool_call> tags, which this model may not have learned"
        )
        return False

    @cached_property
    def habits(self) -> Habits:
        """What the template does with conversations that some templates refuse."""
        return Habits(self.apply)

    @cached_property
    def _beginnings(self) -> dict[str, str]:
        """[role]: the text before earlier messages of that role."""

        def render(messages: list[dict[str, Any]]) -> str:
            prompt: str = self._templates.apply(to_json({**PLAIN, "messages": messages}))["prompt"]
            return prompt

        return _find_beginnings(render)

    def _with_plainer_tools(self, request: dict[str, Any], error: ValueError) -> tuple[dict[str, Any], list[Any]]:
        """Render a refused request with plainer schemas; returns also the tools whose own schemas are not shown.

        Raises:
            ValueError: the given error, if tools are not the reason for it.
        """
        user = {"role": "user", "content": "x"}
        alone = {**request, "messages": [user], "add_generation_prompt": True, "continue_final_message": False}

        def can_show(*tools: Any) -> bool:
            try:
                self._templates.apply(to_json({**alone, "tools": tools}))
            except ValueError:
                return False
            return True

        if not request["tools"] or can_show(*request["tools"]):  # the template refuses the conversation itself
            raise error
        shown, changed = shown_tools(request["tools"], can_show)
        if not changed:
            raise error
        return self._templates.apply(to_json({**request, "tools": shown})), changed

    def apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Literal["auto", "required", "none"] = "auto",
        parallel_tool_calls: bool | None = None,
        json_schema: Any = None,
        grammar: str = "",
        enable_thinking: bool | None = None,
        reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] = "auto",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | Literal["", "content", "reasoning_content"] = False,
    ) -> ChatParams:
        """Render a conversation; messages and tools are in OpenAI's form.

        `apply_request` takes a whole request as clients send it.

        Args:
            messages: the conversation; content is text, or a list of text parts.
            tools: functions that the model may call.
            tool_choice: "required": it has to call one, and writes nothing before that but thoughts.
            parallel_tool_calls: whether it may call more than one; None = if the template can express that.
            json_schema: schema of the content.
            grammar: GBNF of the answer; not together with tools.
            enable_thinking: the template's variable; None = whether it supports reasoning.
            reasoning_format: "none" leaves the reasoning in the content.
            chat_template_kwargs: variables for the template.
            add_generation_prompt: end with the beginning of the model's message.
            continue_final_message: the answer goes on with the last message: with its content, or its reasoning.

        Raises:
            ValueError: the conversation is invalid, the template refuses it, or it is beyond a limit (`limits`).
        """
        given = list(map(as_shown, tools)) if tools else None
        is_framed = given is not None and tool_choice != "none" and not self.takes_tools
        is_forced = given is not None and tool_choice == "required"
        request = {
            "messages": list(messages),
            "tools": None if is_framed else given,
            "framed_tools": given if is_framed else None,
            "tool_choice": tool_choice,
            "one_call": parallel_tool_calls is False,
            "parallel_tool_calls": (
                self.caps["supports_parallel_tool_calls"] if parallel_tool_calls is None else parallel_tool_calls
            ),
            "json_schema": None if is_forced else json_schema,  # there is no content
            "grammar": grammar,
            "enable_thinking": self.supports_thinking if enable_thinking is None else enable_thinking,
            # a thought is not left in the content if there may be none
            "reasoning_format": "auto" if is_forced and reasoning_format == "none" else reasoning_format,
            "chat_template_kwargs": dict(chat_template_kwargs or {}),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        check_messages(messages)
        if given is not None:
            check_tools(given)
        text = to_json(request)
        if given is not None and is_framed:
            text = to_json({**request, "messages": framed(messages, given)})
        changed: list[Any] = []
        try:
            params = self._templates.apply(text)
        except TemplateLimitError:  # it would take as long again
            raise
        except ValueError as e:
            params, changed = self._with_plainer_tools(request, e)
        whole = SchemaGrammar("")
        if params["grammar"]:
            whole = complete(params["grammar"], params["schemas"], tools or (), changed)
            log_loosened(whole.loosened)
        begin = params["generation_prompt"]
        # what messages begin with, where llama.cpp does not say it
        delimiters = ((role, text.strip()) for role, text in self._beginnings.items() if text.strip())
        triggers = tuple(GrammarTrigger(_TRIGGER_TYPES[kind], value) for kind, value in params["grammar_triggers"])
        return ChatParams(
            prompt=params["prompt"],
            grammar=whole.text or grammar,
            loosened=whole.loosened,
            grammar_lazy=params["grammar_lazy"],
            grammar_begins_in_prompt=bool(whole.text) and not params["grammar_lazy"],
            grammar_triggers=triggers,
            preserved_tokens=tuple(params["preserved_tokens"]),
            additional_stops=tuple(params["additional_stops"]),
            generation_prompt=begin,
            answer_begin=commonprefix((begin, self._beginnings.get("assistant", ""))),
            thinking_start_tag=params["thinking_start_tag"],
            thinking_end_tags=tuple(params["thinking_end_tags"]),
            message_delimiters=tuple(params["message_delimiters"]) or tuple(delimiters),
            format=params["format"],
            parser=params["parser"],
            is_continuation=bool(continue_final_message),
            is_forced=is_forced,
            begun=_begun(messages[-1], begin) if continue_final_message and messages else "",
        )


def _begun(message: Mapping[str, Any], prompt: str) -> str:
    """The content of a message, which the prompt ends with; empty if it has another form there."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)
    return text if prompt.endswith(text) else ""


def _find_beginnings(render: Callable[[list[dict[str, Any]]], str]) -> dict[str, str]:
    """[role]: the text before messages of users and assistants.

    Empty if the template shows messages in another way. render: raises ValueError for a conversation that it refuses.
    """
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(_TEXTS)]
    try:
        prompt = render(messages)
    except ValueError:
        return {}
    before, at = [], 0
    for text in _TEXTS:
        found = prompt.find(text, at)
        if found < 0:
            return {}
        before.append(prompt[at:found])
        at = found + len(text)
    # the end of a user's message does not belong to the next one
    assistant = _common_end(before[1::2]).removeprefix(prompt[at:])
    return {"user": _common_end(before[0::2]), "assistant": assistant}


def _common_end(texts: list[str]) -> str:
    return commonprefix([text[::-1] for text in texts])[::-1]
