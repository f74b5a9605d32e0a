"""/slots: the state of the slots, and saved slots.

A saved slot is a file with the tokens and the states of target and head, so that both continue exactly; see
`prefix_file`.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from starlette.requests import Request

from ..engine import StoredPrefix
from ..errors import Eagle3Error, ModelFileError
from ..files.prefix_file import Maker, PrefixFileError, read_prefix, write_prefix
from ..model.loaded import Loaded
from .api_errors import ApiError, failed, invalid, unsupported
from .fields import generation_settings
from .http import compute, until_gone
from .server import Server

_N_NAME_MAX = 255


async def slots(server: Server, request: Request) -> Any:
    """GET /slots."""
    if not server.options.slots:
        raise unsupported("This server does not support slots endpoint. Start it with `--slots`")
    state = await server.run_on_engine_thread(lambda: _state(server))
    if "fail_on_no_slot" in request.query_params and all(slot["is_processing"] for slot in state):
        raise ApiError(503, "unavailable_error", "no slot available")
    return state


def _state(server: Server) -> list[dict[str, Any]]:
    engine = server.engine
    running = {answer.sequence.seq_id: answer for answer in set(server.engine_thread.answers)}
    found = []
    for slot in engine.slots:
        answer = running.get(slot.seq_id)
        entry: dict[str, Any] = {
            "id": slot.seq_id,
            "n_ctx": engine.n_ctx,
            "speculative": bool(engine.drafters),
            "is_processing": answer is not None,
            "n_prompt_tokens_cached": len(slot.cached),
            "n_states": engine.slots.cache.n_states(slot),
        }
        if answer is not None:
            sequence, n_decoded = answer.sequence, answer.n_tokens
            entry |= {
                "n_prompt_tokens": len(sequence.tokens),
                "n_prompt_tokens_processed": answer.n_prefilled,
                "n_prompt_tokens_cache": answer.n_cached,
                "cached_in": answer.cached_in,
                "params": generation_settings(answer.completion, None, sequence.draft),  # without texts of its client
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


async def act(server: Server, request: Request) -> Any:
    """POST /slots/N?action=save, restore or erase."""
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
        async with server.queue.place() as place:
            await place.read(request.stream())  # after the body alone can the client be seen to leave
        work = _erase(server, id_slot)
    elif action in ("save", "restore"):
        path = await compute(request, lambda server, body, place: _path(server, body))
        work = _save(server, id_slot, path) if action == "save" else _restore(server, id_slot, path)
    else:
        raise invalid("Invalid action")
    return await until_gone(request.receive, work)


def _path(server: Server, body: dict[str, Any]) -> Path:
    """Return the path of the file that a request names, which must lie in the folder of saved slots."""
    folder, name = server.options.slot_save_path, body.get("filename")
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
    if path.is_symlink() or (path.exists() and not path.is_file()) or path.resolve().parent != folder.resolve():
        raise invalid("Invalid filename")
    return path


async def _save(server: Server, id_slot: int, path: Path) -> dict[str, Any]:
    start = perf_counter()
    stored = await server.run_on_engine_thread(lambda: server.engine.store_prefix(id_slot), id_slot)
    n_written = await server.run_in_executor(_write, path, server.llm.loaded, stored)
    return {
        "id_slot": id_slot,
        "filename": path.name,
        "n_saved": len(stored.tokens),
        "n_states": len(stored.states),
        "n_written": n_written,
        "timings": {"save_ms": 1e3 * (perf_counter() - start)},
    }


async def _restore(server: Server, id_slot: int, path: Path) -> dict[str, Any]:
    start = perf_counter()
    stored, n_read = await server.run_in_executor(_read, path, server.llm.loaded, server.engine.n_ctx)
    try:
        await server.run_on_engine_thread(lambda: server.engine.restore_prefix(id_slot, stored), id_slot)
    except (Eagle3Error, ValueError) as e:
        raise invalid(f"Unable to restore slot: {e}") from None
    return {
        "id_slot": id_slot,
        "filename": path.name,
        "n_restored": len(stored.tokens),
        "n_states": server.engine.slots.cache.n_states(server.engine.slots[id_slot]),
        "n_read": n_read,
        "timings": {"restore_ms": 1e3 * (perf_counter() - start)},
    }


async def _erase(server: Server, id_slot: int) -> dict[str, Any]:
    n_erased = await server.run_on_engine_thread(lambda: server.engine.evict_prefix(id_slot), id_slot)
    return {"id_slot": id_slot, "n_erased": n_erased}


def _maker(loaded: Loaded, what: str) -> Maker:
    """What identifies this model in files, once a thread has read all of its files."""
    try:
        return loaded.maker
    except (OSError, ModelFileError) as e:
        raise failed(f"Unable to {what} slot: {e}") from None


def _write(path: Path, loaded: Loaded, stored: StoredPrefix) -> int:
    """Write a file, whole or not at all; returns its size in bytes."""
    maker = _maker(loaded, "save")
    try:
        return write_prefix(path, maker, stored)
    except OSError as e:
        raise failed(f"Unable to save slot: '{path.name}': {e.strerror}") from None


def _read(path: Path, loaded: Loaded, n_ctx: int) -> tuple[StoredPrefix, int]:
    """Read a saved slot; returns it with the file's size in bytes.

    Raises:
        ApiError: the file is no saved slot, or another pair's.
    """
    try:
        head, stored = read_prefix(path)
    except OSError as e:
        raise invalid(f"Unable to restore slot: '{path.name}': {e.strerror}") from None
    except PrefixFileError as e:
        raise invalid(f"Unable to restore slot: '{path.name}' is not a saved slot of this server ({e})") from None
    if difference := _maker(loaded, "restore").differs(head.maker):
        raise invalid(f"Unable to restore slot: '{path.name}' was saved with {difference}")
    if len(head.tokens) > n_ctx:
        raise invalid(f"Unable to restore slot: it holds {len(head.tokens)} tokens, the slot's context {n_ctx}")
    return stored, head.n_file_bytes
