"""/v1/chat/completions and /apply-template: llama.cpp's templates and parsers around a completion."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from ..chat import (
    CONSTRAINTS,
    ChatParams,
    ChatParser,
    StructuredOutput,
    apply_request,
    message_boundaries,
    read_messages,
    structured_output,
    thought_ends,
)
from ..engine import Output, TokenLogprob
from ..media import TIMEOUT_S, Prompt, load_base64_or_url, take_media
from .answer import Answer, Progress
from .completions import llama_end
from .errors import invalid
from .queue import Place
from .reply import DONE, FINGERPRINT, Reply, probs_of, progress_of
from .schema import Completion, parse
from .server import Server

_OWN = CONSTRAINTS | {"prompt", "logprobs", "top_logprobs", "suffix", "echo", "verbosity"}
_BUDGETS = ("reasoning_budget_tokens", "thinking_budget_tokens")
_N_PROBS = 20
_log = logging.getLogger(__name__)


def prepare_chat(server: Server, body: Any, place: Place) -> ChatReply:
    """A request to /v1/chat/completions."""
    return ChatReply(server, *prepare_message(server, body, place), body.get("top_logprobs"))


def count_tokens(server: Server, body: Any) -> dict[str, Any]:
    """/v1/chat/completions/input_tokens: of a request's prompt, its images too."""
    n_tokens = len(read_prompt(server, *conversation(server, body)).tokens)
    return {"input_tokens": n_tokens, "object": "response.input_tokens"}


def apply_template(server: Server, body: Any) -> dict[str, Any]:
    """/apply-template: a request's prompt."""
    return {"prompt": conversation(server, body)[0].prompt}


def conversation(server: Server, body: Any) -> tuple[ChatParams, list[bytes]]:
    """A request's conversation as a prompt with rules for the answer, and the files of its images.

    A marker stands for each of these in the prompt.

    Raises:
        ApiError: the conversation is not as it should be.
    """
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    if any(name in body for name in ("chat_template", "chat_template_file")):
        raise invalid("Field 'chat_template': templates are programs, and taken from the server's flags only")
    projector = server.llm.projector
    files: list[Any] = []
    try:
        messages = read_messages(body.get("messages"), server.left_out)
        if projector is not None and isinstance(messages, list):
            deadline = time.monotonic() + TIMEOUT_S
            messages, files = take_media(
                messages,
                projector.marker,
                lambda source: _load(server, source, deadline),
            )
        body = {**body, "messages": messages}
        params = apply_request(
            server.templates,
            {name: value for name, value in body.items() if value is not None},
            chat_template_kwargs=server.options.chat_template_kwargs,
            enable_thinking=server.options.enable_thinking,
            reasoning_format=server.options.reasoning_format,
            prefill_assistant=server.options.prefill_assistant,
            has_markers=bool(files),
        )
    except (ValueError, RecursionError) as e:
        raise invalid(str(e) or type(e).__name__) from None
    return params, files


def _load(server: Server, source: Any, deadline: float) -> bytes:
    if isinstance(source, str) and source[:4].lower() == "http":
        server.executor.detach()  # other requests need not wait for a slow server
    return load_base64_or_url(source, allow_http=server.options.media_http, deadline=deadline)


def read_prompt(server: Server, params: ChatParams, files: list[bytes]) -> Prompt:
    """Tokens of a prompt, and its images.

    Raises:
        ApiError: an image cannot be used.
    """
    server.tokenizer.check_length(params.prompt)
    if not files or server.llm.projector is None:
        return Prompt(server.tokenizer.tokenize(params.prompt, True), [])
    try:
        return server.llm.projector.prompt(params.prompt, files)
    except ValueError as e:
        raise invalid(str(e)) from None


