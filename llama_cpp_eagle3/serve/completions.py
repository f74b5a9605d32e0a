"""/completion and /v1/completions: the shapes of their answers."""

from __future__ import annotations

import codecs
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from itertools import accumulate
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..engine import TokenLogprob
from .errors import ApiError, invalid, unsupported
from .figures import usage
from .generation import Answer, Generation
from .http import DONE, PING, Events, Json, event, parse_json, until_gone
from .params import generation_settings
from .schema import Completion, parse
from .server import Admission, Server
from .text import n_prompts
from .worker import End, Event, Progress, Token

FINGERPRINT = f"b{LLAMA_CPP_PYTHON_VERSION}-eagle3-{__version__}"
"""llama-server has its build here, which begins so too."""


class Shape(Protocol):
    """How what comes is told to a client."""

    generation: Generation

    @property
    def stream(self) -> bool:
        """Whether the client wants events."""
        return self.generation.answers[0].completion.stream

    @staticmethod
    def encode(data: Any) -> bytes:
        """An event as bytes."""
        return event(data)

    def error(self, e: ApiError) -> bytes:
        """An error in a stream that has begun, as bytes."""
        return event(e.body)

    def part(self, answer: Answer, came: Event) -> list[Any]:
        """Events of a stream, for what came last of an answer."""

    def last(self) -> list[bytes]:
        """What ends a stream."""

    def whole(self) -> Any:
        """All of it, without a stream."""


async def generate(request: Request, prepare: Callable[[Server, Any, Admission], Shape]) -> Response:
    """Answer a request that generates: wait for all of it, or begin to stream it.

    An error before the first event is an answer of its own.

    Args:
        request: from the event loop.
        prepare: what is made of its JSON, in a thread.
    """
    server: Server = request.app.state.server
    async with server.bodies.read(request) as text:
        work = server.start_generation(lambda admission: prepare(server, parse_json(text), admission))
        shape = await until_gone(request.receive, work)
    request.state.generation = generation = shape.generation
    if not shape.stream:
        await until_gone(request.receive, generation.run())
        return Json(shape.whole())
    batches = generation.batches(server.options.ping_seconds)
    first = await until_gone(request.receive, _next(batches))

    async def parts() -> AsyncGenerator[bytes, None]:
        heard = first
        try:
            while True:
                data = b"".join(shape.encode(part) for answer, came in heard for part in shape.part(answer, came))
                if data or not heard:
                    yield data or PING
                try:
                    heard = await batches.__anext__()
                except StopAsyncIteration:
                    break
            yield b"".join(shape.last())
        except ApiError as e:
            yield shape.error(e)
        finally:
            await batches.aclose()

    return Events(parts())


async def _next(batches: AsyncIterator[Any]) -> Any:
    return await batches.__anext__()


