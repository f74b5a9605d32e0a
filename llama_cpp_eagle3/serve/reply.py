"""The reply to a request: its answers as they come, and what the JSON of all dialects shares."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..chat import ChatParams
from ..chat.message import GrowingMessage, NewText
from ..chat.sent_tokens import SentToken, SentTokens
from ..engine import Output, Vocab
from ..errors import ContextFullError
from .answer import Answer, Came, Progress
from .api_errors import ApiError, failed, invalid, out_of_memory, too_long
from .fields import generation_settings
from .jsons import dumps
from .queue import Place
from .server import Server, random_id

FINGERPRINT = f"b{LLAMA_CPP_PYTHON_VERSION}-eagle3-{__version__}"
"""The `system_fingerprint`: llama-server's begins with its build, too."""
DONE = b"data: [DONE]\n\n"
_PING = b":\n\n"
_LONG = 1e6  # seconds
_N_LARGE = 10_000  # tokens and log-probabilities


class Reply(ABC):
    """The answers to one request, whole or as the events of a stream. They are cancelled when the client has gone."""

    def __init__(self, server: Server, answers: list[Answer], prefix: str = "cmpl-"):
        """Make the reply of answers that are not started yet; prefix: the id's."""
        self.server, self.answers = server, answers
        self.stream = answers[0].completion.stream
        """Whether the client asked for a stream of events."""
        self.id, self.created, self.model = prefix + random_id(), int(time.time()), server.options.model_name
        self._came: list[Came] = []
        self._wake = asyncio.Event()
        for answer in answers:
            answer.receive = self._receive

    def _receive(self, came: Came) -> None:
        self._came.append(came)
        self._wake.set()

    async def batches(self, idle_seconds: float = _LONG) -> AsyncGenerator[list[Came], None]:
        """Yield what the engine sends, one batch for each of its steps. The caller adds it to the answers.

        idle_seconds: Seconds without a step after which an empty batch comes.

        Raises:
            ApiError: a sequence ended with an error.
        """
        n_left = len(self.answers)
        try:
            while n_left:
                # asyncio's timeouts would make a task of every wait, a timer makes none
                timer = asyncio.get_running_loop().call_later(idle_seconds, self._wake.set)
                try:
                    await self._wake.wait()
                finally:
                    timer.cancel()
                self._wake.clear()
                batch, self._came = self._came, []
                for answer, event, _ in batch:
                    if isinstance(event, Output) and event.finish_reason:
                        n_left -= 1
                        if event.finish_reason == "error":
                            raise _error_of(answer)
                yield batch
            if self.server.recorder is not None:
                for answer in self.answers:
                    self.server.recorder.add(answer)
        finally:
            if n_left:
                self.cancel()

    async def run(self) -> None:
        """Wait until all sequences have ended, for the whole response."""
        async for batch in self.batches():
            for answer, event, _ in batch:
                answer.add(event)

    @property
    def is_large(self) -> bool:
        """Whether making the whole response takes so long that a thread should."""
        return sum(_n_values(answer, answer.n_tokens, is_first=True) for answer in self.answers) > _N_LARGE

    @staticmethod
    def is_large_batch(batch: list[Came]) -> bool:
        """Whether making a batch's events takes so long: the first one of an answer may have an echoed prompt."""
        return sum(_n_values(answer, 1, is_first=not answer.outputs) for answer, *_ in batch) > _N_LARGE

    def cancel(self) -> None:
        """Cancel all sequences that run or wait."""
        for answer in self.answers:
            if answer.end is None:
                self.server.engine_thread.cancel(answer)

    def events(self, batch: list[Came], write: Callable[[Any], bytes] = dumps) -> bytes:
        """Encode a batch as a stream's events; write: encodes values as JSON."""
        data = b"" if batch else self.ping()
        for answer, event, timings in batch:
            answer.add(event)
            chunks: list[Any] = []
            if isinstance(event, Progress):
                chunks = self.progress(answer, event, timings)
            else:
                if event.token is not None:
                    chunks = self.token(answer, event, timings)
                if event.finish_reason:  # a token's own text is in its event already
                    chunks += self.end(answer, event.text if event.token is None else "")
            for chunk in chunks:
                data += self.encode(chunk, write)
        return data

    # methods that dialects override

    @staticmethod
    def encode(data: Any, write: Callable[[Any], bytes] = dumps) -> bytes:
        """Encode an event."""
        return b"data: " + write(data) + b"\n\n"

    def error(self, e: ApiError) -> bytes:
        """Encode the error that ends a stream."""
        return self.encode(e.body)

    def ping(self) -> bytes:
        """Encode what a client gets while nothing happens: a comment, unless its API has events that say nothing."""
        return _PING

    @abstractmethod
    def progress(self, answer: Answer, progress: Progress, timings: dict[str, Any] | None) -> list[Any]:
        """Return a stream's events for an evaluated chunk of the prompt."""

    @abstractmethod
    def token(self, answer: Answer, output: Output, timings: dict[str, Any] | None) -> list[Any]:
        """Return a stream's events for a token."""

    @abstractmethod
    def end(self, answer: Answer, text: str) -> list[Any]:
        """Return a stream's events for the end of an answer; text: the rest of its text."""

    def stream_end(self) -> bytes:
        """Return the bytes that end a stream; none by default."""
        return b""

    @abstractmethod
    def response(self) -> Any:
        """Return the whole response, if it is not streamed."""

    # figures

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's counts of tokens."""
        n_prompt = sum(answer.n_prompt for answer in self._prompts)
        n_tokens = sum(answer.n_tokens for answer in self.answers)
        return {
            "completion_tokens": n_tokens,
            "prompt_tokens": n_prompt,
            "total_tokens": n_prompt + n_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(answer.n_cached for answer in self._prompts)},
        }

    def openai_end(self, head: dict[str, Any]) -> bytes:
        """Encode OpenAI's end of a stream, after the usage if that was requested; head: of its event."""
        first = self.answers[0]
        if not first.completion.stream_options.include_usage:
            return DONE
        return self.encode({**head, "choices": [], "usage": self.usage(), **first.figures()}) + DONE

    @property
    def _prompts(self) -> Sequence[Answer]:
        """One answer of each prompt."""
        return self.answers[:: self.answers[0].completion.n]

    def log_fields(self) -> dict[str, Any]:
        """Return the figures for the access log."""
        answers, prompts = self.answers, self._prompts
        stats = [answer.sequence.result.stats for answer in answers]
        ttft = min((answer.t_first - answer.t_submit for answer in answers if answer.t_first), default=0.0)
        return {
            "n_prompt": sum(answer.n_prompt for answer in prompts),
            "n_cached": sum(answer.n_cached for answer in prompts),
            "cached_in": ",".join(sorted({answer.cached_in for answer in prompts} - {""})),
            "n_evaluated": sum(s.prompt_tokens for s in stats),
            "n_tokens": sum(answer.n_tokens for answer in answers),
            "n_drafted": sum(s.drafted for s in stats),
            "n_accepted": sum(s.accepted for s in stats),
            "ttft_ms": round(1e3 * ttft, 1),
            "finish": ",".join(sorted({answer.end.finish_reason if answer.end else "left" for answer in answers})),
        }


