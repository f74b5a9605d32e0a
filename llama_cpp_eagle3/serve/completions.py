"""/completion, /infill and /v1/completions: requests, and the formats of their answers."""

from __future__ import annotations

import codecs
from itertools import accumulate
from typing import Any

from ..chat import Loosened, constraint_of, log_loosened, without_constraints
from ..chat.message import NewText, logprob_of
from ..chat.sent_tokens import SentToken, SentTokens
from ..engine import Output, Vocab
from .answer import Answer, Progress
from .api_errors import invalid, unsupported
from .fields import COMPLETION_FIELDS, Completion, parse
from .other_fields import check_others
from .queue import Place
from .reply import FINGERPRINT, Reply, new_text, progress_of, settings_of, who_drafted
from .server import Server
from .tokenizer import n_prompts

_ABSENT = object()
_FIELDS = COMPLETION_FIELDS | {"prompt", "input_prefix", "input_suffix", "input_extra"}
"""Fields that are read."""


class LlamaReply(Reply):
    """llama-server's form: one event per token, and one for the end."""

    def progress(self, answer: Answer, progress: Progress, timings: dict[str, Any] | None) -> list[Any]:
        """An event without text."""
        data = self._chunk(answer, "", [], 0) | {"prompt_progress": progress_of(answer, progress)}
        return [data if timings is None else data | {"timings": timings}]

    def token(self, answer: Answer, output: Output, timings: dict[str, Any] | None) -> list[Any]:
        """One event."""
        data = self._chunk(answer, output.text, [output.token], len(answer.tokens)) | who_drafted(output)
        if timings is not None:
            data["timings"] = timings
        if output.logprob is not None:
            post = answer.completion.post_sampling_probs
            data["completion_probabilities"] = [logprob_of(self.server.tokenizer.vocab, output.logprob, post=post)]
        return [data]

    @staticmethod
    def _chunk(answer: Answer, text: str, tokens: list[Any], n_tokens: int) -> dict[str, Any]:
        return {
            "index": answer.index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": answer.id_slot,
            "tokens_predicted": n_tokens,
            "tokens_evaluated": answer.n_prompt,
        }

    def end(self, answer: Answer, text: str) -> list[Any]:
        """The event that has all figures."""
        return [llama_end(self.server, answer, text)]

    def response(self) -> Any:
        """An object, or a list of them."""
        ends = [llama_end(self.server, answer) for answer in self.answers]
        return ends[0] if len(ends) == 1 else ends


def llama_end(server: Server, answer: Answer, rest: str | None = None) -> Any:
    """llama-server's object for an answer that has ended; rest: the text that a stream has not sent yet."""
    completion, vocab = answer.completion, server.tokenizer.vocab
    data: dict[str, Any] = {
        "index": answer.index,
        "content": answer.text if rest is None else rest,
        "tokens": answer.tokens if rest is None and completion.return_tokens else [],
        "id_slot": answer.id_slot,
        "stop": True,
        "model": server.options.model_name,
        "tokens_predicted": answer.n_tokens,
        "tokens_evaluated": answer.n_prompt,
        "generation_settings": settings_of(answer, vocab),
        "prompt": server.tokenizer.detokenize(answer.prompt),
        "has_new_line": "\n" in answer.text,
        "truncated": answer.truncated,
        "stop_type": answer.stop_type,
        "stopping_word": answer.stopping_word,
        "tokens_cached": answer.n_prompt + max(0, answer.n_tokens - 1),
        **answer.figures(),
    }
    if rest is None and completion.n_probs:
        post = completion.post_sampling_probs
        data["completion_probabilities"] = [
            logprob_of(vocab, token.logprob, post=post, piece=token.piece) for token in _tokens_of(vocab, answer)
        ]
    fields = completion.response_fields
    found = {name: _nested(data, name) for name in fields}
    return {name: value for name, value in found.items() if value is not _ABSENT} if fields else data


