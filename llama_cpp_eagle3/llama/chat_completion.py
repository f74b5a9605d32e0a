"""`Eagle3Llama.create_chat_completion` with chat_format="auto": an answer in OpenAI's form, whole or as it grows."""

from __future__ import annotations

import inspect
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llama_cpp import Llama

from ..chat import CallForm
from ..chat.conversation import Conversation, Tokenize, read_conversation
from ..chat.message import NewText, OpenAIChoice, logprob_of
from ..chat.sent_tokens import SentToken
from ..chat.templates import ChatParams, ChatTemplates
from ..config.serve_options import AllowHttp
from ..engine import Engine, Request, Sequence, Vocab
from ..media import Projector, read_media
from .generate_batch import make_request
from .sampling_arguments import SamplingDefaults, checked, grammar_text

Json = dict[str, Any]

REQUEST_OPTIONS = (
    *(
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "parallel_tool_calls",
        "response_format",
        "json_schema",
        "chat_template_kwargs",
    ),
    *("reasoning_effort", "reasoning_format", "add_generation_prompt", "continue_final_message"),
)
"""Options that `apply_request` reads besides the messages."""
_MORE_OPTIONS = {*REQUEST_OPTIONS, "enable_thinking", "reasoning_budget", "reasoning_budget_message"}


def chat_arguments(args: tuple[Any, ...], options: Mapping[str, Any]) -> Json:
    """The arguments of `create_chat_completion`: Llama's with their defaults, and ours.

    Raises:
        TypeError: a name that neither has.
        ValueError: a value of another type.
    """
    signature = inspect.signature(Llama.create_chat_completion)
    theirs = {name: value for name, value in options.items() if name in signature.parameters}
    unknown = set(options) - set(theirs) - _MORE_OPTIONS
    if unknown:
        raise TypeError(f"create_chat_completion() got unexpected arguments {sorted(unknown)}")
    bound = signature.bind(None, *args, **theirs)
    bound.apply_defaults()
    arguments = checked({**options, **bound.arguments})
    del arguments["self"]
    return arguments


def read_chat(
    arguments: Json, templates: ChatTemplates, projector: Projector | None, allow_http: AllowHttp
) -> Conversation:
    """Read the messages and the files that they name, and render them. arguments: from `chat_arguments`.

    Raises:
        MediaError: a file cannot be read.
        ValueError: the template refuses the conversation, or functions have a wrong form.
    """
    body = {name: arguments.get(name) for name in REQUEST_OPTIONS} | {"messages": list(arguments["messages"])}
    grammar = arguments.get("grammar")
    if grammar is not None:
        body["grammar"] = grammar if isinstance(grammar, str) else grammar_text(grammar)[0]
    return read_conversation(
        body,
        templates,
        projector=projector,
        load=lambda source, deadline: read_media(source, allow_http=allow_http, deadline=deadline),
        enable_thinking=arguments.get("enable_thinking"),
    )


def request_of(
    conversation: Conversation, arguments: Json, engine: Engine, tokenize: Tokenize, defaults: SamplingDefaults
) -> Request:
    """The engine's request of what `read_chat` returned.

    Raises:
        ValueError, ContextFullError: it cannot be generated.
    """
    chat = conversation.request(
        tokenize, engine.vocab, arguments.get("reasoning_budget", -1), arguments.get("reasoning_budget_message", "")
    )
    sampling = defaults.sampling({**arguments, "grammar": None})  # the grammar is the conversation's, with the tools'
    max_tokens, stop = arguments["max_tokens"], arguments["stop"] or []
    stop = [] if conversation.params.is_forced else stop
    request = make_request(
        0,
        chat.tokens,
        replace(sampling, **chat.sampling),
        max_tokens=None if max_tokens is None else min(max_tokens, engine.n_ctx - len(chat.tokens)),
        stop=[*([stop] if isinstance(stop, str) else stop), *conversation.params.additional_stops],
        logprobs=(arguments["top_logprobs"] or 0) if arguments["logprobs"] else None,
        engine=engine,
        media=chat.options["media"],
    )
    return replace(request, **chat.options)


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """One answer that the engine generates."""

    params: ChatParams
    model: str
    """The model's name in answers."""
    vocab: Vocab
    begin: Callable[[], tuple[Sequence, Iterator[str]]]
    """Starts the generation; returns the sequence, and its text as it comes."""
    form: CallForm
    """Of its calls."""

    def whole(self) -> Json:
        """The chat.completion."""
        sequence, texts = self.begin()
        choice = self._choice(sequence)
        found = choice.whole([*self._parts(sequence, texts)], _reason(sequence))
        n_prompt, n_generated = sequence.n_prompt, len(sequence.generated)
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n_generated, "total_tokens": n_prompt + n_generated}
        return {**self._head(), "object": "chat.completion", "choices": [{"logprobs": None, **found}], "usage": usage}

    def stream(self) -> Iterator[Json]:
        """The chat.completion.chunks: the role, the message's deltas, the finish reason."""
        sequence, texts = self.begin()
        choice = self._choice(sequence)
        yield from map(_with_logprobs, choice.begin())
        for part in self._parts(sequence, texts):
            yield from map(_with_logprobs, choice.add(part))
        yield from map(_with_logprobs, choice.add(NewText(""), is_partial=False))
        yield _with_logprobs(choice.end(_reason(sequence)))

    def _choice(self, sequence: Sequence) -> OpenAIChoice:
        show = None if sequence.request.logprobs is None else self._show
        return OpenAIChoice(self.params, self._head(), show=show, form=self.form)

    def _parts(self, sequence: Sequence, texts: Iterator[str]) -> Iterator[NewText]:
        n_told, special = 0, sequence.request.special
        for text in texts:
            found = sequence.result.logprobs[n_told:]
            n_told += len(found)
            yield NewText(text, [SentToken(self.vocab.piece(x.token, x.token in special), x) for x in found])

    def _show(self, token: SentToken) -> Json:
        return logprob_of(self.vocab, token.logprob, special=True, piece=token.piece)

    def _head(self) -> Json:
        return {"id": f"chatcmpl-{uuid.uuid4()}", "created": int(time.time()), "model": self.model}


def _with_logprobs(chunk: Json) -> Json:
    chunk["choices"][0].setdefault("logprobs", None)
    return chunk


def _reason(sequence: Sequence) -> str:
    return "stop" if sequence.result.finish_reason == "stop" else "length"
