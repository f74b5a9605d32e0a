"""The layer between starlette and the server: prepares and answers requests, and notices clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .answer import Came
from .api_errors import OLLAMA, ApiError, anthropic_error, ollama_error
from .jsons import dumps, dumps_large, parse_json
from .queue import Place
from .reply import Prepare, Reply, start
from .server import Server

T = TypeVar("T")
_NO = ("no", "off", "false", "0")
ANTHROPIC = "/v1/messages"
"""The beginning of the paths of Anthropic's API."""


async def compute(request: Request, function: Callable[[Server, dict[str, Any], Place], T]) -> T:
    """Call a function of a request's JSON in a thread; it is cancelled if the client leaves. The body is not kept.

    Raises:
        ApiError: the body cannot be read, the function raises it, or it takes too long.
        ClientDisconnect: the client has left.
    """
    server: Server = request.app.state.server
    async with server.queue.place() as place:
        text = await place.read(request.stream())
        work = server.executor.run(lambda: function(server, parse_json(text), place))
        found: T = await until_gone(request.receive, work)
        return found


class Json(Response):
    """An answer in JSON: a value, or what a thread has encoded."""

    media_type = "application/json; charset=utf-8"

    def render(self, content: Any) -> bytes:
        """The response as bytes."""
        return content if isinstance(content, bytes) else dumps(content)


def error_response(e: ApiError, path: str, headers: Headers) -> Json:
    """An error as a response, in the form that the client reads: Anthropic's names its version, on any path."""
    body = e.body
    if path.startswith(ANTHROPIC) or "anthropic-version" in headers:
        body = anthropic_error(e)
    elif path.startswith(OLLAMA):
        body = ollama_error(e)
    return Json(body, status_code=e.code, headers=e.headers)


async def answer(request: Request, function: Callable[[Server, dict[str, Any]], Any]) -> Response:
    """Answer a request with the result of a function of its JSON."""
    return Json(await compute(request, lambda server, body, place: dumps_large(function(server, body))))


async def show(request: Request, function: Callable[[Server, Request], Awaitable[Any]]) -> Response:
    """Answer a request with the result of a function: a value as JSON, or a response."""
    found = await function(request.app.state.server, request)
    return found if isinstance(found, Response) else Json(found)


async def generate(request: Request, prepare: Prepare) -> Response:
    """Answer a request that generates: with one response, or with a stream of events.

    An error before the first event is a response of its own.
    """
    may_learn = request.headers.get("x-learn", "yes").strip().lower() not in _NO
    reply = request.state.reply = await compute(request, partial(start, prepare, may_learn=may_learn))
    if not reply.stream:
        return Json(await until_gone(request.receive, _whole(reply)))
    batches = reply.batches(reply.server.options.ping_seconds)
    return EventStream(reply, batches, await until_gone(request.receive, anext(batches)))


async def _whole(reply: Reply) -> bytes:
    """Wait for a reply's end, and encode it."""
    await reply.run()
    if reply.is_large:
        return bytes(await reply.server.run_in_executor(lambda: dumps_large(reply.response())))
    return dumps(reply.response())


class EventStream(Response):
    """A reply as a stream of server-sent events; it is cancelled when the client leaves."""

    def __init__(self, reply: Reply, batches: AsyncGenerator[list[Came], None], first: list[Came]):
        """batches: the reply's batches after the first one."""
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._reply, self._batches, self._first = reply, batches, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        with suppress(ClientDisconnect):
            await until_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        reply = self._reply
        async with aclosing(self._batches) as batches:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                batch: list[Came] | None = self._first
                while batch is not None:
                    if reply.is_large_batch(batch):
                        data = await reply.server.run_in_executor(reply.events, batch, dumps_large)
                    else:
                        data = reply.events(batch)
                    if data:
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                    batch = await anext(batches, None)
                data = reply.stream_end()
            except ApiError as e:
                data = reply.error(e)
            await send({"type": "http.response.body", "body": data, "more_body": False})


async def until_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Await work for a client whose body has been read, and cancel it if the client leaves.

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
