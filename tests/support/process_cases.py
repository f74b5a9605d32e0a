"""Run calls that could end a process, each in its own: forked from this one, which has imported everything.

python process_cases.py TARGET HEAD [NAME ...]        prints how each ended, as JSON
"""

from __future__ import annotations

import atexit
import copy
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llama_cpp import LlamaState
from llama_cpp._logger import set_verbose

from drafting import draft_chain, plan
from llama_cpp_eagle3 import Eagle3Llama
from loading import load, take

N_SECONDS = 30.0
OUTPUT = [1]
PROMPT = [1, 2, 3]
KEPT: list[Any] = []  # objects that still exist when the interpreter ends

# calls on a closed model
CALLS: dict[str, Callable[[Eagle3Llama], Any]] = {
    "call": lambda llm: llm("the", max_tokens=3),
    "create_completion": lambda llm: llm.create_completion("the", max_tokens=3),
    "create_chat_completion": lambda llm: llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=3),
    "create_embedding": lambda llm: llm.create_embedding("the"),
    "embed": lambda llm: llm.embed("the"),
    "tokenize": lambda llm: llm.tokenize(b"the"),
    "detokenize": lambda llm: llm.detokenize([300]),
    "tokenizer": lambda llm: llm.tokenizer().encode("the"),
    "tokenizer_": lambda llm: llm.tokenizer_.tokenize(b"the"),
    "n_ctx": lambda llm: llm.n_ctx(),
    "n_embd": lambda llm: llm.n_embd(),
    "n_vocab": lambda llm: llm.n_vocab(),
    "token_bos": lambda llm: llm.token_bos(),
    "token_eos": lambda llm: llm.token_eos(),
    "token_nl": lambda llm: llm.token_nl(),
    "ctx": lambda llm: llm.ctx,
    "model": lambda llm: llm.model,
    "generate": lambda llm: take(llm, PROMPT, 3),
    "generate_batch": lambda llm: llm.generate_batch([PROMPT]),
    "stream_batch": lambda llm: list(llm.generate_batch([PROMPT], stream=True)),
    "eval": lambda llm: llm.eval(PROMPT),
    "sample": lambda llm: llm.sample(),
    "reset": lambda llm: llm.reset(),
    "save_state": lambda llm: llm.save_state(),
    "load_state": lambda llm: llm.load_state(KEPT[0]),
    "features": lambda llm: llm.features,
    "calibrate": lambda llm: llm.calibrate(),
    "convert_draft": lambda llm: llm.convert_draft(8),
    "engine": lambda llm: llm.engine,
    "target": lambda llm: llm.target,
    "drafters": lambda llm: llm.drafters,
    "policy": lambda llm: llm.policy,
    "enter": lambda llm: llm.__enter__(),
}


