"""/completion, /infill and /v1/completions: requests, and the formats of their answers."""

from __future__ import annotations

import codecs
from itertools import accumulate
from typing import Any

from ..chat import constraint_of, log_loosened, without_constraints
from ..engine import TokenLogprob
from .engine_thread import End, Event, Progress, Token
from .errors import invalid, unsupported
from .generation import Answer, Generation
from .queue import Place
from .request_metrics import usage
from .response_format import (
    FINGERPRINT,
    ResponseFormat,
    all_probs_of,
    metrics_of,
    probs_of,
    progress_of,
    settings_of,
)
from .schema import Completion, parse
from .server import Server
from .sse import DONE
from .sse import event as sse
from .tokenizer import n_prompts


class LlamaFormat(ResponseFormat):
    """llama-server's format."""

    def __init__(self, server: Server, generation: Generation):
        self._server, self.generation = server, generation

    def chunks(self, answer: Answer, event: Event) -> list[Any]:
        """One event per token, and one for the end."""
        completion, metrics = answer.completion, answer.metrics
        if isinstance(event, End):
            return [self.final(answer, stream=True)]
        data: dict[str, Any] = {
            "index": answer.index,
            "content": event.text if isinstance(event, Token) else "",
            "tokens": [event.token] if isinstance(event, Token) else [],
            "stop": False,
            "id_slot": metrics.id_slot,
            "tokens_predicted": event.n if isinstance(event, Token) else 0,
            "tokens_evaluated": metrics.n_prompt,
        }
        if isinstance(event, Progress):
            data["prompt_progress"] = progress_of(answer, event)
            if completion.timings_per_token:
                data["timings"] = event.timings
        else:
            data["drafted"] = event.drafted
            if event.timings is not None:
                data["timings"] = event.timings
            if event.logprob is not None:
                data["completion_probabilities"] = [
                    probs_of(self._server, event.logprob, completion.post_sampling_probs)
                ]
        return [data]

    def final(self, answer: Answer, stream: bool) -> Any:
        """The end of an answer."""
        completion, metrics, end = answer.completion, answer.metrics, answer.end
        assert end is not None
        data: dict[str, Any] = {
            "index": answer.index,
            "content": end.text if stream else answer.text,
            "tokens": [] if stream or not completion.return_tokens else answer.tokens,
            "id_slot": metrics.id_slot,
            "stop": True,
            "model": self.generation.model,
            "tokens_predicted": metrics.n_tokens,
            "tokens_evaluated": metrics.n_prompt,
            "generation_settings": settings_of(self._server, answer),
            "prompt": self._server.tokenizer.detokenize(answer.prompt),
            "has_new_line": "\n" in answer.text,
            "truncated": answer.truncated,
            "stop_type": answer.stop_type,
            "stopping_word": end.stopping_word,
            "tokens_cached": metrics.n_prompt + max(0, metrics.n_tokens - 1),
            "timings": metrics.timings(),
            "metrics": metrics.as_metrics(answer.draft.depth),
        }
        if not stream and answer.probs:
            data["completion_probabilities"] = all_probs_of(self._server, answer)
        fields = completion.response_fields
        return {name: _nested(data, name) for name in fields if _has_nested(data, name)} if fields else data

    def response(self) -> Any:
        """An object, or a list of them."""
        finals = [self.final(answer, stream=False) for answer in self.generation.answers]
        return finals[0] if len(finals) == 1 else finals


