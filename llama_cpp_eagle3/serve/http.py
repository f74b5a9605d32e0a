"""Requests in, answers out: bodies, event streams, clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, anthropic_error, no_room
from .jsons import dumps, loads
from .limits import check_body, check_text

if TYPE_CHECKING:
    from .server import Server

T = TypeVar("T")
ANTHROPIC = "/v1/messages"
"""Where the paths begin that are Anthropic's."""
_N_SMALL = 64 << 10  # bytes of a body: as many as there are connections hold little memory together


class Bodies:
    """The bodies of all requests that are being read or prepared: bounded together."""

    def __init__(self, n_bytes_max: int):
        self.n_bytes_max, self.n_bytes = n_bytes_max, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Read a request's body; it counts until the block ends. Small ones always have room.

        Raises:
            ApiError: those of other requests leave no room.
        """
        parts: list[bytes] = []
        n_bytes = n_counted = 0
        try:
            async for part in request.stream():  # not `body`, which keeps it as long as the request
                parts.append(part)
                n_bytes += len(part)
                if n_bytes > _N_SMALL:
                    if self.n_bytes + n_bytes - n_counted > self.n_bytes_max:
                        raise no_room(self.n_bytes_max)
                    self.n_bytes += n_bytes - n_counted
                    n_counted = n_bytes
            text = b"".join(parts)
            parts.clear()
            yield text
        finally:
            self.n_bytes -= n_counted


def parse_json(text: bytes) -> Any:
    """A request's body. An empty one is an empty object.

    Raises:
        ApiError: it is not JSON, or says more than a request may.
    """
    check_text(text)
    body = loads(text) if text.strip() else {}
    check_body(body)
    return body


async def compute(request: Request, function: Callable[[Server, Any], T]) -> T:
    """Have something made of a request's JSON beside the event loop, until the client leaves.

    Raises:
        ApiError: the body cannot be read, the function raises it, or it takes too long.
        ClientDisconnect: the client has left.
    """
    server: Server = request.app.state.server
    async with server.bodies.read(request) as text:
        work = server.executor.run(lambda: function(server, parse_json(text)))
        found: T = await until_gone(request.receive, work)
        return found


class Json(Response):
    """An answer in JSON."""

    media_type = "application/json; charset=utf-8"

    def render(self, content: Any) -> bytes:
        """As bytes."""
        return dumps(content)


def error_response(e: ApiError, path: str) -> Json:
    """An error as an answer, in the form that the clients of this path know."""
    body = anthropic_error(e) if path.startswith(ANTHROPIC) else e.body
    return Json(body, status_code=e.code, headers=e.headers)


def event(data: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + dumps(data) + b"\n\n"


def named_event(name: str, data: Any) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name.encode() + b"\n" + event(data)


DONE = b"data: [DONE]\n\n"
PING = b":\n\n"


class Events(Response):
    """A stream of server-sent events; whoever makes them is told when the client leaves."""

    def __init__(self, parts: AsyncGenerator[bytes, None]):
        """parts: whole events, any number of them together."""
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        with suppress(ClientDisconnect):
            await until_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with aclosing(self._parts) as parts:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Wait for something on behalf of a client, whose body has been read; it is cancelled if the client leaves.

    Raises:
        ClientDisconnect: it has left.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for left in (task, watch):
            if not left.done():
                left.cancel()
                await asyncio.wait([left])


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