def held(part: Any, use: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: use(part)


# objects that were taken from it before
PARTS: dict[str, Callable[[Eagle3Llama], Callable[[], Any]]] = {
    "drafter.propose": lambda llm: held(llm.drafters[0], lambda d: draft_chain(d, 5, 3)),
    "drafter.process_rows": lambda llm: held(
        llm.drafters[0], lambda d: d.process_rows(np.zeros((1, 192), np.float32), [1], 0)
    ),
    "drafter.state_get": lambda llm: held(llm.drafters[0], lambda d: d.state_get()),
    "drafter.head": lambda llm: held(llm.drafters[0], lambda d: d.head),
    "drafter.n_past": lambda llm: held(llm.drafters[0], lambda d: d.n_past()),
    "policy.propose": lambda llm: held(llm.policy, lambda p: plan(p, 5, 3)),
    "target.decode": lambda llm: held(llm.target, lambda t: t.decode([1], 0)),
    "target.argmax": lambda llm: held(llm.target, lambda t: t.argmax(0)),
    "target.logits": lambda llm: held(llm.target, lambda t: t.logits(0)),
    "target.state_get": lambda llm: held(llm.target, lambda t: t.state_get(0)),
    "target.n_state_bytes": lambda llm: held(llm.target, lambda t: t.n_state_bytes()),
    "target.truncate": lambda llm: held(llm.target, lambda t: t.truncate(0)),
    "engine.add": lambda llm: held(llm.engine, lambda e: (e.add(PROMPT), e.step())),
    "engine.step": lambda llm: held(llm.engine, lambda e: e.step()),
    "engine.vocab": lambda llm: held(llm.engine, lambda e: e.vocab.piece(17)),
    "engine.target": lambda llm: held(llm.engine, lambda e: e.target.decode([1], 0)),
    "tokenizer.encode": lambda llm: held(llm.tokenizer(), lambda t: t.encode("the")),
    "generator": lambda llm: held(started(llm.generate(PROMPT)), lambda g: next(g)),
    "batch": lambda llm: held(started(llm.generate_batch([PROMPT, PROMPT], stream=True)), lambda g: next(g)),
}


def started(stream: Any) -> Any:
    """Return a generator that has begun."""
    next(stream)
    return stream


def auto(target: str, head: str, **options: Any) -> Eagle3Llama:
    """Load a pair with every option: planner, embeddings, several sequences."""
    llm = load(target, head, draft="auto", **options)
    llm.calibrate(0.01)
    take(llm, PROMPT, 3)
    return llm


def closed(target: str, head: str) -> dict[str, str]:
    """Call each method of a closed model."""
    llm = auto(target, head)
    KEPT.append(llm.save_state())
    llm.close()
    return {name: outcome(lambda call=call: call(llm)) for name, call in CALLS.items()}


def parts_closed(target: str, head: str) -> dict[str, str]:
    """Call each part of a closed model."""
    outcomes = {}
    for name, take_part in PARTS.items():
        llm = auto(target, head)
        use = take_part(llm)
        llm.close()
        outcomes[name] = outcome(use)
    return outcomes


def parts_deleted(target: str, head: str) -> dict[str, str]:
    """Call each part of a deleted model."""
    outcomes = {}
    for name, take_part in PARTS.items():
        llm = auto(target, head)
        use = take_part(llm)
        del llm
        gc.collect()
        outcomes[name] = outcome(use)
    return outcomes


def with_block(target: str, head: str) -> str:
    with load(target, head) as llm:
        take(llm, PROMPT, 3)
    return outcome(lambda: llm.tokenize(b"the"))


def tap_deleted(target: str, head: str) -> str:
    """Read rows whose tap is deleted: they have memory of their own."""
    llm = load(target, head)
    take(llm, PROMPT, 3)
    tap, rows = llm.tap, llm.features
    n = float(rows.sum())
    llm.close()
    del llm
    gc.collect()
    assert tap is not None
    return outcome(lambda: float(rows.sum()) == n and float(tap.rows.sum()) == n)


def options_of(options: dict[str, Any]) -> Callable[[str, str], str]:
    """Load with options, and generate if that works."""

    def case(target: str, head: str) -> str:
        with_head = not options.pop("no_head", False)
        return outcome(lambda: load(target, head if with_head else None, **options)("the", max_tokens=3))

    return case


class Raw(LlamaState):  # type: ignore[misc]
    """A state that was made up."""

    def __init__(self, data: bytes, n_tokens: int = 3):
        ids = np.arange(512, dtype=np.intc)
        super().__init__(ids, np.zeros((max(n_tokens, 0), 320), np.single), n_tokens, data, len(data), 1)


def loaded_state(make: Callable[[Any], Any]) -> Callable[[str, str], str]:
    """Load a state that is none; the model works afterwards."""

    def case(target: str, head: str) -> str:
        llm = load(target, head)
        expected = take(llm, PROMPT, 5)
        good = llm.save_state()
        said = outcome(lambda: llm.load_state(make(good)))
        llm.load_state(good)
        assert take(llm, PROMPT, 5) == expected
        return said

    return case


def changed(state: Any, **values: Any) -> Any:
    state = copy.copy(state)
    state.__dict__.update(values)
    return state


def bytes_states(target: str, head: str) -> str:
    """Load states of target and drafter, damaged everywhere."""
    llm = load(target, head)
    take(llm, PROMPT, 5)
    rng = np.random.default_rng(0)
    for part in (llm.target, llm.drafters[0]):
        good = part.state_get(0)
        for data in (b"", b"x", b"x" * 1000, good[:-1], good[: len(good) // 2], good + b"x"):
            assert outcome(lambda part=part, data=data: set_state(part, data)) != "nothing", data
        for _ in range(300):
            data = bytearray(good)
            for i in rng.integers(0, min(len(good), rng.choice([64, 256, len(good)])), 3):
                data[i] ^= 1 << int(rng.integers(8))
            outcome(lambda part=part, data=data: set_state(part, bytes(data)))
    outcome(lambda: take(llm, PROMPT, 5))
    return "survived"


def set_state(part: Any, data: bytes) -> None:
    part.state_set(state=data, seq_id=0)


# the end of the interpreter


def in_thread(run: Callable[[], Any]) -> None:
    """Run in a thread that the end of the interpreter does not wait for; return once it runs."""
    running = threading.Event()

    def loop() -> None:
        running.set()
        while True:
            run()

    threading.Thread(target=loop, daemon=True).start()
    running.wait()
    time.sleep(0.05)


def exit_generating(target: str, head: str) -> str:
    llm = load(target, head)
    in_thread(lambda: take(llm, PROMPT, 300))
    return "left"


def exit_generating_global(target: str, head: str) -> str:
    KEPT.append(load(target, head))
    in_thread(lambda: KEPT[0]("the", max_tokens=300))
    return "left"


def exit_batch(target: str, head: str) -> str:
    llm = load(target, head, n_parallel=4)
    in_thread(lambda: llm.generate_batch([PROMPT] * 8, max_tokens=100))
    return "left"


def exit_engine(target: str, head: str) -> str:
    llm = load(target, head, n_parallel=4)

    def run() -> None:
        llm.engine.add(PROMPT, max_tokens=50)
        llm.engine.step()

    in_thread(run)
    return "left"


def exit_tokenizing(target: str, head: str) -> str:
    llm = load(target, head)
    in_thread(lambda: llm.tokenize(b"the self " * 500))
    return "left"


def exit_loading(target: str, head: str) -> str:
    in_thread(lambda: load(target, head).close())
    return "left"


def exit_many(target: str, head: str) -> str:
    llms = [load(target, head) for _ in range(4)]
    for llm in llms:
        in_thread(lambda llm=llm: take(llm, PROMPT, 300))
    return "left"


def exit_open_generator(target: str, head: str) -> str:
    llm = load(target, head)
    KEPT.extend([started(llm.generate(PROMPT)), llm])
    return "left"


def exit_open_batch(target: str, head: str) -> str:
    llm = load(target, head, n_parallel=2)
    KEPT.extend([started(llm.generate_batch([PROMPT] * 3, stream=True)), llm])
    return "left"


def exit_open_completion(target: str, head: str) -> str:
    llm = load(target, head)
    KEPT.append(started(llm("the", max_tokens=50, stream=True)))
    return "left"


def exit_waits(target: str, head: str) -> str:
    """End while a thread that is no daemon runs: it comes to its end first."""
    llm = load(target, head)
    threading.Thread(target=lambda: say(f"thread: {len(take(llm, PROMPT, 200))}")).start()
    return "left"


def exit_atexit(target: str, head: str) -> str:
    """Close the model at exit, which must still work."""
    llm = load(target, head)
    take(llm, PROMPT, 5)
    atexit.register(llm.close)
    return "left"


def exit_parts(target: str, head: str) -> str:
    """Drop drafter, planner, tap and target before the model, in any order."""
    llm = auto(target, head)
    KEPT.extend([llm.drafters[0], llm.policy, llm.tap, llm.target, llm])
    return "left"


def exit_while_closing(target: str, head: str) -> str:
    llm = load(target, head)
    in_thread(lambda: take(llm, PROMPT, 300))
    KEPT.append(llm)
    said = outcome(llm.close)
    assert said == "nothing" or "is in use" in said, said
    return "left"


TYPES_REFUSED = {
    "type_k": (12, 24, -1, 999, 2**31, "q5_k"),
    "type_v": (12, 36, -1, 8),  # the last type without flash attention
    "draft_type_k": (12, -1, "q"),
    "draft_type_v": (24, 999),
    "draft_type": (1, 24, 999),
}
BAD_OPTIONS: dict[str, dict[str, Any]] = {
    **{f"{name}={t}": {name: t} for name, types in TYPES_REFUSED.items() for t in types},
    "n_batch=-5": {"n_batch": -5},
    "n_ubatch=-5": {"n_ubatch": -5},
    "n_ctx=-1": {"n_ctx": -1},
    "n_ctx=2**40": {"n_ctx": 2**40},
    "n_threads=-5": {"n_threads": -5},
    "n_threads=100000": {"n_threads": 100000},
    "n_threads_batch=-1": {"n_threads_batch": -1},
    "n_threads_batch=100000": {"n_threads_batch": 100000},
    "n_parallel=-1": {"n_parallel": -1},
    "vocab_only": {"vocab_only": True, "no_head": True},
    "vocab_only and embedding": {"vocab_only": True, "embedding": True, "no_head": True},
}

CASES: dict[str, Callable[[str, str], Any]] = {
    "closed": closed,
    "parts_closed": parts_closed,
    "parts_deleted": parts_deleted,
    "with_block": with_block,
    "tap_deleted": tap_deleted,
    **{f"options {name}": options_of(options) for name, options in BAD_OPTIONS.items()},
    "state None": loaded_state(lambda good: None),
    "state bytes": loaded_state(lambda good: b"state"),
    "state empty": loaded_state(lambda good: Raw(b"")),
    "state garbage": loaded_state(lambda good: Raw(b"x" * 5000)),
    "state cut": loaded_state(lambda good: changed(good, llama_state=good.llama_state[:100], llama_state_size=100)),
    "state half": loaded_state(
        lambda good: changed(good, llama_state=good.llama_state[:-50], llama_state_size=len(good.llama_state) - 50)
    ),
    "state size": loaded_state(lambda good: changed(good, llama_state_size=1 << 30)),
    "state tokens": loaded_state(lambda good: changed(good, n_tokens=-5)),
    "state ids": loaded_state(lambda good: changed(good, input_ids=None)),
    "state draft": loaded_state(lambda good: changed(good, draft_state=b"x" * 999)),
    "state bits": bytes_states,
    **{name: case for name, case in list(globals().items()) if name.startswith("exit_")},
}


def outcome(call: Callable[[], Any]) -> str:
    """Return the error that a call raises, or the kind of its result."""
    try:
        return "nothing" if call() is None else "returned"
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def say(text: str) -> None:
    """Print to a file that no library's silencing of standard output reaches."""
    os.write(OUTPUT[-1], text.encode() + b"\n")


def run(case: Callable[[str, str], Any], target: str, head: str) -> dict[str, Any]:
    """Fork, run a case in the child, and return how that ended."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            OUTPUT.append(os.dup(out.fileno()))
            os.dup2(errors.fileno(), 2)
            say(json.dumps(case(target, head)))
            raise SystemExit(0)
        end = time.monotonic() + N_SECONDS
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                break
            if time.monotonic() > end:
                os.kill(pid, 9)
            time.sleep(0.002)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return {
        "seconds": round(N_SECONDS - end + time.monotonic(), 2),
        "status": os.waitstatus_to_exitcode(status),
        "out": texts[0],
        "errors": texts[1][-3000:],
    }


def main() -> None:
    target, head, *names = sys.argv[1:]
    set_verbose(False)
    print(json.dumps({name: run(CASES[name], target, head) for name in names or CASES}))


if __name__ == "__main__":
    main()