class LlamaShape(Shape):
    """llama-server's own."""

    def __init__(self, server: Server, generation: Generation):
        self._server, self.generation = server, generation

    def part(self, answer: Answer, came: Event) -> list[Any]:
        """One event per token, and one for the end."""
        completion, figures = answer.completion, answer.figures
        if isinstance(came, End):
            return [self.final(answer, stream=True)]
        data: dict[str, Any] = {
            "index": answer.index,
            "content": came.text if isinstance(came, Token) else "",
            "tokens": [came.token] if isinstance(came, Token) else [],
            "stop": False,
            "id_slot": figures.id_slot,
            "tokens_predicted": came.n if isinstance(came, Token) else 0,
            "tokens_evaluated": figures.n_prompt,
        }
        if isinstance(came, Progress):
            data["prompt_progress"] = progress_of(answer, came)
            if completion.timings_per_token:
                data["timings"] = came.timings
        else:
            data["drafted"] = came.drafted
            if came.timings is not None:
                data["timings"] = came.timings
            if came.logprob is not None:
                data["completion_probabilities"] = [
                    probs_of(self._server, came.logprob, completion.post_sampling_probs)
                ]
        return [data]

    def final(self, answer: Answer, stream: bool) -> Any:
        """The end of an answer."""
        completion, figures, end = answer.completion, answer.figures, answer.end
        assert end is not None
        data: dict[str, Any] = {
            "index": answer.index,
            "content": end.text if stream else answer.text,
            "tokens": [] if stream or not completion.return_tokens else answer.tokens,
            "id_slot": figures.id_slot,
            "stop": True,
            "model": self.generation.model,
            "tokens_predicted": figures.n_tokens,
            "tokens_evaluated": figures.n_prompt,
            "generation_settings": settings_of(self._server, answer),
            "prompt": self._server.tokenizer.detokenize(answer.prompt),
            "has_new_line": "\n" in answer.text,
            "truncated": answer.truncated,
            "stop_type": answer.stop_type,
            "stopping_word": end.stopping_word,
            "tokens_cached": figures.n_prompt + max(0, figures.n_tokens - 1),
            "timings": figures.timings(),
            "metrics": {"speculative_decoding": figures.speculative_decoding(answer.draft.depth)},
        }
        if not stream and answer.probs:
            data["completion_probabilities"] = all_probs_of(self._server, answer)
        fields = completion.response_fields
        return {name: _nested(data, name) for name in fields if _has_nested(data, name)} if fields else data

    def last(self) -> list[bytes]:
        """Nothing."""
        return []

    def whole(self) -> Any:
        """An object, or a list of them."""
        finals = [self.final(answer, stream=False) for answer in self.generation.answers]
        return finals[0] if len(finals) == 1 else finals


