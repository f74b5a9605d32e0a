"""The endpoints of a loaded server, as an ASGI application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from . import anthropic, chat_completions, completions, embeddings, info, page, responses, slot_endpoints
from .absent import ABSENT
from .api_errors import ApiError, failed, no_such_path, out_of_memory
from .http import ANTHROPIC, answer, error_response, generate, show
from .middleware import Middleware
from .reply import Prepare
from .server import Server

Show = Callable[[Server, Request], Awaitable[Any]]
_log = logging.getLogger(__name__)


def _routes() -> list[BaseRoute]:
    found: list[BaseRoute] = []

    def add(endpoint: Any, method: str, *paths: str) -> None:
        found.extend(Route(path, endpoint, methods=[method]) for path in paths)

    def get(function: Show, *paths: str) -> None:
        add(partial(show, function=function), "GET", *paths)

    def post(function: Show, *paths: str) -> None:
        add(partial(show, function=function), "POST", *paths)

    def generates(prepare: Prepare, *paths: str) -> None:
        add(partial(generate, prepare=prepare), "POST", *paths)

    def answers(function: Callable[[Server, Any], Any], *paths: str) -> None:
        add(partial(answer, function=function), "POST", *paths)

    get(page.page, "/", "/index.html")
    answers(page.markdown, "/markdown")
    get(info.health, "/health", "/v1/health")
    for absent in ABSENT:
        for method, path in map(str.split, absent.routes):
            add(partial(show, function=partial(info.refuse, absent)), method, path)
    get(info.models, "/models", "/v1/models")
    get(info.model, "/models/{id:path}", "/v1/models/{id:path}")
    get(info.props, "/props")
    get(info.tokenizer_info, "/tokenizer_info")
    get(info.metrics, "/metrics")
    answers(info.tokenize, "/tokenize", "/v1/tokenize")
    answers(info.detokenize, "/detokenize", "/v1/detokenize")
    generates(completions.prepare_llama, "/completion", "/completions")
    generates(completions.prepare_openai, "/v1/completions")
    generates(completions.prepare_infill, "/infill")
    generates(chat_completions.prepare_chat, "/chat/completions", "/v1/chat/completions")
    answers(chat_completions.count_tokens, "/chat/completions/input_tokens", "/v1/chat/completions/input_tokens")
    answers(chat_completions.apply_template, "/apply-template")
    generates(responses.prepare_response, "/responses", "/v1/responses")
    answers(responses.count_tokens, "/responses/input_tokens", "/v1/responses/input_tokens")
    generates(anthropic.prepare_messages, ANTHROPIC)
    answers(anthropic.count_tokens, f"{ANTHROPIC}/count_tokens")
    post(partial(embeddings.embed, openai=False), "/embedding", "/embeddings")
    post(partial(embeddings.embed, openai=True), "/v1/embeddings")
    get(slot_endpoints.slots, "/slots")
    post(slot_endpoints.act, "/slots/{id_slot}")
    return found


def make_app(server: Server) -> ASGIApp:
    """The application. It starts the server when it starts, and stops it when it ends."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        server.start()
        yield
        server.stop()

    app = Starlette(
        routes=_routes(),
        lifespan=lifespan,
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_error,
            MemoryError: _on_memory_error,
            Exception: _on_error,
        },
    )
    app.state.server = server
    return Middleware(app, server.options)


async def _on_api_error(request: Request, e: Exception) -> Response:
    assert isinstance(e, ApiError)
    return error_response(e, request.url.path, request.headers)


async def _on_http_error(request: Request, e: Exception) -> Response:
    assert isinstance(e, HTTPException)
    if e.status_code == 404:
        return error_response(no_such_path(request.url.path), request.url.path, request.headers)
    return error_response(ApiError(e.status_code, "invalid_request_error", e.detail), request.url.path, request.headers)


async def _on_memory_error(request: Request, e: Exception) -> Response:
    _log.error("%s %s: out of memory", request.method, request.url.path)
    return error_response(out_of_memory(), request.url.path, request.headers)


async def _on_error(request: Request, e: Exception) -> Response:
    if isinstance(e, ClientDisconnect):
        raise e
    _log.error("%s %s failed", request.method, request.url.path, exc_info=e)
    return error_response(failed(f"{type(e).__name__}: {e}"), request.url.path, request.headers)
