"""The endpoints that render, tokenize or generate: each is a function of a request's JSON, called in a thread."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from . import anthropic, chat, completions, responses
from .http import Json, compute, generate


async def completion(request: Request) -> Response:
    """POST /completion, /completions."""
    return await generate(request, completions.prepare_llama)


async def completion_openai(request: Request) -> Response:
    """POST /v1/completions."""
    return await generate(request, completions.prepare_openai)


async def infill(request: Request) -> Response:
    """POST /infill."""
    return await generate(request, completions.prepare_infill)


async def chat_completion(request: Request) -> Response:
    """POST /v1/chat/completions."""
    return await generate(request, chat.prepare_chat)


async def response(request: Request) -> Response:
    """POST /v1/responses."""
    return await generate(request, responses.prepare_response)


async def message(request: Request) -> Response:
    """POST /v1/messages."""
    return await generate(request, anthropic.prepare_messages)


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
    n_tokens = await compute(request, lambda server, body: chat.n_prompt_tokens(server, responses.to_chat(body)))
    return Json({"input_tokens": n_tokens, "object": "response.input_tokens"})


async def count_message_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens."""
    n_tokens = await compute(request, lambda server, body: chat.n_prompt_tokens(server, anthropic.to_chat(body)[1]))
    return Json({"input_tokens": n_tokens})
