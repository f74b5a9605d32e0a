"""/slots: the state of the slots, and saved slots.

A saved slot is a file with the tokens and what target and head hold of them, so that both go on exactly; it names the
pair that made it. A checksum of all of it comes last and is looked at first: llama.cpp takes any number as it is, NaN
too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from pathlib import Path
from time import perf_counter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .._core import SavedState
from ..engine import Sequence, StoredPrefix
from ..errors import Eagle3Error
from ..whole_file import whole_file
from .errors import ApiError, failed, invalid, unsupported
from .generation import Answer, Generation
from .http import Json, compute, until_gone
from .response_format import settings_of
from .server import Server

_MAGIC = b"EAGLE3SLOT\x03\n"
_N_DIGEST = hashlib.sha256().digest_size
_N_NAME_MAX = 255


async def slots(request: Request) -> Response:
    """GET /slots."""
    server: Server = request.app.state.server
    if not server.options.slots:
        raise unsupported("This server does not support slots endpoint. Start it with `--slots`")
    state = await server.run_on_engine_thread(lambda: _state(server))
    if "fail_on_no_slot" in request.query_params and all(slot["is_processing"] for slot in state):
        raise ApiError(503, "unavailable_error", "no slot available")
    return Json(state)


def _state(server: Server) -> list[dict[str, Any]]:
    engine = server.engine
    running: dict[int, tuple[Sequence, Answer]] = {}
    for job in set(server.engine_thread.jobs):
        if job.sequence.seq_id >= 0 and isinstance(job.listener, Generation):
            running[job.sequence.seq_id] = job.sequence, job.listener.answers[job.index]
    found = []
    for slot in engine.slots:
        user = running.get(slot.seq_id)
        entry: dict[str, Any] = {
            "id": slot.seq_id,
            "n_ctx": engine.n_ctx,
            "speculative": engine.drafter is not None,
            "is_processing": user is not None,
            "n_prompt_tokens_cached": len(slot.cached),
            "n_states": engine.slots.cache.n_states(slot),
        }
        if user is not None:
            sequence, answer = user
            n_decoded = answer.metrics.n_tokens
            entry |= {
                "n_prompt_tokens": len(sequence.tokens),
                "n_prompt_tokens_processed": answer.metrics.n_prefilled,
                "n_prompt_tokens_cache": answer.metrics.n_cached,
                "cached_in": answer.metrics.cached_in,
                "params": settings_of(server, answer),
                "draft_n": sequence.result.stats.drafted,
                "draft_n_accepted": sequence.result.stats.accepted,
                "next_token": [
                    {
                        "has_next_token": True,
                        "has_new_line": "\n" in answer.text,
                        "n_remain": sequence.max_tokens - n_decoded if answer.completion.n_predict >= 0 else -1,
                        "n_decoded": n_decoded,
                    }
                ],
            }
        found.append(entry)
    return found


async def act(request: Request) -> Response:
    """POST /slots/N?action=save, restore or erase."""
    server: Server = request.app.state.server
    if server.options.slot_save_path is None:
        raise unsupported("This server does not support slots action. Start it with `--slot-save-path`")
    try:
        id_slot = int(request.path_params["id_slot"])
    except ValueError:
        raise invalid("Invalid slot ID") from None
    if not 0 <= id_slot < server.n_slots:
        raise invalid("Invalid slot ID")
    action = request.query_params.get("action", "")
    if action == "erase":
        async with server.bodies.read(request.stream()):
            pass  # none is needed, but only after it can the client be seen to leave
        work = _erase(server, id_slot)
    elif action in ("save", "restore"):
        path = await compute(request, _path)
        work = _save(server, id_slot, path) if action == "save" else _restore(server, id_slot, path)
    else:
        raise invalid("Invalid action")
    return Json(await until_gone(request.receive, work))


def _path(server: Server, body: Any) -> Path:
    """The file that a request names, in the folder alone."""
    folder, name = server.options.slot_save_path, body.get("filename") if isinstance(body, dict) else None
    assert folder is not None
    if (
        not isinstance(name, str)
        or not name
        or len(name.encode(errors="replace")) > _N_NAME_MAX
        or name in (".", "..")
        or not name.isprintable()
        or any(char in '/\\:*?"<>|' for char in name)
    ):
        raise invalid("Invalid filename")
    path = folder / name
    if path.is_symlink() or path.resolve().parent != folder.resolve():
        raise invalid("Invalid filename")
    return path


async def _save(server: Server, id_slot: int, path: Path) -> dict[str, Any]:
    start = perf_counter()
    stored = await server.run_on_engine_thread(lambda: server.engine.store_prefix(id_slot), id_slot)
    n_written = await server.run_in_executor(_write, path, server.llm.loaded.pair_id, stored)
    return {
        "id_slot": id_slot,
        "filename": path.name,
        "n_saved": len(stored.tokens),
        "n_written": n_written,
        "timings": {"save_ms": 1e3 * (perf_counter() - start)},
    }


async def _restore(server: Server, id_slot: int, path: Path) -> dict[str, Any]:
    start = perf_counter()
    stored, n_read = await server.run_in_executor(_read, path, server.llm.loaded.pair_id, server.engine.n_ctx)
    try:
        await server.run_on_engine_thread(lambda: server.engine.restore_prefix(id_slot, stored), id_slot)
    except (Eagle3Error, ValueError) as e:
        raise invalid(f"Unable to restore slot: {e}") from None
    return {
        "id_slot": id_slot,
        "filename": path.name,
        "n_restored": len(stored.tokens),
        "n_read": n_read,
        "timings": {"restore_ms": 1e3 * (perf_counter() - start)},
    }


async def _erase(server: Server, id_slot: int) -> dict[str, Any]:
    n_erased = await server.run_on_engine_thread(lambda: server.engine.evict_prefix(id_slot), id_slot)
    return {"id_slot": id_slot, "n_erased": n_erased}


def _write(path: Path, pair: tuple[str, str], stored: StoredPrefix) -> int:
    """Write a file, all of it or nothing; returns its size."""
    tokens = stored.tokens
    header = json.dumps(
        {
            "target": pair[0],
            "draft": pair[1],
            "n_tokens": len(tokens),
            "n_target": len(stored.target),
            "n_draft": len(stored.draft),
            "states": [[n_tokens, state.n_past, state.n_bytes] for n_tokens, state in stored.states],
        }
    ).encode()
    head = _MAGIC + struct.pack("<I", len(header)) + header + struct.pack(f"<{len(tokens)}i", *tokens)
    pieces = [head, stored.target, stored.draft, *(state.data for _, state in stored.states)]
    digest = hashlib.sha256()
    try:
        with whole_file(path, mode=0o600) as part, part.open("wb") as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
            file.write(digest.digest())
    except OSError as e:
        raise failed(f"Unable to save slot: {e.strerror}") from None
    return sum(map(len, pieces)) + _N_DIGEST


def _read(path: Path, pair: tuple[str, str], n_ctx: int) -> tuple[StoredPrefix, int]:
    """(what was saved, size of the file).

    Raises:
        ApiError: it is no such file, or another pair's.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise invalid(f"Unable to restore slot: {e.strerror}") from None
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("it is none, or another version's")
        n_end = len(data) - _N_DIGEST
        if hashlib.sha256(memoryview(data)[:n_end]).digest() != data[n_end:]:
            raise ValueError("it is truncated or damaged: its checksum is another one")
        (n_header,) = struct.unpack_from("<I", data, len(_MAGIC))
        begin = len(_MAGIC) + 4
        header = json.loads(data[begin : begin + n_header])
        begin += n_header
        n_tokens, n_target, n_draft = (int(header[name]) for name in ("n_tokens", "n_target", "n_draft"))
        sizes = [tuple(map(int, state)) for state in header["states"]]
        n_states = sum(n_bytes for _, _, n_bytes in sizes)
        if (
            min(n_tokens, n_target, n_draft, *(min(state) - 1 for state in sizes)) < 0
            or any(n > n_tokens for n, _, _ in sizes)
            or n_end != begin + 4 * n_tokens + n_target + n_draft + n_states
        ):
            raise ValueError("it is truncated")
        saved = str(header["target"]), str(header["draft"])
        tokens = list(struct.unpack_from(f"<{n_tokens}i", data, begin))
    except (ValueError, KeyError, TypeError, struct.error) as e:
        raise invalid(f"Unable to restore slot: '{path.name}' is not a saved slot of this server ({e})") from None
    for name, mine, other in zip(("target", "draft"), pair, saved, strict=True):
        if mine != other:
            raise invalid(
                f"Unable to restore slot: '{path.name}' was saved with another {name}: fingerprint "
                f"{other[:12] or 'none'}, this server has {mine[:12] or 'none'}"
            )
    if n_tokens > n_ctx:
        raise invalid(f"Unable to restore slot: it holds {n_tokens} tokens, the slot's context {n_ctx}")
    ends = [begin + 4 * n_tokens]
    for n_bytes in (n_target, n_draft, *(n for _, _, n in sizes)):
        ends.append(ends[-1] + n_bytes)
    target, draft, *states = (data[a:b] for a, b in itertools.pairwise(ends))
    stored = [(n, SavedState(n_past, state)) for (n, n_past, _), state in zip(sizes, states, strict=True)]
    return StoredPrefix(tokens, target, draft, stored), len(data)