class OpenAIFormat(ResponseFormat):
    """OpenAI's format, with llama-server's metrics."""

    def __init__(self, server: Server, generation: Generation, n_top: int | None = None):
        """n_top: alternatives of each token, if not all that were asked for; see `begin_openai`."""
        self._server, self.generation, self._n_top = server, generation, n_top
        self._n_sent: dict[int, int] = {}
        """Characters of each answer's stream so far."""
        self._head = {
            "id": generation.id,
            "object": "text_completion",
            "created": generation.created,
            "model": generation.model,
            "system_fingerprint": FINGERPRINT,
        }

    def chunks(self, answer: Answer, event: Event) -> list[Any]:
        """One event per token, and one for the end; usage as it was asked for."""
        options = answer.completion.stream_options
        text = "" if isinstance(event, Progress) else event.text
        n_sent = self._n_sent.get(answer.index, 0)
        echoes = answer.completion.echo and answer.index not in self._n_sent and not isinstance(event, Progress)
        if echoes:
            text = self._prompt_text(answer) + text
        if not isinstance(event, Progress):
            self._n_sent[answer.index] = n_sent + len(text)
        probs = [(event.text, event.logprob)] if isinstance(event, Token) and event.logprob is not None else []
        choice: dict[str, Any] = {
            "index": answer.index,
            "text": text,
            "logprobs": self._logprobs(answer, probs, echoes, n_sent),
            "finish_reason": None,
        }
        data = {**self._head, "choices": [choice]}
        if isinstance(event, Token):
            choice["drafted"] = event.drafted
            if event.timings is not None:
                data["timings"] = event.timings
        elif isinstance(event, Progress):
            data["prompt_progress"] = progress_of(answer, event)
        else:
            choice["finish_reason"] = answer.finish_reason
            data |= metrics_of(answer)
            if not options.include_usage:
                data["usage"] = self._usage()
        if options.continuous_usage_stats:
            data["usage"] = self._usage()
        if answer.completion.verbose and isinstance(event, End):
            data["__verbose"] = LlamaFormat(self._server, self.generation).final(answer, stream=True)
        return [data]

    def stream_end(self) -> bytes:
        """Usage, if it was asked for, and OpenAI's end."""
        answers = self.generation.answers
        if not answers[0].completion.stream_options.include_usage:
            return DONE
        return sse({**self._head, "choices": [], "usage": self._usage(), **metrics_of(answers[0])}) + DONE

    def response(self) -> Any:
        """The choices of the whole answer."""
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
        data = {**self._head, "choices": choices, "usage": self._usage(), **metrics_of(answers[0])}
        if answers[0].completion.verbose:
            data["__verbose"] = LlamaFormat(self._server, self.generation).final(answers[0], stream=False)
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
        return usage(self.generation.prompt_metrics, self.generation.metrics)

    def _logprobs(
        self, answer: Answer, probs: list[tuple[str, TokenLogprob]], echoes: bool, n_before: int = 0
    ) -> dict[str, Any] | None:
        """llama-server's list, and OpenAI's older ones, in which an echoed prompt comes first.

        n_before: characters of the text that were sent already.
        """
        if not probs and not echoes:
            return None
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
            prompt = [probs_of(self._server, logprob, post, self._n_top) for logprob in answer.prompt_logprobs]
            items = [{"token": pieces[0], key: None, top: None}, *prompt, *content]
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


def prepare_infill(server: Server, body: Any, place: Place) -> LlamaFormat:
    """A request to /infill."""
    if server.infill.missing:
        raise unsupported(f"Infill is not supported by this model: it has no token for {server.infill.missing}")
    c, constraint = _options(server, body)
    engine = server.engine
    place.take(c.n)
    prompt = server.infill.request(body, engine.n_batch, c.n_predict, engine.n_ctx)
    return LlamaFormat(server, server.make_generation([prompt], c, **constraint))


def prepare_llama(server: Server, body: Any, place: Place) -> LlamaFormat:
    """A request to /completion."""
    return LlamaFormat(server, _prepare(server, body, place))


def prepare_openai(server: Server, body: Any, place: Place) -> OpenAIFormat:
    """A request to /v1/completions.

    To OpenAI's clients `logprobs` of 0 asks for the tokens' own probabilities alone, to llama-server for none.

    Raises:
        ApiError: it is not as it should be, or there is no room.
    """
    n_probs = body.get("logprobs") if isinstance(body, dict) else None
    n_top = 0 if type(n_probs) is int and n_probs == 0 else None
    generation = _prepare(server, body if n_top is None else {**body, "logprobs": 1}, place)
    return OpenAIFormat(server, generation, n_top)


def _prepare(server: Server, body: Any, place: Place) -> Generation:
    c, constraint = _options(server, body)
    if body.get("best_of") not in (None, 1, c.n):
        raise invalid("Unsupported param: best_of")
    if c.suffix and not server.infill.is_there:
        raise invalid("Unsupported param: suffix (the model has no tokens for filling in)")
    place.take(n_prompts(body.get("prompt")) * c.n)
    return server.make_generation(_prompts(server, body.get("prompt"), c.suffix), c, **constraint)


def _options(server: Server, body: Any) -> tuple[Completion, dict[str, Any]]:
    """A request's options, and what its text has to be: arguments of `make_generation`."""
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    try:
        constraint = constraint_of(body)
        grammar = None if constraint is None else constraint.compile()
    except ValueError as e:
        raise invalid(str(e)) from None
    c = parse(Completion, without_constraints(body), server.options.defaults)
    if grammar is None:
        return c, {}
    log_loosened(grammar.loosened)
    return c, {"grammar": grammar.text, "loosened": grammar.loosened}


def _prompts(server: Server, prompt: Any, suffix: str | None) -> list[list[int]]:
    prompts = server.tokenizer.prompts(prompt)
    if suffix:
        after = server.tokenizer.tokenize(suffix)
        prompts = [server.infill.prompt(prompt, after) for prompt in prompts]
    return prompts
