"""The endpoints of a loaded server, as an ASGI application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from . import embeddings, endpoints, info, page, slots
from .absent import ABSENT
from .errors import ApiError, failed, not_found, out_of_memory
from .http import ANTHROPIC, error_response
from .middleware import Middleware
from .server import Server

_log = logging.getLogger(__name__)


def _routes() -> list[BaseRoute]:
    found: list[BaseRoute] = []

    def add(method: str, endpoint: object, *paths: str) -> None:
        found.extend(Route(path, endpoint, methods=[method]) for path in paths)  # type: ignore[arg-type]

    add("GET", page.page, "/", "/index.html")
    add("POST", page.markdown, "/markdown")
    add("GET", info.health, "/health", "/v1/health")
    for absent in ABSENT:
        for method, path in map(str.split, absent.routes):
            add(method, info.refusal_of(absent), path)
    add("GET", info.models, "/models", "/v1/models")
    add("GET", info.model, "/models/{id:path}", "/v1/models/{id:path}")
    add("GET", info.props, "/props")
    add("GET", info.metrics, "/metrics")
    add("POST", info.tokenize, "/tokenize", "/v1/tokenize")
    add("POST", info.detokenize, "/detokenize", "/v1/detokenize")
    add("POST", endpoints.completion, "/completion", "/completions")
    add("POST", endpoints.completion_openai, "/v1/completions")
    add("POST", endpoints.infill, "/infill")
    add("POST", endpoints.chat_completion, "/chat/completions", "/v1/chat/completions")
    add("POST", endpoints.count_chat_tokens, "/chat/completions/input_tokens", "/v1/chat/completions/input_tokens")
    add("POST", endpoints.apply_template, "/apply-template")
    add("POST", endpoints.response, "/responses", "/v1/responses")
    add("POST", endpoints.count_response_tokens, "/responses/input_tokens", "/v1/responses/input_tokens")
    add("POST", endpoints.message, ANTHROPIC)
    add("POST", endpoints.count_message_tokens, f"{ANTHROPIC}/count_tokens")
    add("POST", embeddings.embeddings, "/embedding", "/embeddings")
    add("POST", embeddings.embeddings_openai, "/v1/embeddings")
    add("GET", slots.slots, "/slots")
    add("POST", slots.act, "/slots/{id_slot}")
    return found


def make_app(server: Server) -> ASGIApp:
    """The application. It starts the server's worker, and stops it at its own end."""

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
    return error_response(e, request.url.path)


async def _on_http_error(request: Request, e: Exception) -> Response:
    assert isinstance(e, HTTPException)
    if e.status_code == 404:
        return error_response(not_found(), request.url.path)
    return error_response(ApiError(e.status_code, "invalid_request_error", e.detail), request.url.path)


async def _on_memory_error(request: Request, e: Exception) -> Response:
    _log.error("%s %s: the memory does not suffice", request.method, request.url.path)
    return error_response(out_of_memory(), request.url.path)


async def _on_error(request: Request, e: Exception) -> Response:
    if isinstance(e, ClientDisconnect):
        raise e
    _log.error("%s %s failed", request.method, request.url.path, exc_info=e)
    return error_response(failed(f"{type(e).__name__}: {e}"), request.url.path)
