"""`Eagle3Llama.create_chat_completion` with chat_format="auto": an answer in OpenAI's form, whole or as it grows."""

from __future__ import annotations

import inspect
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any, Literal

from llama_cpp import Llama

from ..batch import make_request
from ..engine import Engine, Media, Request, Sequence, TokenLogprob, Vocab
from ..media import TIMEOUT_S, AllowHttp, Projector, read_media, take_media
from ..sampling_arguments import SamplingDefaults
from .blocks import LeftOut
from .boundaries import message_boundaries, thought_ends
from .grammar import grammar_text
from .history import read_messages
from .parser import Message
from .request import apply_request
from .structured_output import structured_output
from .templates import ChatParams, ChatTemplates

Json = dict[str, Any]

REQUEST_OPTIONS = (
    *("tools", "tool_choice", "parallel_tool_calls", "response_format", "json_schema", "chat_template_kwargs"),
    *("reasoning_effort", "reasoning_format", "add_generation_prompt", "continue_final_message"),
)
"""What `apply_request` looks at beside the messages."""
_LEFT_OUT = LeftOut()
_MORE_OPTIONS = {*REQUEST_OPTIONS, "enable_thinking", "reasoning_budget", "reasoning_budget_message"}


def chat_arguments(args: tuple[Any, ...], options: Mapping[str, Any]) -> Json:
    """The arguments of `create_chat_completion`: Llama's with their defaults, and ours.

    Raises:
        TypeError: a name that neither has.
    """
    signature = inspect.signature(Llama.create_chat_completion)
    theirs = {name: value for name, value in options.items() if name in signature.parameters}
    unknown = set(options) - set(theirs) - _MORE_OPTIONS
    if unknown:
        raise TypeError(f"create_chat_completion() got unexpected arguments {sorted(unknown)}")
    bound = signature.bind(None, *args, **theirs)
    bound.apply_defaults()
    arguments = {**options, **bound.arguments}
    del arguments["self"]
    return arguments


