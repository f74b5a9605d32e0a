"""The server's state and its tokenizer: /health, /v1/models, /props, /metrics, and those of tokens."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import llama_cpp.llama_cpp as lib
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .absent import Absent
from .api_errors import ApiError, invalid, not_found, unsupported
from .fields import Completion, generation_settings, parse
from .jsons import LIMITS, check_field
from .metrics import learn_lines
from .reply import FINGERPRINT
from .server import Server


async def health(server: Server, request: Request) -> Any:
    """GET /health."""
    if server.engine_thread.failure:
        raise ApiError(503, "unavailable_error", server.engine_thread.failure)
    return {"status": "ok"}


async def models(server: Server, request: Request) -> Any:
    """GET /v1/models, with `models` for Ollama's clients, as llama-server has it, and for Codex (model_catalog_url)."""
    name, described = server.options.model_name, _model(server)
    arch = described["meta"]["arch"]
    entry = {
        "name": name,
        "model": name,
        "type": "model",
        "tags": [""],
        "capabilities": ["completion"],
        **dict.fromkeys(("modified_at", "size", "digest", "description", "parameters"), ""),
        "details": {"format": "gguf", "family": arch, "families": [arch]},
        **_codex_fields(server),
    }
    ends = {"first_id": name, "last_id": name, "has_more": False}  # Anthropic's
    return {"object": "list", "models": [entry], "data": [described], **ends}


async def model(server: Server, request: Request) -> Any:
    """GET /v1/models/{id}, by any of its names."""
    id = request.path_params["id"]
    if id not in (server.options.model_name, *server.options.aliases):
        raise not_found(f"The model '{id}' does not exist, '{server.options.model_name}' is served here")
    return _model(server)


def _model(server: Server) -> dict[str, Any]:
    """Return OpenAI's object for the model, with Anthropic's, llama-server's and vLLM's fields."""
    return {
        "id": server.options.model_name,
        "object": "model",
        "type": "model",
        "display_name": server.options.model_name,
        "lifecycle": "active",
        "max_input_tokens": server.engine.n_ctx,
        "created": server.metrics.t_start,
        "created_at": datetime.fromtimestamp(server.metrics.t_start, timezone.utc).isoformat(timespec="seconds"),
        "owned_by": "llama-cpp-eagle3",
        "root": server.llm.model_path,
        "parent": None,
        "max_model_len": server.engine.n_ctx,
        "aliases": sorted(server.options.aliases),
        "tags": sorted(server.options.tags),
        "meta": _model_info(server),
    }


_CODEX_INSTRUCTIONS = (
    "You are a coding agent in a terminal of the user's computer. Read files before you change them, change them with "
    "apply_patch, run commands with exec_command, and go on until what the user asked for is done and checked. Then "
    "say in a few words what you did."
)
"""In place of Codex's own, which have 4,000 tokens, and which it sends to models that it knows nothing of."""


def _codex_fields(server: Server) -> dict[str, Any]:
    """What Codex wants to know of a model; some of its versions refuse an entry without one of these fields."""
    images = server.projector is not None and bool(server.projector.types[0])
    return {
        "slug": server.options.model_name,
        "display_name": server.options.model_name,
        "base_instructions": _CODEX_INSTRUCTIONS,
        "context_window": server.engine.n_ctx,
        "input_modalities": ["text", "image"] if images else ["text"],
        "apply_patch_tool_type": "freeform",
        "shell_type": "shell_command",
        "experimental_supported_tools": [],
        "supports_parallel_tool_calls": True,
        "supported_reasoning_levels": [],
        "supports_reasoning_summaries": False,
        "supports_reasoning_summary_parameter": False,
        "support_verbosity": False,
        "truncation_policy": {"mode": "bytes", "limit": 10_000},
        "visibility": "list",
        "supported_in_api": True,
        "priority": 0,
    }


def _model_info(server: Server) -> dict[str, Any]:
    model = server.llm.model_address
    vocab = server.engine.vocab
    return {
        "arch": server.llm.metadata.get("general.architecture", ""),
        "vocab_type": int(lib.llama_vocab_type(vocab.pointer)),
        "n_vocab": vocab.n_tokens,
        "n_ctx": server.engine.n_ctx,
        "n_ctx_train": int(lib.llama_model_n_ctx_train(model)),
        "n_embd": int(lib.llama_model_n_embd(model)),
        "n_params": int(lib.llama_model_n_params(model)),
        "size": int(lib.llama_model_size(model)),
    }


