"""Features of llama-server that this server lacks: one list, in the document, in flags and in answers."""

from __future__ import annotations

from pathlib import Path

from llama_cpp_eagle3.cli.flags import REFUSED_BY_SERVER
from llama_cpp_eagle3.serve.absent import ABSENT
from serving import Running

DOCUMENT = Path(__file__).parents[2] / "docs" / "serving.md"
ROUTES = """
GET /health /v1/health /metrics /props /models /v1/models /slots /lora-adapters /v1/stream /cors-proxy /tools
GET /models/sse
POST /props /completion /completions /v1/completions /chat/completions /v1/chat/completions /v1/chat/completions/control
POST /v1/responses /responses /v1/audio/transcriptions /audio/transcriptions /v1/messages /infill
POST /embedding /embeddings /v1/embeddings /rerank /reranking /v1/rerank /v1/reranking /tokenize /detokenize
POST /apply-template /chat/completions/input_tokens /v1/chat/completions/input_tokens /responses/input_tokens
POST /v1/responses/input_tokens /v1/messages/count_tokens /lora-adapters /slots/0 /v1/streams/lookup
POST /cors-proxy /tools /models /models/load /models/unload
DELETE /v1/stream /models
"""
"""Routes of llama-server (tools/server/server.cpp)."""


def test_every_route_of_llama_server_is_known(running: Running) -> None:
    refused = {route: absent for absent in ABSENT for route in absent.routes}
    for line in ROUTES.split("\n"):
        method, *paths = line.split() or ("",)
        for path in paths:
            response = running.client.request(method, path, json={} if method == "POST" else None)
            absent = refused.pop(f"{method} {path}", None)
            assert response.status_code not in (404, 405, 500), (method, path)
            if absent is not None:
                assert response.status_code == 501, (method, path)
                assert absent.why in response.json()["error"]["message"]
    assert not refused  # all of them are llama-server's


def test_other_paths_say_which_APIs_there_are(running: Running) -> None:
    """Ollama's clients read an error that is a text."""
    for method, path in (("POST", "/api/chat"), ("GET", "/api/tags"), ("GET", "/nothing"), ("POST", "/v1/nothing")):
        response = running.client.request(method, path, json={} if method == "POST" else None)
        error = response.json()["error"]
        message = error if path.startswith("/api/") else error["message"]
        assert response.status_code == 404
        assert "/v1/chat/completions" in message
        assert ("Ollama" in message) == path.startswith("/api/")


def test_document() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    for absent in ABSENT:
        names = [flag.names[-1] for flag in REFUSED_BY_SERVER if flag.why_not == absent.why]
        marks = ", ".join(f"`{mark}`" for mark in (*names, *absent.routes))
        assert f"| {absent.name} | {marks} | {absent.why} |" in lines