def prepare_message(server: Server, body: Any, place: Place) -> tuple[list[Answer], ChatParams]:
    """Prepare the answers to a conversation, and what parses them.

    Raises:
        ApiError: it is not as it should be, or there is no room.
    """
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    c = parse(Completion, {name: body[name] for name in body if name not in _OWN}, server.options.defaults)
    c = c.model_copy(update={"n_probs": _n_probs(body)})
    if c.n_probs and c.stream and body.get("tools"):
        raise invalid("logprobs is not supported with tools + stream")
    place.take(c.n)
    params, files = conversation(server, body)
    c = c.model_copy(update={"stop": [*_stops(c), *params.additional_stops]})
    prompt = read_prompt(server, params, files)
    if not prompt.tokens:
        raise invalid("the template makes nothing of these messages")
    rules = _rules(server, params, body)
    # without a grammar of its own it is the one that the server was started with, if any
    options = {name: value for name, value in rules.options.items() if name != "grammar" or value is not None}
    answers = server.make_answers(
        *([prompt.tokens], c),
        special=rules.special,
        media=prompt.media,
        loosened=params.loosened,
        boundaries=message_boundaries(params, prompt.tokens, server.tokenizer.tokenize),
        thought_ends=thought_ends(params, server.tokenizer.tokenize),
        **options,
    )
    return answers, params


def _rules(server: Server, params: ChatParams, body: Mapping[str, Any]) -> StructuredOutput:
    """How the answer is to be sampled: grammar, triggers, a limit of the reasoning."""
    budget = next((body[name] for name in _BUDGETS if body.get(name) is not None), -1)
    if type(budget) is not int or budget < -1:
        raise invalid(f"Field '{_BUDGETS[0]}': expected a number of tokens, or -1 for no limit")
    message = body.get("reasoning_budget_message", server.options.reasoning_budget_message)
    if not isinstance(message, str):
        raise invalid("Field 'reasoning_budget_message': expected a string")
    try:
        return structured_output(
            params,
            server.tokenizer.tokenize,
            lambda token: server.tokenizer.vocab.piece(token, True),
            reasoning_budget=server.options.reasoning_budget if budget == -1 else budget,
            reasoning_message=message,
        )
    except ValueError as e:
        raise invalid(str(e)) from None


def _stops(c: Completion) -> list[str]:
    return [c.stop] if isinstance(c.stop, str) else c.stop


def _n_probs(body: Mapping[str, Any]) -> int:
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if wanted is not None and not isinstance(wanted, bool):
        raise invalid("Field 'logprobs': expected true or false")
    if top is not None and (type(top) is not int or top < 0):
        raise invalid("Field 'top_logprobs': expected a number")
    if not wanted:
        if top:
            raise invalid("top_logprobs requires logprobs to be set to true")
        return 0
    return _N_PROBS if top is None else max(1, top)


class Conversation:
    """An answer as it is parsed."""

    def __init__(self, params: ChatParams):
        self.parser: ChatParser = params.new_parser()
        self.text = ""
        self._unparsed: dict[str, Any] | None = None
        """The message once the model has written what the format does not allow."""

    def add(self, text: str, is_partial: bool) -> list[dict[str, Any]]:
        """Add text to the answer; returns OpenAI's deltas.

        A text that does not have the format of the chat template is sent as it is, after what was sent before: a model
        can write anything, and may be cut off anywhere.
        """
        self.text += text
        if self._unparsed is None:
            try:
                return self.parser.update(text, is_partial)
            except ValueError as e:
                _log.warning("an answer does not have the format of its chat template: %s", str(e)[:200])
                self._unparsed = dict(self.parser.message)
        sent = self._unparsed.get("content") or ""
        if self._unparsed.get("tool_calls") or not self.text.startswith(sent):
            return []  # it cannot be taken back
        self._unparsed["content"] = self.text
        return [{"content": self.text[len(sent) :]}] if len(self.text) > len(sent) else []

    @property
    def message(self) -> dict[str, Any]:
        """The whole answer."""
        message = dict(self.parser.message if self._unparsed is None else self._unparsed)
        if not message.get("content") and not message.get("tool_calls") and not message.get("reasoning_content"):
            message["content"] = message.get("content") or ""
        return {"role": "assistant", **message}