async def props(server: Server, request: Request) -> Any:
    """GET /props."""
    options, engine = server.options, server.engine
    settings = generation_settings(parse(Completion, {}, options.defaults), None, engine.draft)
    images, sounds = (False, False) if server.projector is None else map(bool, server.projector.types)
    return {
        "default_generation_settings": {"params": settings, "n_ctx": engine.n_ctx},
        "total_slots": server.n_slots,
        "model_alias": options.model_name,
        "model_path": server.llm.model_path,
        "draft_model_path": server.llm.draft_model_path,
        "speculative": await server.run_on_engine_thread(server.drafting),
        "learn": None if server.learner is None else server.learner.figures(),
        "modalities": {"vision": images, "audio": sounds, "video": False},
        "endpoint_slots": options.slots,
        "endpoint_props": False,
        "endpoint_metrics": options.metrics,
        "ui": options.ui,
        "chat_template": server.templates.source(),
        "has_chat_template": server.templates.is_explicit,
        "chat_template_caps": server.templates.caps,
        "bos_token": _special(server, int(lib.llama_vocab_bos(engine.vocab.pointer))),
        "eos_token": _special(server, int(lib.llama_vocab_eos(engine.vocab.pointer))),
        "build_info": FINGERPRINT,
        "is_sleeping": False,
    }


async def refuse(absent: Absent, server: Server, request: Request) -> Any:
    """Answer an endpoint that only llama-server has with the reason why it is absent."""
    raise unsupported(f"This server has no {absent.name}: {absent.why}")


async def tokenizer_info(server: Server, request: Request) -> Any:
    """GET /tokenizer_info, vLLM's: what a client needs to tokenize here (/tokenize) and to render chats itself."""
    vocab = server.engine.vocab.pointer
    tokens = {"bos_token": lib.llama_vocab_bos, "eos_token": lib.llama_vocab_eos, "pad_token": lib.llama_vocab_pad}
    return {
        "tokenizer_class": server.llm.metadata.get("tokenizer.ggml.model", ""),
        **{name: _special(server, int(token(vocab))) or None for name, token in tokens.items()},
        "add_bos_token": bool(lib.llama_vocab_get_add_bos(vocab)),
        "add_eos_token": bool(lib.llama_vocab_get_add_eos(vocab)),
        "model_max_length": server.engine.n_ctx,
        "chat_template": server.templates.source() if server.templates.is_explicit else None,
    }


def _special(server: Server, token: int) -> str:
    return server.tokenizer.detokenize([token]) if token >= 0 else ""


async def metrics(server: Server, request: Request) -> Response:
    """GET /metrics."""
    if not server.options.metrics:
        raise unsupported("This server does not support metrics endpoint. Start it with `--metrics`")
    text = server.metrics.prometheus(
        len(server.engine_thread.answers), server.n_slots, server.cache_usage, server.engine.slots.cache.stats
    )
    if server.learner is not None:
        text += learn_lines(server.learner.figures())
    headers = {"Process-Start-Time-Unix": str(server.metrics.t_start)}
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4", headers=headers)


def tokenize(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """POST /tokenize, with llama-server's `content` or vLLM's `prompt`."""
    is_vllm = "content" not in body and "prompt" in body
    field = "prompt" if is_vllm else "content"
    content = body.get(field)
    add_special = bool(body.get("add_special_tokens" if is_vllm else "add_special", is_vllm))
    tokens: list[int] = []
    if content is not None:
        check_field(field, content, LIMITS["content"])
        tokens = server.tokenizer.mixed(content, add_special, bool(body.get("parse_special", True)))
    found: list[Any] = tokens
    if body.get("with_pieces"):
        found = [{"id": token, "piece": _piece(server, token)} for token in tokens]
    answer: dict[str, Any] = {"tokens": found}
    return answer | ({"count": len(tokens), "max_model_len": server.engine.n_ctx} if is_vllm else {})


def _piece(server: Server, token: int) -> str | list[int]:
    piece = server.tokenizer.vocab.piece(token, True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def detokenize(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """POST /detokenize."""
    tokens = body.get("tokens", [])
    if not isinstance(tokens, list):
        raise invalid("Field 'tokens': expected a list of tokens")
    text = server.tokenizer.detokenize([server.tokenizer.check(token, "tokens") for token in tokens])
    return {"content": text, "prompt": text}
