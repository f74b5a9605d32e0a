"""The endpoints that generate, render or count: each calls a function of a request's JSON in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from . import anthropic, chat, completions, responses
from .http import Json, Prepare, compute, generate

Endpoint = Callable[[Request], Awaitable[Response]]


def _generates(prepare: Prepare) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await generate(request, prepare)

    return endpoint


completion = _generates(completions.prepare_llama)
completion_openai = _generates(completions.prepare_openai)
infill = _generates(completions.prepare_infill)
chat_completion = _generates(chat.prepare_chat)
response = _generates(responses.prepare_response)
message = _generates(anthropic.prepare_messages)


async def apply_template(request: Request) -> Response:
    """POST /apply-template."""
    params = await compute(request, chat.chat_params)
    return Json({"prompt": params.prompt})


async def count_chat_tokens(request: Request) -> Response:
    """POST /v1/chat/completions/input_tokens."""
    n_tokens = await compute(request, chat.n_prompt_tokens)
    return Json({"input_tokens": n_tokens, "object": "response.input_tokens"})


async def count_response_tokens(request: Request) -> Response:
    """POST /v1/responses/input_tokens."""
    n_tokens = await compute(
        request, lambda server, body: chat.n_prompt_tokens(server, responses.to_chat(body, server.left_out))
    )
    return Json({"input_tokens": n_tokens, "object": "response.input_tokens"})


async def count_message_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens."""
    n_tokens = await compute(
        request, lambda server, body: chat.n_prompt_tokens(server, anthropic.to_chat(body, server.left_out)[1])
    )
    return Json({"input_tokens": n_tokens})