class OpenAIShape(Shape):
    """OpenAI's, with llama-server's figures."""

    def __init__(self, server: Server, generation: Generation, n_top: int | None = None):
        """n_top: alternatives of each token, if not all that were asked for; see `begin_openai`."""
        self._server, self.generation, self._n_top = server, generation, n_top
        self._n_sent: dict[int, int] = {}
        """Characters of each answer's stream so far."""

    def _head(self) -> dict[str, Any]:
        generation = self.generation
        return {
            "id": generation.id,
            "object": "text_completion",
            "created": generation.created,
            "model": generation.model,
            "system_fingerprint": FINGERPRINT,
        }

    def part(self, answer: Answer, came: Event) -> list[Any]:
        """One event per token, and one for the end; usage as it was asked for."""
        options = answer.completion.stream_options
        text = "" if isinstance(came, Progress) else came.text
        n_sent = self._n_sent.get(answer.index, 0)
        echoes = answer.completion.echo and answer.index not in self._n_sent and not isinstance(came, Progress)
        if echoes:
            text = self._prompt_text(answer) + text
        if not isinstance(came, Progress):
            self._n_sent[answer.index] = n_sent + len(text)
        probs = [(came.text, came.logprob)] if isinstance(came, Token) and came.logprob is not None else []
        choice: dict[str, Any] = {
            "index": answer.index,
            "text": text,
            "logprobs": self._logprobs(answer, probs, echoes, n_sent),
            "finish_reason": None,
        }
        data = {**self._head(), "choices": [choice]}
        if isinstance(came, Token):
            choice["drafted"] = came.drafted
            if came.timings is not None:
                data["timings"] = came.timings
        elif isinstance(came, Progress):
            data["prompt_progress"] = progress_of(answer, came)
        else:
            choice["finish_reason"] = answer.finish_reason
            data |= figures_of(answer)
            if not options.include_usage:
                data["usage"] = self._usage()
        if options.continuous_usage_stats:
            data["usage"] = self._usage()
        if answer.completion.verbose and isinstance(came, End):
            data["__verbose"] = LlamaShape(self._server, self.generation).final(answer, stream=True)
        return [data]

    def last(self) -> list[bytes]:
        """Usage, if it was asked for, and OpenAI's end."""
        answers = self.generation.answers
        if not answers[0].completion.stream_options.include_usage:
            return [DONE]
        return [event({**self._head(), "choices": [], "usage": self._usage(), **figures_of(answers[0])}), DONE]

    def whole(self) -> Any:
        """All choices."""
        answers = self.generation.answers
        choices = [
            {
                "index": answer.index,
                "text": (self._prompt_text(answer) if answer.completion.echo else "") + answer.text,
                "logprobs": self._logprobs(answer, answer.probs, answer.completion.echo),
                "finish_reason": answer.finish_reason,
            }
            for answer in answers
        ]
        data = {**self._head(), "choices": choices, "usage": self._usage(), **figures_of(answers[0])}
        if answers[0].completion.verbose:
            data["__verbose"] = LlamaShape(self._server, self.generation).final(answers[0], stream=False)
        return data

    def _prompt_text(self, answer: Answer) -> str:
        return "".join(self._prompt_texts(answer))

    def _prompt_texts(self, answer: Answer) -> list[str]:
        """What each token of the prompt adds to its text: characters, once they are whole."""
        vocab, decoder = self._server.tokenizer.vocab, codecs.getincrementaldecoder("utf-8")(errors="replace")
        return [*(decoder.decode(vocab.piece(token)) for token in answer.prompt), decoder.decode(b"", True)]

    def _piece(self, token: int) -> str:
        return self._server.tokenizer.vocab.piece(token).decode("utf-8", errors="replace")

    def _usage(self) -> dict[str, Any]:
        return usage(self.generation.prompt_figures, self.generation.figures)

    def _logprobs(
        self, answer: Answer, probs: list[tuple[str, TokenLogprob]], echoes: bool, n_before: int = 0
    ) -> dict[str, Any] | None:
        """llama-server's list, and OpenAI's older ones, in which an echoed prompt comes first.

        n_before: characters of the text that were told already.
        """
        post = answer.completion.post_sampling_probs
        content = [probs_of(self._server, logprob, post, self._n_top) for _, logprob in probs]
        key, top = ("prob", "top_probs") if post else ("logprob", "top_logprobs")
        items: list[dict[str, Any]] = content
        starts = list(accumulate((len(text) for text, _ in probs), initial=n_before))[: len(probs)]
        if echoes:
            *prompt_starts, n_prompt = accumulate(map(len, self._prompt_texts(answer)), initial=0)
            starts = [n_prompt + start for start in starts]
        if echoes and answer.prompt_logprobs is not None:
            pieces = [self._piece(token) for token in answer.prompt]
            # what comes first follows nothing
            told = [probs_of(self._server, logprob, post, self._n_top) for logprob in answer.prompt_logprobs]
            items = [{"token": pieces[0], key: None, top: None}, *told, *content]
            starts = prompt_starts[: len(pieces)] + starts
        if not items:
            return None
        return {
            "content": content,
            "tokens": [item["token"] for item in items],
            "token_logprobs": [item[key] for item in items],
            "top_logprobs": [
                None if item[top] is None else {other["token"]: other[key] for other in item[top]} for item in items
            ],
            "text_offset": starts,
        }


def figures_of(answer: Answer) -> dict[str, Any]:
    """What both dialects say of an answer."""
    figures = answer.figures
    return {
        "timings": figures.timings(),
        "metrics": {"speculative_decoding": figures.speculative_decoding(answer.draft.depth)},
    }


def progress_of(answer: Answer, came: Progress) -> dict[str, Any]:
    """llama-server's `prompt_progress`."""
    figures = answer.figures
    return {
        "total": figures.n_prompt,
        "cache": figures.n_cached,
        "processed": came.n_read,
        "time_ms": int(1e3 * came.seconds),
    }


def settings_of(server: Server, answer: Answer) -> dict[str, Any]:
    """llama-server's `generation_settings`."""
    settings = generation_settings(answer.completion, answer.sampling, answer.draft)
    if answer.completion.ignore_eos:
        settings["logit_bias"] += [{"token": token, "bias": None} for token in sorted(server.tokenizer.vocab.eog)]
    return settings