def _tokens_of(vocab: Vocab, answer: Answer) -> list[SentToken]:
    """An answer's tokens and their log-probabilities; those of a stop string are left out, as llama-server does."""
    tokens = [token for output in answer.outputs for token in new_text(vocab, answer, output).tokens]
    if not answer.stopping_word:
        return tokens
    sent = SentTokens()
    sent.add(tokens)
    return sent.take(answer.text)


class OpenAIReply(Reply):
    """OpenAI's form, with llama-server's figures: one event per token, and one for the end; usage if requested."""

    def __init__(self, server: Server, answers: list[Answer], n_top: int | None = None):
        """n_top: alternatives of each token, if fewer than were computed; see `prepare_openai`."""
        super().__init__(server, answers)
        self._n_top = n_top
        self._n_sent: dict[int, int] = {}
        """Characters of each answer's text so far."""
        self._sent = [SentTokens() for _ in answers]
        self._head = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }

    def progress(self, answer: Answer, progress: Progress, timings: dict[str, Any] | None) -> list[Any]:
        """An event without text."""
        choice = {"index": answer.index, "text": "", "logprobs": None, "finish_reason": None}
        return [self._data(answer, choice) | {"prompt_progress": progress_of(answer, progress)}]

    def token(self, answer: Answer, output: Output, timings: dict[str, Any] | None) -> list[Any]:
        """One event."""
        choice = self._choice(answer, [new_text(self.server.tokenizer.vocab, answer, output)]) | who_drafted(output)
        return [self._data(answer, choice) | ({} if timings is None else {"timings": timings})]

    def end(self, answer: Answer, text: str) -> list[Any]:
        """The event with the reason and the figures."""
        data = self._data(answer, self._choice(answer, [NewText(text)], answer.finish_reason)) | answer.figures()
        if not answer.completion.stream_options.include_usage:
            data["usage"] = self.usage()
        if answer.completion.verbose:
            data["__verbose"] = llama_end(self.server, answer, text)
        return [data]

    def _data(self, answer: Answer, choice: dict[str, Any]) -> dict[str, Any]:
        has_usage = answer.completion.stream_options.continuous_usage_stats
        return {**self._head, "choices": [choice], **({"usage": self.usage()} if has_usage else {})}

    def _choice(self, answer: Answer, parts: list[NewText], reason: str | None = None) -> dict[str, Any]:
        sent, text = self._sent[answer.index], "".join(part.text for part in parts)
        for part in parts:
            sent.add(part.tokens)
        found = sent.take(text) if text else []
        n_sent = self._n_sent.get(answer.index, 0)
        echoes = answer.completion.echo and answer.index not in self._n_sent
        if echoes:
            text = "".join(self._prompt_texts(answer)) + text
        self._n_sent[answer.index] = n_sent + len(text)
        logprobs = self._logprobs(answer, found, echoes, n_sent)
        return {"index": answer.index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def stream_end(self) -> bytes:
        """Usage, if it was requested, and OpenAI's end."""
        return self.openai_end(self._head)

    def response(self) -> Any:
        """The choices of the whole answer."""
        first, vocab = self.answers[0], self.server.tokenizer.vocab
        choices = [
            self._choice(answer, [new_text(vocab, answer, o) for o in answer.outputs], answer.finish_reason)
            for answer in self.answers
        ]
        data = {**self._head, "choices": choices, "usage": self.usage(), **first.figures()}
        if first.completion.verbose:
            data["__verbose"] = llama_end(self.server, first)
        return data

    def _prompt_texts(self, answer: Answer) -> list[str]:
        """The text that each token of the prompt adds: characters, once they are complete."""
        vocab = self.server.tokenizer.vocab
        return _texts_of([vocab.piece(token) for token in answer.prompt])

    def _logprobs(
        self, answer: Answer, sent: list[SentToken], echoes: bool, n_before: int = 0
    ) -> dict[str, Any] | None:
        """llama-server's list, and OpenAI's older ones, in which an echoed prompt comes first.

        n_before: characters of the text that were sent already.
        """
        if not sent and not echoes:
            return None
        vocab, post = self.server.tokenizer.vocab, answer.completion.post_sampling_probs
        items = content = [
            logprob_of(vocab, token.logprob, self._n_top, post=post, piece=token.piece) for token in sent
        ]
        key, top = ("prob", "top_probs") if post else ("logprob", "top_logprobs")
        starts = list(accumulate(map(len, _texts_of([t.piece for t in sent])), initial=n_before))[: len(sent)]
        if echoes:
            *prompt_starts, n_prompt = accumulate(map(len, self._prompt_texts(answer)), initial=0)
            starts = [n_prompt + start for start in starts]
        prompt_logprobs = answer.sequence.result.prompt_logprobs
        if echoes and prompt_logprobs is not None:
            first = vocab.piece(answer.prompt[0]).decode("utf-8", errors="replace")  # no token comes before it
            prompt = [logprob_of(vocab, logprob, self._n_top, post=post) for logprob in prompt_logprobs]
            items = [{"token": first, key: None, top: None}, *prompt, *content]
            starts = prompt_starts[: answer.n_prompt] + starts
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


def _texts_of(pieces: list[bytes]) -> list[str]:
    """The text that each piece adds: characters, once they are complete; and that of the end."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [*map(decoder.decode, pieces), decoder.decode(b"", True)]


def _nested(data: Any, path: str) -> Any:
    for name in path.split("/"):
        data = data.get(name, _ABSENT) if isinstance(data, dict) else _ABSENT
    return data


def prepare_infill(server: Server, body: dict[str, Any], place: Place) -> LlamaReply:
    """A request to /infill."""
    if server.infill.missing:
        raise unsupported(f"Infill is not supported by this model: it has no token for {server.infill.missing}")
    c, sampling, loosened, field = _options(server, body)
    engine = server.engine
    place.take(c.n)
    prompt = server.infill.request(body, engine.n_batch, c.n_predict, engine.n_ctx)
    return LlamaReply(server, server.make_answers([prompt], c, sampling, loosened, grammar_field=field))


def prepare_llama(server: Server, body: dict[str, Any], place: Place) -> LlamaReply:
    """A request to /completion."""
    return LlamaReply(server, _prepare(server, body, place))


def prepare_openai(server: Server, body: dict[str, Any], place: Place) -> OpenAIReply:
    """A request to /v1/completions.

    To OpenAI's clients `logprobs` of 0 asks for the tokens' own probabilities alone, to llama-server for none.

    Raises:
        ApiError: the request is invalid, or there is no room.
    """
    n_probs = body.get("logprobs")
    n_top = 0 if type(n_probs) is int and n_probs == 0 else None
    answers = _prepare(server, body if n_top is None else {**body, "logprobs": 1}, place)
    return OpenAIReply(server, answers, n_top)


def _prepare(server: Server, body: dict[str, Any], place: Place) -> list[Answer]:
    c, sampling, loosened, field = _options(server, body)
    if c.suffix and not server.infill.is_there:
        raise invalid("Unsupported param: suffix (the model has no tokens for filling in)")
    place.take(n_prompts(body.get("prompt")) * c.n)
    prompts = _prompts(server, body.get("prompt"), c.suffix)
    return server.make_answers(prompts, c, sampling, loosened, grammar_field=field)


def _options(server: Server, body: dict[str, Any]) -> tuple[Completion, dict[str, Any], tuple[Loosened, ...], str]:
    """A request's options and the rules for its text, as arguments of `make_answers`."""
    check_others(body, _FIELDS, server.ignored)
    try:
        constraint = constraint_of(body)
        grammar = None if constraint is None else constraint.compile()
    except ValueError as e:
        raise invalid(str(e)) from None
    c = parse(Completion, without_constraints(body), server.options.defaults)
    if constraint is None or grammar is None:
        return c, {}, (), ""
    log_loosened(grammar.loosened)
    return c, {"grammar": grammar.text}, grammar.loosened, constraint.name


def _prompts(server: Server, prompt: Any, suffix: str | None) -> list[list[int]]:
    prompts = server.tokenizer.prompts(prompt)
    if suffix:
        after = server.tokenizer.tokenize(suffix)
        prompts = [server.infill.prompt(prompt, after) for prompt in prompts]
    return prompts
