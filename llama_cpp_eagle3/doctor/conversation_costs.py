"""What a conversation costs with a model: bytes of the prefix cache, and seconds to evaluate it again."""

from __future__ import annotations

from ..engine import Engine, Sampling, StoredPrefix
from .finding import Finding

_N_SHORT, _N_LONG = 32, 96
_N_MEASURED = 512
_TOKEN = 1


def check_conversation(engine: Engine, *, measure: bool) -> list[Finding]:
    """The bytes that the prefix cache keeps for a token and for a state, and how much its host memory holds.

    Args:
        engine: without sequences; its prefix cache is cleared.
        measure: evaluate a prompt, and report how long that takes.
    """
    n_long = min(_N_LONG, engine.n_ctx // 2)
    n_short = n_long * _N_SHORT // _N_LONG
    short, long = _stored(engine, n_short), _stored(engine, n_long)
    target, draft = (
        (len(b) - len(a)) / (n_long - n_short) for a, b in ((short.target, long.target), (short.draft, long.draft))
    )
    n_state = engine.target.n_state_bytes() if engine.memory.needs_states else 0
    parts = f" ({_size(target)} of the target, {_size(draft)} of the drafter)" if draft > 0 else ""
    state = (
        f", and {_size(n_state)} for each state that it can go back to, {engine.slots.cache.tree.n_states_max} at most"
        if n_state
        else ""
    )
    n_bytes = engine.slots.cache.stats.n_bytes_max
    text = f"a conversation takes {_size(target + draft)} a token{parts}{state}"
    if target + draft > 0:
        text += f"; {_size(n_bytes)} of host memory hold {n_bytes / (target + draft):,.0f} tokens"
        text += f", or {n_bytes / n_state:,.0f} such states" if n_state else ""
    else:
        text += f"; {_size(n_bytes)} of host memory hold {n_bytes / max(1, n_state):,.0f} of them"
    found = [Finding("ok", f"{text} (--cache-ram)")]
    if n_bytes < max(n_state, engine.n_ctx * (target + draft)):
        advice = "--cache-ram takes more MiB, -c fewer tokens"
        text = f"host memory for conversations is less than one of {engine.n_ctx} tokens takes"
        found.append(Finding("note", text, advice))
    if measure:
        n = min(_N_MEASURED, engine.n_ctx // 2)
        seconds = _run(engine, n)
        text = f"to evaluate 1,000 tokens of it again takes {1000 * seconds / n:.1f} s (measured with {n})"
        found.append(Finding("ok", text))
    engine.clear()
    return found


def _run(engine: Engine, n_tokens: int) -> float:
    """Evaluate a prompt of its own and generate a token; returns the seconds that the prompt took."""
    tokens = [_TOKEN] * n_tokens
    sequence = engine.add(tokens, Sampling(temperature=0.0), max_tokens=1, cache_prompt=False, seq_id=0)
    while not sequence.is_done:
        engine.step()
    if sequence.result.error is not None:
        raise sequence.result.error
    return sequence.result.stats.prefill_ns * 1e-9


def _stored(engine: Engine, n_tokens: int) -> StoredPrefix:
    _run(engine, n_tokens)
    return engine.store_prefix(0)


def _size(n_bytes: float) -> str:
    unit, name = next(
        (u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes")) if n_bytes >= u or u == 1
    )
    return f"{n_bytes / unit:.{1 if unit > 1 else 0}f} {name}"
