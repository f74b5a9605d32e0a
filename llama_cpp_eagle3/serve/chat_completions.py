"""/v1/chat/completions and /apply-template: llama.cpp's templates and parsers around a completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..chat import CONSTRAINTS, THINKING_FIELDS, CallForm, ChatParams, call_form, in_one_form
from ..chat.conversation import Conversation, read_conversation
from ..chat.message import NewText, OpenAIChoice, logprob_of
from ..chat.sent_tokens import SentToken
from ..engine import Output
from ..media import load_base64_or_url
from .answer import Answer, Progress
from .api_errors import invalid
from .completions import llama_end
from .fields import COMPLETION_FIELDS, Completion, parse
from .other_fields import check_others
from .queue import Place
from .reply import FINGERPRINT, Reply, new_text, progress_of, who_drafted
from .server import Server

_BUDGETS = ("reasoning_budget_tokens", "thinking_budget_tokens")
CHAT_FIELDS = (COMPLETION_FIELDS - {"suffix"}) | {
    *("messages", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "top_logprobs"),
    *("chat_template_kwargs", "reasoning_effort", "reasoning_format", "reasoning_budget_message", *_BUDGETS),
    *("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_file", *THINKING_FIELDS),
}
"""Fields that are read."""
_OWN = CONSTRAINTS | {"logprobs", "top_logprobs", "suffix", "echo"}
_N_PROBS = 20


def prepare_chat(server: Server, body: dict[str, Any], place: Place) -> ChatReply:
    """A request to /v1/chat/completions."""
    check_others(body, CHAT_FIELDS, server.ignored)
    reply = prepare_message(server, body, place)
    return ChatReply(server, *reply, body.get("top_logprobs"), form=call_form(body))


def count_tokens(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """/v1/chat/completions/input_tokens: the number of tokens of a request's prompt, images included."""
    chat = conversation(server, body)
    try:
        n_tokens = len(chat.prompt(server.tokenizer.tokenize).tokens)
    except ValueError as e:
        raise invalid(str(e)) from None
    return {"input_tokens": n_tokens, "object": "response.input_tokens"}