def probs_of(server: Server, logprob: TokenLogprob, post: bool, n_top: int | None = None) -> dict[str, Any]:
    """llama-server's object of one token and those that might have been; n_top: so many of them (None: all)."""
    return {
        **_prob_of(server, logprob.token, logprob.logprob, post),
        "top_probs" if post else "top_logprobs": [
            _prob_of(server, token, value, post) for token, value in list(logprob.top.items())[:n_top]
        ],
    }


def all_probs_of(server: Server, answer: Answer) -> list[dict[str, Any]]:
    """Those of a whole answer."""
    return [probs_of(server, logprob, answer.completion.post_sampling_probs) for _, logprob in answer.probs]


def _prob_of(server: Server, token: int, logprob: float, post: bool) -> dict[str, Any]:
    piece = server.tokenizer.vocab.piece(token)
    value = {"prob": min(1.0, math.exp(logprob))} if post else {"logprob": max(logprob, -3.4e38)}
    return {"id": token, "token": piece.decode("utf-8", errors="replace"), "bytes": list(piece), **value}


def _has_nested(data: Any, path: str) -> bool:
    for name in path.split("/"):
        if not isinstance(data, dict) or name not in data:
            return False
        data = data[name]
    return True


def _nested(data: Any, path: str) -> Any:
    for name in path.split("/"):
        data = data[name]
    return data


async def completion(request: Request) -> Response:
    """POST /completion, /completions."""
    return await generate(request, prepare_llama)


async def completion_openai(request: Request) -> Response:
    """POST /v1/completions."""
    return await generate(request, prepare_openai)


async def infill(request: Request) -> Response:
    """POST /infill."""
    server: Server = request.app.state.server
    missing = server.infill.missing
    if missing:
        raise unsupported(f"Infill is not supported by this model: it has no token for {missing}")
    return await generate(request, prepare_infill)


def prepare_infill(server: Server, body: Any, admission: Admission) -> LlamaShape:
    """A request to /infill."""
    c = parse(Completion, body, server.options.defaults)
    engine = server.engine
    admission.reserve(c.n)
    prompt = server.infill.request(body, engine.n_batch, c.n_predict, engine.n_ctx)
    return LlamaShape(server, server.make_generation([prompt], c))


def prepare_llama(server: Server, body: Any, admission: Admission) -> LlamaShape:
    """A request to /completion."""
    return LlamaShape(server, _prepare(server, body, admission))


def prepare_openai(server: Server, body: Any, admission: Admission) -> OpenAIShape:
    """A request to /v1/completions.

    To OpenAI's clients `logprobs` of 0 asks for the tokens' own probabilities alone, to llama-server for none.

    Raises:
        ApiError: it is not as it should be, or there is no room.
    """
    n_probs = body.get("logprobs") if isinstance(body, dict) else None
    n_top = 0 if type(n_probs) is int and n_probs == 0 else None
    generation = _prepare(server, body if n_top is None else {**body, "logprobs": 1}, admission)
    return OpenAIShape(server, generation, n_top)


def _prepare(server: Server, body: Any, admission: Admission) -> Generation:
    c = parse(Completion, body, server.options.defaults)
    if body.get("best_of") not in (None, 1, c.n):
        raise invalid("Unsupported param: best_of")
    if c.suffix and not server.infill.is_there:
        raise invalid("Unsupported param: suffix (the model has no tokens for filling in)")
    admission.reserve(n_prompts(body.get("prompt")) * c.n)
    return server.make_generation(_prompts(server, body.get("prompt"), c.suffix), c)


def _prompts(server: Server, prompt: Any, suffix: str | None) -> list[list[int]]:
    prompts = server.tokenizer.prompts(prompt)
    if suffix:
        after = server.tokenizer.tokenize(suffix)
        prompts = [server.infill.prompt(prompt, after) for prompt in prompts]
    return prompts