class ChatReply(Reply):
    """OpenAI's form of a chat, with llama-server's figures: the role, what is new of the message, the reason."""

    def __init__(self, server: Server, answers: list[Answer], params: ChatParams, n_top: int | None):
        """n_top: alternatives of each token, if the request asks for them; 0 leaves the token's own probability."""
        super().__init__(server, answers, "chatcmpl-")
        self._n_top = n_top
        self._conversations = [Conversation(params) for _ in answers]
        self._head = {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }
        self._begun: set[int] = set()
        self._probs: dict[int, list[TokenLogprob]] = {}

    def _chunk(self, answer: Answer, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": answer.index, "delta": delta, "finish_reason": finish_reason}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def _begin(self, answer: Answer) -> list[Any]:
        """The role, before anything else."""
        if answer.index in self._begun:
            return []
        self._begun.add(answer.index)
        return [self._chunk(answer, {"role": "assistant", "content": None})]

    def progress(self, answer: Answer, progress: Progress, timings: dict[str, Any] | None) -> list[Any]:
        """The role, each time."""
        self._begun.add(answer.index)
        chunk = self._chunk(answer, {"role": "assistant", "content": None})
        chunk["prompt_progress"] = progress_of(answer, progress)
        return [chunk if timings is None else chunk | {"timings": timings}]

    def token(self, answer: Answer, output: Output, timings: dict[str, Any] | None) -> list[Any]:
        """Deltas. Probabilities and timings go with the last one; the former wait if there is none."""
        if output.logprob is not None:
            self._probs.setdefault(answer.index, []).append(output.logprob)
        begin = self._begin(answer)
        chunks = self._deltas(answer, output.text, True)
        if chunks:
            last = chunks[-1]
            last["choices"][0]["drafted"] = output.drafted
            probs = self._probs.pop(answer.index, None)
            if probs:
                last["choices"][0]["logprobs"] = {"content": [self._prob(answer, prob) for prob in probs]}
            if timings is not None:
                last["timings"] = timings
            if answer.completion.stream_options.continuous_usage_stats:
                last["usage"] = self.usage()
        return [*begin, *chunks]

    def end(self, answer: Answer, text: str) -> list[Any]:
        """The last deltas, and the reason."""
        chunks = [*self._begin(answer), *self._deltas(answer, text, False)]
        last = self._chunk(answer, {}, self._reason(answer, self._conversations[answer.index].message))
        if not answer.completion.stream_options.include_usage:
            last |= answer.figures()
        if answer.completion.verbose:
            last["__verbose"] = llama_end(self.server, answer, text)
        return [*chunks, last]

    def _deltas(self, answer: Answer, text: str, is_partial: bool) -> list[Any]:
        return [self._chunk(answer, delta) for delta in self._conversations[answer.index].add(text, is_partial)]

    def _prob(self, answer: Answer, logprob: TokenLogprob) -> dict[str, Any]:
        return probs_of(self.server.tokenizer.vocab, logprob, answer.completion.post_sampling_probs, self._n_top)

    @staticmethod
    def _reason(answer: Answer, message: Mapping[str, Any]) -> str:
        if answer.finish_reason == "stop" and message.get("tool_calls"):
            return "tool_calls"
        return answer.finish_reason

    def stream_end(self) -> bytes:
        """Usage, if it was asked for, and OpenAI's end."""
        first = self.answers[0]
        if not first.completion.stream_options.include_usage:
            return DONE
        head = {**self._head, "object": "chat.completion.chunk", "choices": []}
        return self.encode({**head, "usage": self.usage(), **first.figures()}) + DONE

    def response(self) -> Any:
        """The choices of the whole answer."""
        choices = []
        for answer, conversation in zip(self.answers, self._conversations, strict=True):
            conversation.add(answer.text, is_partial=False)
            message = conversation.message
            choice: dict[str, Any] = {
                "index": answer.index,
                "message": message,
                "finish_reason": self._reason(answer, message),
            }
            if answer.probs:
                choice["logprobs"] = {"content": [self._prob(answer, logprob) for _, logprob in answer.probs]}
            choices.append(choice)
        first = self.answers[0]
        data = {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self.usage(),
            **first.figures(),
        }
        if first.completion.verbose:
            data["__verbose"] = llama_end(self.server, first)
        return data
