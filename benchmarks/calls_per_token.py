"""Count the package's functions, and their files, from a POST to its first event, and between two tokens of a stream.

    python benchmarks/calls_per_token.py [--path /v1/chat/completions] [--ngrams] [--list]
    python benchmarks/calls_per_token.py --prepare 300

A tiny model is served in this process and decodes without drafts; with --ngrams n-grams draft, as by default, for a
text that has hardly any. Comprehensions and lambdas count as the function in which they stand. A hand-over is a call by
which one thread gives work to another. --prepare takes the CPU time, in
microseconds, of making a chat's body the engine's sequence, as a mean of so many times.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

PACKAGE = str(ROOT / "llama_cpp_eagle3")
BODIES: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "the self", "n_predict": 40},
    "/v1/completions": {"prompt": "the self", "max_tokens": 40},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the self"}], "max_tokens": 40},
}
N_SKIPPED = 10  # tokens at each end of a stream that do not count: some things happen only there
HAND_OVERS = ("put", "call_soon_threadsafe")
_ANONYMOUS = re.compile(r"(\.<locals>\.<\w+>)+$")


class Calls:
    """Calls of the package's Python functions, in all threads that begin after `threading.setprofile`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """"file:function" of each; hand-overs begin with ">"."""

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        """Count a call: `threading.setprofile` calls this."""
        code = frame.f_code
        if event == "c_call" and called.__name__ in HAND_OVERS and code.co_filename.startswith(PACKAGE):
            self.names.append(f">{called.__name__} in {_name(frame)}")
        elif event != "call":
            return
        elif code.co_filename.startswith(PACKAGE):
            self.names.append(_name(frame))
        elif code.co_name in HAND_OVERS and frame.f_back and frame.f_back.f_code.co_filename.startswith(PACKAGE):
            self.names.append(f">{code.co_name} in {_name(frame.f_back)}")


def _name(frame: FrameType) -> str:
    code: Any = frame.f_code  # from Python 3.11 on it has a qualified name
    return f"{Path(code.co_filename).relative_to(PACKAGE)}:{_ANONYMOUS.sub('', code.co_qualname)}"


def count(path: str, ngrams: bool = False) -> tuple[Counter[str], Counter[str]]:
    """Return (function -> calls from a POST to its first event, function -> calls of one token of a stream)."""
    from serving import Running
    from tiny import write_target

    calls = Calls()
    threading.setprofile(calls)
    options: dict[str, Any] = {"draft": "auto"} if ngrams else {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running = stack.enter_context(Running(write_target(Path(folder) / "target.gguf"), **options))
        if ngrams:
            running.server.llm.calibrate()
        engine, step = running.server.engine, running.server.engine.step

        def slow_step() -> Any:
            time.sleep(0.01)  # so that a token is sent before the next one is generated
            return step()

        engine.step = slow_step  # type: ignore[method-assign]
        body = {**BODIES[path], "temperature": 0, "ignore_eos": True, "stream": True}
        running.stream(path, body)  # the first request compiles modules and reads caches
        calls.names.clear()
        running.stream(path, body)
        names = calls.names[calls.names.index("serve/protocol.py:Protocol.data_received") :]
    threading.setprofile(None)  # type: ignore[arg-type]
    sends = [i for i, name in enumerate(names) if name.endswith("send_out")]
    first = Counter(names[: sends[1] + 1])  # the headers, then the first event
    steps = [i for i, name in enumerate(names) if name.endswith("Engine.step")]
    begin, end = steps[N_SKIPPED], steps[-N_SKIPPED]
    n_tokens = len(steps) - 2 * N_SKIPPED
    found = Counter(names[begin:end])
    return first, Counter({name: round(n / n_tokens) for name, n in found.items() if 2 * n > n_tokens})


def prepare_us(n: int) -> float:
    """Return a thread's CPU time for making a chat's body a sequence of the engine, in microseconds."""
    from llama_cpp_eagle3.serve.chat_completions import prepare_chat
    from llama_cpp_eagle3.serve.jsons import parse_json
    from llama_cpp_eagle3.serve.queue import Place
    from serving import Running
    from tiny import write_target

    text = json.dumps(BODIES["/v1/chat/completions"]).encode()
    with tempfile.TemporaryDirectory() as folder, Running(write_target(Path(folder) / "target.gguf")) as running:
        start = 0.0
        for i in range(-10, n):  # the first ones compile modules and read caches
            if i == 0:
                start = time.thread_time()
            place = Place(running.server.queue)
            prepare_chat(running.server, parse_json(text), place)
            running.server.queue.n_preparing -= place.n
        return 1e6 * (time.thread_time() - start) / n


def report(title: str, calls: Counter[str], names: bool) -> None:
    """Print the figures of one part."""
    if names:
        for name, n in sorted(calls.items()):
            print(f"{n:3} {name}")
    n_handed = sum(n for name, n in calls.items() if name.startswith(">"))
    functions = Counter({name: n for name, n in calls.items() if not name.startswith(">")})
    files = {name.split(":")[0] for name in functions}
    engine = [name for name in functions if name.startswith("engine/")]
    n_files = len({name.split(":")[0] for name in engine})
    print(
        f"{title}: {len(functions)} functions in {len(files)} files, of them {len(engine)} in {n_files} of the engine; "
        f"{sum(functions.values())} calls, {n_handed} hand-overs between threads"
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", choices=BODIES, default="/v1/chat/completions")
    parser.add_argument("--ngrams", action="store_true", help="let n-grams draft")
    parser.add_argument("--list", action="store_true", help="name the functions")
    parser.add_argument("--prepare", type=int, metavar="N", help="take the time of preparing a chat")
    args = parser.parse_args()
    if args.prepare:
        print(f"a chat is prepared in {prepare_us(args.prepare):.0f} us")
        return 0
    first, token = count(args.path, args.ngrams)
    report(f"{args.path}, from the POST to the first event", first, args.list)
    report(f"{args.path}, one token", token, args.list)
    return 0


if __name__ == "__main__":
    sys.exit(main())
