"""Answers to a batch of requests: the server without HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from .api_errors import ApiError, failed, invalid
from .batch_file import CHAT, BatchRequest
from .chat_completions import prepare_chat
from .completions import prepare_openai
from .jsons import check_body
from .reply import Prepare, Reply, start
from .server import Server, random_id

_log = logging.getLogger(__name__)

Keep = Callable[[dict[str, Any]], None]


async def answer_all(server: Server, requests: Sequence[BatchRequest], keep: Keep) -> None:
    """Answer requests with a server that has been started. keep: called with each line of the result as it comes."""
    left = iter(requests)

    async def answer_some() -> None:
        for request in left:
            keep(await _run_one(server, request))

    # so many run, and a few are prepared for when one ends
    await asyncio.gather(*(answer_some() for _ in range(server.n_slots + 2)))


async def _run_one(server: Server, request: BatchRequest) -> dict[str, Any]:
    line: dict[str, Any] = {"id": f"batch_req_{random_id()}", "custom_id": request.custom_id}
    try:
        bodies = await _answers(server, request)
    except Exception as error:  # an unexpected error is a result too, so that the others go on
        if isinstance(error, ApiError):
            e = error
        else:
            _log.exception("request %r failed", request.custom_id)
            e = failed(f"{type(error).__name__}: {error}")
        response = {"status_code": e.code, "request_id": line["id"], "body": e.body}
        return {**line, "response": response, "error": {"code": e.kind, "message": e.message}}
    response = {"status_code": 200, "request_id": line["id"], "body": bodies[-1]}
    line |= {"response": response, "error": None}
    return line | ({"turns": bodies} if request.turns else {})


async def _answers(server: Server, request: BatchRequest) -> list[dict[str, Any]]:
    if request.body.get("stream"):
        raise invalid("Field 'stream': a batch has no stream")
    if not request.turns:
        return [await _answer(server, request.url, request.body)]
    messages: list[dict[str, Any]] = []
    bodies = []
    for turn in request.turns:
        messages.append({"role": "user", "content": turn})
        bodies.append(await _answer(server, CHAT, {**request.body, "messages": messages}))
        messages.append(bodies[-1]["choices"][0]["message"])
    return bodies


async def _answer(server: Server, url: str, body: dict[str, Any]) -> dict[str, Any]:
    prepare: Prepare = prepare_chat if url == CHAT else prepare_openai

    def start_checked() -> Reply:
        check_body(body)
        return start(prepare, server, body, place)

    async with server.queue.place() as place:
        reply: Reply = await server.executor.run(start_checked)
    await reply.run()
    response: dict[str, Any] = reply.response()
    return response
