"""Count the package's functions, and their files, that one streamed token passes from the engine's step to the event.

    python benchmarks/calls_per_token.py [--path /v1/chat/completions] [--list]

A tiny model is served in this process and decodes without drafts; what is counted are calls between two tokens.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
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
N_SKIPPED = 10  # tokens, until nothing happens for the first time


class Calls:
    """Calls of the package's Python functions, in all threads that begin after `threading.setprofile`."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """A profiler's hook."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            self.names.append(f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_qualname}")


def count(path: str) -> Counter[str]:
    """Function -> calls of one token of a stream."""
    from serving import Running
    from tiny import write_target

    calls = Calls()
    threading.setprofile(calls)
    with tempfile.TemporaryDirectory() as folder, Running(write_target(Path(folder) / "target.gguf")) as running:
        engine, step = running.server.engine, running.server.engine.step

        def slow_step() -> Any:
            time.sleep(0.01)  # so that a token has left before the next one comes
            return step()

        engine.step = slow_step  # type: ignore[method-assign]
        body = {**BODIES[path], "temperature": 0, "ignore_eos": True, "stream": True}
        running.stream(path, body)
        steps = [i for i, name in enumerate(calls.names) if name.endswith("Engine.step")]
        begin, end = steps[N_SKIPPED], steps[-N_SKIPPED]
        n_tokens = len(steps) - 2 * N_SKIPPED
        found = Counter(calls.names[begin:end])
    threading.setprofile(None)  # type: ignore[arg-type]
    return Counter({name: round(n / n_tokens) for name, n in found.items() if 2 * n > n_tokens})


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", choices=BODIES, default="/v1/chat/completions")
    parser.add_argument("--list", action="store_true", help="name the functions")
    args = parser.parse_args()
    calls = count(args.path)
    if args.list:
        for name, n in sorted(calls.items()):
            print(f"{n:3} {name}")
    files = {name.split(":")[0] for name in calls}
    print(f"{args.path}: {len(calls)} functions in {len(files)} files, {sum(calls.values())} calls a token")
    return 0


if __name__ == "__main__":
    sys.exit(main())
