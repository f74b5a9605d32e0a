"""Features of llama-server that this server does not have, each with the reason that flags, requests and docs give."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Absent:
    """A feature of llama-server."""

    name: str
    why: str
    """Why this server does not have it, and what to use instead."""
    routes: tuple[str, ...] = ()
    """Method and path of its requests."""


RERANKING = Absent(
    "reranking",
    "a reranker is another model than the one that generates, and writes nothing that could be drafted: llama-server "
    "serves it",
    ("POST /rerank", "POST /reranking", "POST /v1/rerank", "POST /v1/reranking"),
)
ROUTER = Absent(
    "several models (router)",
    "one server has one model, whose costs it has measured: a router in front of several (LiteLLM, llama-swap) chooses",
    ("POST /models", "DELETE /models", "POST /models/load", "POST /models/unload", "GET /models/sse"),
)
SLEEP = Absent("sleep", "the model stays loaded, with its prefix cache: end the process to free the memory")
STREAMS = Absent(
    "streams that are resumed",
    "a request whose client leaves is cancelled at once, which frees its slot: nothing of its answer is kept",
    ("GET /v1/stream", "DELETE /v1/stream", "POST /v1/streams/lookup"),
)
TOOLS = Absent(
    "built-in tools, MCP servers",
    "the server runs nothing for those who send requests: calls go to the client, which decides what may run",
    ("GET /tools", "POST /tools"),
)
PROXY = Absent(
    "MCP proxy of the page",
    "a proxy would fetch addresses of the server's own network for any client",
    ("GET /cors-proxy", "POST /cors-proxy"),
)
TRANSCRIPTIONS = Absent(
    "transcriptions",
    "sounds come in messages (input_audio), as the models that hear take them",
    ("POST /audio/transcriptions", "POST /v1/audio/transcriptions"),
)
VIDEO = Absent("video", "llama.cpp has ffmpeg cut videos into images: messages take images")
CONTROL = Absent(
    "thoughts that are ended from outside",
    "set it in a request, before it starts: reasoning_budget_tokens",
    ("POST /v1/chat/completions/control",),
)
ADAPTERS = Absent(
    "LoRA adapters that change",
    "kept prefixes hold what the adapters made of them: --lora sets these when the server starts",
    ("GET /lora-adapters", "POST /lora-adapters"),
)
PROPERTIES = Absent(
    "properties that change",
    "what one client sets would hold for all: properties are set when the server starts",
    ("POST /props",),
)
FILES = Absent("pages, settings and paths of one's own", "a web server in front serves files and renames paths")
VERTEX = Absent(
    "Vertex AI (AIP_MODE)", "it is the same endpoints by other names, which a web server in front can give them"
)

ABSENT = (
    *(RERANKING, ROUTER, SLEEP, STREAMS, TOOLS, PROXY, TRANSCRIPTIONS, VIDEO),
    *(CONTROL, ADAPTERS, PROPERTIES, FILES, VERTEX),
)