def apply_template(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """/apply-template: a request's prompt."""
    return {"prompt": conversation(server, body).params.prompt}


def conversation(server: Server, body: dict[str, Any]) -> Conversation:
    """A request's conversation as a prompt, with rules for the answer.

    Raises:
        ApiError: the request is invalid.
    """
    options = server.options
    if any(name in body for name in ("chat_template", "chat_template_file")):
        raise invalid("Field 'chat_template': templates are programs, and taken from the server's flags only")

    def load(source: Any, deadline: float) -> bytes:
        if isinstance(source, str) and source[:4].lower() == "http":
            server.executor.detach()  # other requests need not wait for a slow server
        return load_base64_or_url(source, allow_http=options.media_http, deadline=deadline)

    try:
        found = read_conversation(
            body,
            server.templates,
            projector=server.projector,
            load=load,
            left_out=server.left_out,
            chat_template_kwargs=options.chat_template_kwargs,
            enable_thinking=options.enable_thinking,
            reasoning_format=options.reasoning_format,
            prefill_assistant=options.prefill_assistant,
        )
    except (ValueError, RecursionError) as e:
        raise invalid(str(e) or type(e).__name__) from None
    if found.files:  # without files it is checked when it is tokenized
        server.tokenizer.check_length(found.params.prompt)
    return found


def prepare_message(server: Server, body: dict[str, Any], place: Place) -> tuple[list[Answer], ChatParams]:
    """Prepare the answers to a conversation, and what parses them.

    Raises:
        ApiError: the request is invalid, or there is no room.
    """
    try:
        body = in_one_form(body)
    except ValueError as e:
        raise invalid(str(e)) from None
    given = {name: body[name] for name in body if name not in _OWN} | {"n_probs": _n_probs(body)}
    c = parse(Completion, given, server.options.defaults)
    if c.n_probs and c.stream and body.get("tools"):
        raise invalid("logprobs is not supported with tools + stream")
    place.take(c.n)
    chat = conversation(server, body)
    params = chat.params
    budget = next((body[name] for name in _BUDGETS if body.get(name) is not None), -1)
    if type(budget) is not int or budget < -1:
        names = f"'{_BUDGETS[0]}', or a budget of thinking by another name"
        raise invalid(f"Field {names}: expected a number of tokens, or -1 for no limit, found {budget!r:.40}")
    message = body.get("reasoning_budget_message", server.options.reasoning_budget_message)
    if not isinstance(message, str):
        raise invalid("Field 'reasoning_budget_message': expected a string")
    try:
        request = chat.request(
            *(server.tokenizer.tokenize, server.tokenizer.vocab),
            *(server.options.reasoning_budget if budget == -1 else budget, message),
        )
    except ValueError as e:
        raise invalid(str(e)) from None
    if not request.tokens:
        raise invalid("the chat template renders these messages as an empty prompt: send one with text")
    stops = params.additional_stops
    c.stop = [] if params.is_forced else c.stop
    answers = server.make_answers(
        *([request.tokens], c, request.sampling, params.loosened, stops, params.grammar_field), **request.options
    )
    return answers, params


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


class ChatReply(Reply):
    """OpenAI's form of a chat, with llama-server's figures."""

    def __init__(
        self,
        server: Server,
        answers: list[Answer],
        params: ChatParams,
        n_top: int | None,
        *,
        form: CallForm,
    ):
        """Make the reply of answers that are not started yet.

        Args:
            server: the server.
            answers: the choices.
            params: of the conversation.
            n_top: alternatives of each token, if the request asks for them; 0 leaves the token's own probability.
            form: of the calls.
        """
        super().__init__(server, answers, "chatcmpl-")
        self._n_top = n_top
        self._head = {"id": self.id, "created": self.created, "model": self.model, "system_fingerprint": FINGERPRINT}
        show = self._show if answers[0].completion.n_probs else None
        self._choices = [OpenAIChoice(params, self._head, i, show=show, form=form) for i in range(len(answers))]

    def progress(self, answer: Answer, progress: Progress, timings: dict[str, Any] | None) -> list[Any]:
        """An event with the role, for each chunk of the prompt."""
        chunk = self._choices[answer.index].role() | {"prompt_progress": progress_of(answer, progress)}
        return [chunk if timings is None else chunk | {"timings": timings}]

    def token(self, answer: Answer, output: Output, timings: dict[str, Any] | None) -> list[Any]:
        """Deltas. The last one has timings."""
        choice = self._choices[answer.index]
        begin, chunks = choice.begin(), choice.add(new_text(self.server.tokenizer.vocab, answer, output))
        if chunks:
            last = chunks[-1]
            last["choices"][0] |= who_drafted(output)
            if timings is not None:
                last["timings"] = timings
            if answer.completion.stream_options.continuous_usage_stats:
                last["usage"] = super().usage()  # thoughts are counted at the end
        return [*begin, *chunks]

    def end(self, answer: Answer, text: str) -> list[Any]:
        """The last deltas, and the finish reason."""
        choice = self._choices[answer.index]
        chunks = [*choice.begin(), *choice.add(NewText(text), is_partial=False)]
        last = choice.end(answer.finish_reason)
        if not answer.completion.stream_options.include_usage:
            last |= answer.figures()
        if answer.completion.verbose:
            last["__verbose"] = llama_end(self.server, answer, text)
        return [*chunks, last]

    def _show(self, token: SentToken) -> dict[str, Any]:
        vocab, post = self.server.tokenizer.vocab, self.answers[0].completion.post_sampling_probs
        return logprob_of(vocab, token.logprob, self._n_top, post=post, piece=token.piece)

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's counts of tokens, with those of thoughts."""
        pairs = zip(self.answers, self._choices, strict=True)
        n_thought = sum(answer.n_tokens_of(choice.message.n_thought) for answer, choice in pairs)
        return {**super().usage(), "completion_tokens_details": {"reasoning_tokens": n_thought}}

    def stream_end(self) -> bytes:
        """Usage, if it was requested, and OpenAI's end."""
        return self.openai_end({**self._head, "object": "chat.completion.chunk"})

    def response(self) -> Any:
        """The choices of the whole answer."""
        choices = []
        for answer, choice in zip(self.answers, self._choices, strict=True):
            parts = [new_text(self.server.tokenizer.vocab, answer, output) for output in answer.outputs]
            choices.append(choice.whole(parts, answer.finish_reason))
        first = self.answers[0]
        head = {**self._head, "object": "chat.completion"}
        data = {**head, "choices": choices, "usage": self.usage(), **first.figures()}
        if first.completion.verbose:
            data["__verbose"] = llama_end(self.server, first)
        return data