class Chat:
    """A conversation to be answered: the arguments of `create_chat_completion`, and the files that messages name."""

    def __init__(self, arguments: Json, projector: Projector | None, allow_http: AllowHttp):
        """Read the files, if there is a projector.

        Args:
            arguments: as `chat_arguments` gives them.
            projector: encodes the files; None: messages may not name any.
            allow_http: see `Eagle3Llama`, media_http.

        Raises:
            MediaError: a file cannot be read.
            ValueError: functions were given, which the templates do not know; or messages are not as they should be.
        """
        if arguments.get("functions") is not None or arguments.get("function_call") is not None:
            raise ValueError("chat_format='auto' takes tools and tool_choice instead of functions and function_call")
        self.arguments, self._projector = arguments, projector
        self._messages: Any = read_messages(list(arguments["messages"]), _LEFT_OUT)
        self._files: list[Any] = []
        if projector is not None:
            deadline = time.monotonic() + TIMEOUT_S
            self._messages, self._files = take_media(
                self._messages,
                projector.marker,
                lambda source: read_media(source, allow_http=allow_http, deadline=deadline),
            )

    def apply(self, templates: ChatTemplates) -> ChatParams:
        """Format the prompt by the model's template.

        Raises:
            ValueError: the template does not take the conversation.
        """
        arguments = self.arguments
        body = {name: arguments[name] for name in REQUEST_OPTIONS if arguments.get(name) is not None}
        grammar = arguments.get("grammar")
        if grammar is not None:
            body["grammar"] = grammar if isinstance(grammar, str) else grammar_text(grammar)[0]
        return apply_request(
            templates,
            {"messages": self._messages, **body},
            enable_thinking=arguments.get("enable_thinking"),
            has_markers=bool(self._files),
        )

    def request(
        self,
        params: ChatParams,
        engine: Engine,
        tokenize: Callable[..., list[int]],
        defaults: SamplingDefaults,
    ) -> Request:
        """The engine's request.

        Args:
            params: what `apply` returned.
            engine: that will answer.
            tokenize: `Llama.tokenize`.
            defaults: sampling options that the arguments leave out.

        Raises:
            ValueError, ContextFullError: it cannot be generated.
        """
        arguments = self.arguments

        def parts(text: str) -> list[int]:
            return tokenize(text.encode(), add_bos=False, special=True)

        rules = structured_output(
            params,
            parts,
            lambda token: engine.vocab.piece(token, special=True),
            reasoning_budget=arguments.get("reasoning_budget", -1),
            reasoning_message=arguments.get("reasoning_budget_message", ""),
        )
        media: SequenceOf[Media] = ()
        if self._projector is not None and self._files:
            prompt = self._projector.prompt(params.prompt, self._files)
            tokens, media = prompt.tokens, prompt.media
        else:
            tokens = tokenize(params.prompt.encode(), add_bos=True, special=True)
        sampling = defaults.sampling({**arguments, "grammar": None})  # the grammar is in params, with the template's
        max_tokens, stop = arguments["max_tokens"], arguments["stop"] or []
        request = make_request(
            0,
            tokens,
            replace(sampling, **rules.options),
            max_tokens=None if max_tokens is None else min(max_tokens, engine.n_ctx - len(tokens)),
            stop=[*([stop] if isinstance(stop, str) else stop), *params.additional_stops],
            logprobs=(arguments["top_logprobs"] or 0) if arguments["logprobs"] else None,
            engine=engine,
            media=media,
        )
        return replace(
            request,
            special=rules.special,
            boundaries=message_boundaries(params, tokens, parts),
            thought_ends=thought_ends(params, parts),
        )


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """One answer that the engine generates."""

    params: ChatParams
    model: str
    """What it calls itself."""
    vocab: Vocab
    begin: Callable[[], tuple[Sequence, Iterator[str]]]
    """Have it generated: the sequence, and its text as it comes."""

    def whole(self) -> Json:
        """The chat.completion.

        Raises:
            ValueError: the model wrote what the template's format does not allow.
        """
        sequence, texts = self.begin()
        parser = self.params.new_parser()
        parser.update("".join(texts), is_partial=False)
        message = parser.message
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(sequence, 0),
            "finish_reason": _finish_reason(sequence, message),
        }
        n_prompt, n_generated = sequence.n_prompt, len(sequence.generated)
        usage = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_generated,
            "total_tokens": n_prompt + n_generated,
        }
        return {**_head("chat.completion", self.model), "choices": [choice], "usage": usage}

    def stream(self) -> Iterator[Json]:
        """The chat.completion.chunks: the role, what is new of the message, the reason of the end.

        Raises:
            ValueError: as `whole`.
        """
        sequence, texts = self.begin()
        head = _head("chat.completion.chunk", self.model)
        parser = self.params.new_parser()
        n_logprobs = 0

        def chunk(delta: Message, reason: str | None = None) -> Json:
            nonlocal n_logprobs
            logprobs = self._logprobs(sequence, n_logprobs)
            n_logprobs = len(sequence.result.logprobs)
            choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return {**head, "choices": [choice]}

        yield chunk({"role": "assistant", "content": None})
        for text in texts:
            for delta in parser.update(text):
                yield chunk(delta)
        for delta in parser.update("", is_partial=False):
            yield chunk(delta)
        yield chunk({}, _finish_reason(sequence, parser.message))

    def _logprobs(self, sequence: Sequence, start: int) -> Json | None:
        """Of the tokens from `start` on."""
        if sequence.request.logprobs is None:
            return None
        logprobs = sequence.result.logprobs[start : len(sequence.generated)]
        return {"content": [self._logprob(logprob) for logprob in logprobs], "refusal": None}

    def _logprob(self, logprob: TokenLogprob) -> Json:
        top = [self._token(token, p) for token, p in logprob.top.items()]
        return {**self._token(logprob.token, logprob.logprob), "top_logprobs": top}

    def _token(self, token: int, logprob: float) -> Json:
        piece = self.vocab.piece(token, special=True)
        return {"token": piece.decode("utf-8", errors="replace"), "bytes": list(piece), "logprob": logprob}


def _finish_reason(sequence: Sequence, message: Message) -> Literal["stop", "length", "tool_calls"]:
    if sequence.result.finish_reason != "stop":
        return "length"
    return "tool_calls" if message.get("tool_calls") else "stop"


def _head(kind: str, model: str) -> Json:
    return {"id": f"chatcmpl-{uuid.uuid4()}", "object": kind, "created": int(time.time()), "model": model}
