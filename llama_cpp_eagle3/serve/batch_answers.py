"""Answers to a batch of requests: the server's own code without HTTP."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cli.model import resolve_pair
from .chat import prepare_chat
from .completions import Shape, prepare_openai
from .errors import ApiError, failed, invalid
from .limits import check_body
from .log import configure
from .options import serve_options
from .run import load, why_no_draft
from .server import Admission, Server, random_id

_log = logging.getLogger(__name__)

Keep = Callable[[dict[str, Any]], None]

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A line of the input."""

    custom_id: str
    url: str
    body: dict[str, Any]
    category: str = ""
    turns: list[str] = field(default_factory=list)
    """What the user says one after the other; empty: the body says all."""


def load_server(args: argparse.Namespace) -> Server:
    """The pair that the flags name, or the bundled one, to be started."""
    configure(args.log_format, args.verbose)
    resolve_pair(args)
    return load(args, serve_options(args, why_no_draft(args)))


async def answer_all(server: Server, requests: Sequence[BatchRequest], keep: Keep) -> None:
    """Answer requests with a server that has been started. keep: takes each line of the result when it is there."""
    # as many as run, and a few that are ready when one ends
    room = asyncio.Semaphore(server.n_slots + 2)

    async def one(request: BatchRequest) -> None:
        async with room:
            keep(await _run_one(server, request))

    await asyncio.gather(*(one(request) for request in requests))


async def _run_one(server: Server, request: BatchRequest) -> dict[str, Any]:
    line: dict[str, Any] = {"id": f"batch_req_{random_id()}", "custom_id": request.custom_id}
    try:
        bodies = await _answers(server, request)
    except Exception as error:  # one that nobody expected is the answer too: the others go on
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
        raise invalid("Field 'stream': there is nobody to stream to")
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
    check_body(body)
    prepare: Callable[[Server, Any, Admission], Shape] = prepare_chat if url == CHAT else prepare_openai
    shape = await server.start_generation(lambda admission: prepare(server, body, admission))
    await shape.generation.run()
    whole: dict[str, Any] = shape.whole()
    return whole
