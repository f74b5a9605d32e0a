"""How a generation becomes an answer: what the formats of all APIs share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..engine import TokenLogprob
from .engine_thread import Event, Progress
from .errors import ApiError
from .generation import Answer, Generation
from .sampling_params import generation_settings
from .server import Server
from .sse import event

FINGERPRINT = f"b{LLAMA_CPP_PYTHON_VERSION}-eagle3-{__version__}"
"""llama-server has its build here, which begins so too."""


class ResponseFormat(ABC):
    """The JSON of a generation's answer, whole or as the events of a stream."""

    generation: Generation

    @property
    def stream(self) -> bool:
        """Whether the client wants events."""
        return self.generation.answers[0].completion.stream

    encode: Callable[[Any], bytes] = staticmethod(event)
    """An event as bytes."""

    def error(self, e: ApiError) -> bytes:
        """An error in a stream that has begun, as bytes."""
        return event(e.body)

    @abstractmethod
    def chunks(self, answer: Answer, event: Event) -> list[Any]:
        """Events of a stream for one event of the engine."""

    def stream_end(self) -> bytes:
        """What ends a stream; nothing by default."""
        return b""

    @abstractmethod
    def response(self) -> Any:
        """The whole response, without a stream."""


def metrics_of(answer: Answer) -> dict[str, Any]:
    """The fields of an answer that both dialects have."""
    metrics = answer.metrics
    return {"timings": metrics.timings(), "metrics": metrics.as_metrics(answer.draft.depth)}


def progress_of(answer: Answer, came: Progress) -> dict[str, Any]:
    """llama-server's `prompt_progress`."""
    metrics = answer.metrics
    return {
        "total": metrics.n_prompt,
        "cache": metrics.n_cached,
        "processed": came.n_prefilled,
        "time_ms": int(1e3 * came.seconds),
    }


def settings_of(server: Server, answer: Answer) -> dict[str, Any]:
    """llama-server's `generation_settings`."""
    settings = generation_settings(answer.completion, answer.sampling, answer.draft)
    if answer.completion.ignore_eos:
        settings["logit_bias"] += [{"token": token, "bias": None} for token in sorted(server.tokenizer.vocab.eog)]
    return settings


def probs_of(server: Server, logprob: TokenLogprob, post: bool, n_top: int | None = None) -> dict[str, Any]:
    """llama-server's object of one token and its alternatives; n_top: how many (None: all)."""
    return {
        **_prob_of(server, logprob.token, logprob.logprob, post),
        "top_probs" if post else "top_logprobs": [
            _prob_of(server, token, value, post) for token, value in list(logprob.top.items())[:n_top]
        ],
    }


def all_probs_of(server: Server, answer: Answer) -> list[dict[str, Any]]:
    """The log-probabilities of a whole answer."""
    return [probs_of(server, logprob, answer.completion.post_sampling_probs) for _, logprob in answer.probs]


def _prob_of(server: Server, token: int, logprob: float, post: bool) -> dict[str, Any]:
    piece = server.tokenizer.vocab.piece(token)
    value = {"prob": min(1.0, math.exp(logprob))} if post else {"logprob": max(logprob, -3.4e38)}
    return {"id": token, "token": piece.decode("utf-8", errors="replace"), "bytes": list(piece), **value}
