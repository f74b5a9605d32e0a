"""The middleware of all requests: keys, CORS, clients that do not read their answers, the access log."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..config.serve_options import ServeOptions, is_loopback
from .api_errors import ApiError, compressed, ends, too_large
from .http import error_response
from .log_lines import ACCESS

PUBLIC = frozenset({"/health", "/v1/health", "/", "/index.html", "/favicon.ico"})
"""Paths that need no API key."""


class Middleware:
    """An ASGI app around the endpoints."""

    def __init__(self, app: ASGIApp, options: ServeOptions):
        self.app, self.options = app, options
        self._keys = [key.encode(errors="surrogateescape") for key in options.api_keys]  # the bytes that were typed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the endpoints, or answer it with an error."""
        if scope["type"] != "http":
            await self.app(scope, _to_the_end(receive), send)
            return
        start = perf_counter()
        headers = Headers(scope=scope)
        status = 0
        scope.setdefault("state", {})
        origin = headers.get("origin")
        allowed = bool(self.options.cors_origins and origin and self._is_allowed(origin))

        async def send_out(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [(b"server", b"llama-cpp-eagle3")]
                if origin and allowed:
                    added += [(b"access-control-allow-origin", origin.encode()), (b"vary", b"Origin")]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await _in_time(send(message), self.options.timeout_seconds)

        try:
            if scope["method"] == "OPTIONS":
                await self._preflight(send_out, allowed)
                return
            try:
                self._check(scope, headers)
                await self.app(scope, receive, send_out)
            except ApiError as e:
                if not status:
                    await error_response(e, scope["path"], headers)(scope, receive, send_out)
            except asyncio.CancelledError:  # a signal has come, and the answer took longer than uvicorn waits for it
                if not status:
                    await error_response(ends(), scope["path"], headers)(scope, receive, send_out)
        except ClientDisconnect:
            status = status or 499
        finally:
            self._log(scope, status, perf_counter() - start)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise ApiError for a wrong host name or key, a body that is compressed, or a Content-Length too large."""
        is_named = "host" in headers or scope["http_version"] != "1.0"  # which has no such header; browsers send it
        _, port = scope.get("server") or ("", None)  # a UNIX socket has none, and no page of another site reaches it
        if self.options.local_only and port is not None and is_named and not is_loopback(_host_of(headers)):
            raise ApiError(
                403,
                "permission_error",
                f"this server listens on this machine alone, and the request's Host is {headers.get('host', '')!r}: "
                "ask localhost, or start it with --api-key or another --host",
            )
        if self._keys and scope["path"] not in PUBLIC and not self._knows(headers):
            raise ApiError(401, "authentication_error", "Invalid API Key")
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise compressed(encoding)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.options.n_body_max:
            raise too_large(self.options.n_body_max)

    def _knows(self, headers: Headers) -> bool:
        """Whether a request gives a key that opens: some clients send another one beside it."""
        named = headers.get("authorization", "")
        scheme, _, token = named.partition(" ")
        given = (token.strip() if scheme.lower() == "bearer" else named, headers.get("x-api-key", ""))
        keys = [key.encode("latin-1") for key in given if key]  # the bytes that were sent
        # the time must not depend on which key it is
        return sum(hmac.compare_digest(key, known) for key in keys for known in self._keys) > 0

    def _is_allowed(self, origin: str) -> bool:
        """Whether pages of an origin may read answers."""
        asked = self.options.cors_origins
        if asked == "localhost":
            try:
                return urlsplit(origin).hostname in ("localhost", "127.0.0.1", "::1")
            except ValueError:
                return False
        return asked == "*" or origin in map(str.strip, asked.split(","))

    @staticmethod
    async def _preflight(send: Send, allowed: bool) -> None:
        headers = [(b"content-length", b"0")]
        if allowed:
            headers += [
                (b"access-control-allow-credentials", b"true"),
                (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
                (b"access-control-allow-headers", b"*"),
            ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    def _log(scope: Scope, status: int, seconds: float) -> None:
        if scope["path"] in ("/health", "/v1/health", "/metrics") and status == 200:
            return
        client = scope.get("client")
        fields: dict[str, Any] = {
            "client": client[0] if client else "",
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(1e3 * seconds, 1),
        }
        reply = scope["state"].get("reply")
        if reply is not None:
            fields |= reply.log_fields()
        ACCESS.info("request", extra={"fields": fields})


def _to_the_end(receive: Receive) -> Receive:
    """Messages of the server's life: a second signal cancels the wait for its end, which is the end."""

    async def received() -> Message:
        try:
            return await receive()
        except asyncio.CancelledError:
            return {"type": "lifespan.shutdown"}

    return received


def _host_of(headers: Headers) -> str:
    """Return the host that a request names, without its port; empty = it names none."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


async def _in_time(work: Awaitable[None], seconds: float) -> None:
    """Await work that is usually done at once, without the task that `asyncio.wait_for` would make.

    Raises:
        ClientDisconnect: the work takes longer than so many seconds.
    """
    task = asyncio.current_task()
    assert task is not None
    is_late = False

    def give_up() -> None:
        nonlocal is_late
        is_late = task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, give_up)
    try:
        await work
    except asyncio.CancelledError:
        if is_late:
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