Prepare = Callable[[Server, dict[str, Any], Place], Reply]
"""A function that makes the reply to a request's JSON; it runs in a thread."""


def start(prepare: Prepare, server: Server, body: dict[str, Any], place: Place, *, may_learn: bool = True) -> Reply:
    """Make the reply to a request, and have its answers run, or wait. may_learn: whether their texts may be kept."""
    reply = prepare(server, body, place)
    if not may_learn or body.get("store") is False:
        for answer in reply.answers:
            answer.sequence.keeps = False
    place.start(reply.answers)
    return reply


@dataclass(slots=True)
class Part:
    """A part of a message: a thought, a text or a call."""

    kind: Literal["thought", "text", "call"]
    id: str
    number: int
    """Of the parts, from 0 on."""
    call: int = -1
    """Of the calls."""
    name: str = ""
    """Of the function that is called."""
    text: str = ""
    """Of a call: its arguments."""
    sent: list[SentToken] = field(default_factory=list)
    """The tokens of a text, if their log-probabilities are wanted."""


class NamedEvents(Reply):
    """A reply of one message, whose events are named by their types: one part after the other, each until its end."""

    def __init__(self, server: Server, answers: list[Answer], params: ChatParams, prefix: str):
        super().__init__(server, answers, prefix)
        self.message = GrowingMessage(params)
        self.parts: list[Part] = []
        """What the message has so far; the last one may go on."""
        self._is_open = False
        self._sent = SentTokens()

    def deltas(self, answer: Answer, output: Output) -> list[dict[str, Any]]:
        """Return a stream's events for the parts that a token adds to the message."""
        new = new_text(self.server.tokenizer.vocab, answer, output)
        self._sent.add(new.tokens)
        return self._add(self.message.add(new.text))

    def last_deltas(self, answer: Answer, text: str) -> list[dict[str, Any]]:
        """Return those for the rest of the text, and for the end of the last part."""
        return [*self._add(self.message.add(text, is_partial=False)), *self._close(answer.finish_reason != "stop")]

    def finish(self, answer: Answer) -> None:
        """Add a whole answer to the message."""
        if answer.completion.n_probs:  # only a text as it grows shows which tokens it was made of
            for output in answer.outputs:
                self.deltas(answer, output)
            self.last_deltas(answer, "")
        else:
            self._add(self.message.add_whole([output.text for output in answer.outputs]))
            self._close(answer.finish_reason != "stop")

    def n_thought(self) -> int:
        """Return the number of tokens of the thought."""
        return self.answers[0].n_tokens_of(self.message.n_thought)

    def _add(self, deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
        events = []
        for delta in deltas:
            for name, kind in (("reasoning_content", "thought"), ("content", "text")):
                if delta.get(name):
                    events += self._grow(kind, delta[name])
            for call in delta.get("tool_calls", ()):
                function = call["function"]
                named = call.get("id", ""), function.get("name", "")
                events += self._grow("call", function.get("arguments", ""), int(call["index"]), *named)
        return events

    def _grow(self, kind: Any, text: str, call: int = -1, id: str = "", name: str = "") -> list[dict[str, Any]]:
        events = []
        if not self._is_open or (self.parts[-1].kind, self.parts[-1].call) != (kind, call):
            events += self._close(False)
            self.parts.append(Part(kind, id or random_id(), len(self.parts), call, name))
            self._is_open = True
            events += self.begin_part(self.parts[-1])
        if text:
            sent = self._sent.take(text) if kind != "call" else []
            self.parts[-1].text += text
            self.parts[-1].sent += sent
            event = self.grow_part(self.parts[-1], text, sent)
            events += [event] if event else []
        return events

    def _close(self, is_cut: bool) -> list[dict[str, Any]]:
        if not self._is_open:
            return []
        self._is_open = False
        return self.end_part(self.parts[-1], is_cut)

    @abstractmethod
    def begin_part(self, part: Part) -> list[dict[str, Any]]:
        """Return the events for a part that begins."""

    @abstractmethod
    def grow_part(self, part: Part, text: str, sent: list[SentToken]) -> dict[str, Any]:
        """Return the event for a text that was added to a part; empty: there is none."""

    @abstractmethod
    def end_part(self, part: Part, is_cut: bool) -> list[dict[str, Any]]:
        """Return the events for a part that ends; is_cut: the answer was cut off in it."""

    @staticmethod
    def encode(data: Any, write: Callable[[Any], bytes] = dumps) -> bytes:
        """Encode an event with its name."""
        return b"event: " + str(data["type"]).encode() + b"\n" + Reply.encode(data, write)


def _n_values(answer: Answer, n_tokens: int, *, is_first: bool) -> int:
    n_prompt = answer.n_prompt if is_first and answer.completion.echo else 0
    return (n_tokens + n_prompt) * (1 + answer.completion.n_probs)


def _error_of(answer: Answer) -> ApiError:
    error = answer.sequence.result.error
    if isinstance(error, ContextFullError):
        return too_long(answer.n_prompt, answer.n_ctx)
    if isinstance(error, ValueError):  # the grammar is too ambiguous
        return invalid(str(error))
    if isinstance(error, MemoryError):
        return out_of_memory()
    return failed(str(error))


def new_text(vocab: Vocab, answer: Answer, output: Output) -> NewText:
    """An output as messages take it."""
    if output.logprob is None:
        return NewText(output.text)
    token = output.logprob.token
    piece = vocab.piece(token, token in answer.sequence.request.special)
    return NewText(output.text, [SentToken(piece, output.logprob)])


def who_drafted(output: Output) -> dict[str, Any]:
    """Whether a token had been drafted, and by which of `draft_sources`."""
    return {"drafted": output.drafted, **({"drafted_by": output.drafted_by} if output.drafted_by else {})}


def progress_of(answer: Answer, progress: Progress) -> dict[str, Any]:
    """llama-server's `prompt_progress`."""
    return {
        "total": answer.n_prompt,
        "cache": answer.n_cached,
        "processed": progress.n_prefilled,
        "time_ms": int(1e3 * progress.seconds),
    }


def settings_of(answer: Answer, vocab: Vocab) -> dict[str, Any]:
    """llama-server's `generation_settings`."""
    sequence = answer.sequence
    settings = generation_settings(answer.completion, sequence.request.sampling, sequence.draft)
    if answer.completion.ignore_eos:
        settings["logit_bias"] += [{"token": token, "bias": None} for token in sorted(vocab.eog)]
    return settings
