"""/v1/embeddings, and llama-server's /embedding."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request

from .api_errors import failed, invalid, unsupported
from .embedder import NO_POOLING, Embedder, Matrix
from .http import Json, compute, until_gone
from .jsons import N_EMBEDDINGS_MAX, N_FLOATS_MAX, dumps_large, exceeds
from .other_fields import check_others
from .server import Server
from .tokenizer import n_prompts

_FIELDS = frozenset({"input", "content", "encoding_format", "embd_normalize"})
"""Fields that are read."""


@dataclass(frozen=True, slots=True)
class _Prompts:
    """A checked request for embeddings."""

    tokens: list[list[int]]
    normalize: int
    encoding: str
    model: str
    openai: bool
    """Whether the answer has OpenAI's form."""


async def embed(server: Server, request: Request, *, openai: bool) -> Any:
    """POST /v1/embeddings (openai), /embedding, /embeddings."""
    embedder = server.embedder
    if embedder is None:
        raise unsupported("This server does not support embeddings. Start it with `--embeddings`")
    async with server.queue.place(1):
        prompts = await compute(request, lambda server, body, place: _prepare(server, embedder, body, openai))
        found = await until_gone(request.receive, _embed_all(server, embedder, prompts))
    return Json(await server.run_in_executor(_answer, prompts, found))


def _answer(prompts: _Prompts, found: list[Matrix]) -> bytes:
    if not prompts.openai:
        return dumps_large({"index": i, "embedding": x.tolist()} for i, x in enumerate(found))
    n_tokens = sum(map(len, prompts.tokens))
    return dumps_large(
        {
            "model": prompts.model,
            "object": "list",
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            "data": (
                {"index": i, "object": "embedding", "embedding": _encoded(x[0], prompts.encoding)}
                for i, x in enumerate(found)
            ),
        }
    )


def _prepare(server: Server, embedder: Embedder, body: dict[str, Any], openai: bool) -> _Prompts:
    """Check a request and tokenize its texts."""
    body = {name: value for name, value in body.items() if value is not None}
    check_others(body, _FIELDS, server.ignored)
    if openai and embedder.pooling == NO_POOLING:
        raise invalid("Pooling type 'none' is not OAI compatible. Please use a different pooling type")
    texts = body.get("input", body.get("content"))
    if texts is None:
        raise invalid('"input" or "content" must be provided')
    encoding = body.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise invalid("The format to return the embeddings in. Can be either float or base64")
    normalize = body.get("embd_normalize", 2)
    if type(normalize) is not int or normalize > 100:
        raise invalid("Field 'embd_normalize': expected a whole number")
    texts = [_joined(text) for text in texts] if isinstance(texts, list) else _joined(texts)
    if n_prompts(texts) > N_EMBEDDINGS_MAX:
        raise exceeds("input", N_EMBEDDINGS_MAX, "texts", n_prompts(texts))
    prompts = server.tokenizer.prompts(texts)
    for tokens in prompts:
        if len(tokens) > embedder.n_max:
            raise invalid(
                f"input ({len(tokens)} tokens) is too large to process. "
                f"increase the physical batch size (current batch size: {embedder.n_max})"
            )
    n_floats = embedder.n_embd * (sum(map(len, prompts)) if embedder.pooling == NO_POOLING else len(prompts))
    if n_floats > N_FLOATS_MAX:
        raise exceeds("input", N_FLOATS_MAX, "numbers in the answer", n_floats)
    # llama-server does not take `content` for a field of OpenAI's either
    model = body.get("model", server.options.model_name)
    return _Prompts(prompts, normalize, encoding, model, openai and "input" in body)


async def _embed_all(server: Server, embedder: Embedder, prompts: _Prompts) -> list[Matrix]:
    """The vectors of each text."""
    found: list[Matrix] = []
    for tokens in prompts.tokens:  # one by one, so that steps of the engine can run between them
        try:
            work = server.run_on_engine_thread(lambda tokens=tokens: embedder.embed(tokens, prompts.normalize))
            found.append(await work)
        except RuntimeError as e:
            raise failed(str(e)) from None
    return found


def _joined(prompt: Any) -> Any:
    """The text of `{"content": [{"type": "text", "text": ...}, ...]}`; another prompt as it is."""
    if not isinstance(prompt, dict) or "content" not in prompt:
        return prompt
    parts = prompt["content"]
    if not isinstance(parts, list) or not parts:
        raise invalid("Field 'content': expected a list of parts")
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid("Field 'content': expected parts of type 'text', since others have no embeddings here")
    return "".join(part["text"] for part in parts)


def _encoded(x: npt.NDArray[np.single], form: str) -> list[Any] | str:
    return base64.b64encode(x.astype("<f4").tobytes()).decode() if form == "base64" else x.tolist()
