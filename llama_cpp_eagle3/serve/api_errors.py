"""Errors in llama-server's form: `{"error": {"code", "message", "type"}}`."""

from __future__ import annotations

from typing import Any

from ..log import shortened

OLLAMA = "/api/"
"""The beginning of the paths of Ollama's API, which is not served."""


class ApiError(Exception):
    """An error that answers a request."""

    def __init__(
        self, code: int, kind: str, message: str, *, headers: dict[str, str] | None = None, **fields: Any
    ) -> None:
        """fields: more of the error's object."""
        message = shortened(message)
        super().__init__(message)
        self.code, self.kind, self.message = code, kind, message
        self.headers, self.fields = headers or {}, fields

    @property
    def body(self) -> dict[str, Any]:
        """The response of this error."""
        return {"error": {"code": self.code, "message": self.message, "type": self.kind, **self.fields}}


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(e: ApiError) -> dict[str, Any]:
    """The response in Anthropic's form: `{"type": "error", "error": {"type", "message"}}`."""
    kind = _ANTHROPIC_KINDS.get(e.code, "invalid_request_error" if e.code < 500 else "api_error")
    return {"type": "error", "error": {**e.body["error"], "type": kind}}


def ollama_error(e: ApiError) -> dict[str, Any]:
    """The response in Ollama's form: `{"error": message}`."""
    return {"error": e.message}


def invalid(message: str) -> ApiError:
    """The request cannot be understood."""
    return ApiError(400, "invalid_request_error", message)


def too_long(n_prompt_tokens: int, n_ctx: int) -> ApiError:
    """The prompt has no room in the context."""
    message = (
        f"request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
    )
    return ApiError(400, "exceed_context_size_error", message, n_prompt_tokens=n_prompt_tokens, n_ctx=n_ctx)


def too_large(n_bytes_max: int) -> ApiError:
    """The body has too many bytes."""
    return ApiError(413, "invalid_request_error", f"the body is larger than {n_bytes_max} bytes")


def compressed(encoding: str) -> ApiError:
    """The body is compressed: its size says nothing about what it becomes."""
    message = f"the body is compressed (Content-Encoding: {encoding[:40]}): send it as it is"
    return ApiError(415, "invalid_request_error", message, headers={"Accept-Encoding": "identity"})


def too_slow() -> ApiError:
    """The client has not sent its whole body in time."""
    return ApiError(408, "invalid_request_error", "the body did not arrive in time")


def unsupported(message: str) -> ApiError:
    """The server, as it was started, cannot do this."""
    return ApiError(501, "not_supported_error", message)


def not_found(message: str) -> ApiError:
    """There is no such thing: 404."""
    return ApiError(404, "not_found_error", message)


def no_such_path(path: str) -> ApiError:
    """Nothing is served there: 404, and which APIs there are."""
    is_ollama = path.startswith(OLLAMA)
    what = "Ollama's API is not served here" if is_ollama else f"File Not Found: nothing is served at {path[:200]!r}"
    return not_found(
        f"{what}. There are OpenAI's API (/v1/chat/completions, /v1/responses, /v1/completions, /v1/embeddings), "
        "Anthropic's (/v1/messages) and llama-server's (/completion, /infill)"
    )


def too_busy(n_queued: int, retry_after: int) -> ApiError:
    """The queue is full: 429."""
    message = f"{n_queued} requests are waiting already, try again in {retry_after} s"
    return ApiError(429, "rate_limit_error", message, headers={"Retry-After": str(retry_after)})


def no_room(n_bytes_max: int) -> ApiError:
    """Other requests' bodies take all memory that is meant for them."""
    message = (
        f"the bodies of other requests take up the {n_bytes_max >> 20} MiB that there are for all: try again in 1 s"
    )
    return ApiError(503, "unavailable_error", message, headers={"Retry-After": "1"})


def gone() -> ApiError:
    """The client has left: nginx's 499."""
    return ApiError(499, "invalid_request_error", "the client has left, or the request's time is over")


def out_of_memory() -> ApiError:
    """The machine cannot hold what the request needs."""
    return ApiError(503, "unavailable_error", "this machine has too little memory left for the request: send less")


def failed(message: str) -> ApiError:
    """An error of the server itself: 500."""
    return ApiError(500, "server_error", message)


def ends() -> ApiError:
    """The server ends, and does not wait for the answer any longer."""
    message = "the server ends: ask again when it has started"
    return ApiError(503, "unavailable_error", message, headers={"Retry-After": "5"})
