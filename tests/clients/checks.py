"""What a file of programs/ needs in its own environment, and the loop that runs the checks of one.

    python checks.py programs/openai.py

A check is a function without an underscore; its name says what works. It returns, or raises.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

URL = os.environ.get("URL", "")
V1 = f"{URL}/v1"
SECONDS = 1700
"""The longest that a check may take."""
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
QUESTION = "What is the weather in Rome?"


def fetch(path: str, body: Any = None) -> str:
    """What the server answers to a GET, or to a POST if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return str(response.read().decode())


def model() -> str:
    """The name of the model that is served."""
    return str(json.loads(fetch("/v1/models"))["data"][0]["id"])


def counter(name: str) -> float:
    """A counter of /metrics, such as prompt_tokens_cached_total."""
    found = re.search(rf"^[a-z]+:{name}(?:{{.*}})? (\S+)$", fetch("/metrics"), re.MULTILINE)
    return float(found[1]) if found else 0.0


class Counted:
    """What requests inside of a `with` block cost: tokens of prompts, those that were found, times of first tokens."""

    def __enter__(self) -> Counted:
        self._before = self._now()
        return self

    def __exit__(self, *error: object) -> None:
        n_new, self.n_found, self.seconds, self.n = (
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )
        self.n_prompt = n_new + self.n_found

    def __str__(self) -> str:
        """What a check says of them that expected less."""
        first = f", and a first token took {self.seconds / self.n:.2f} s" if self.n else ""
        return f"{self.n_found:,.0f} of {self.n_prompt:,.0f} tokens of prompts were found again{first}"

    @staticmethod
    def _now() -> list[float]:
        names = ("prompt_tokens_total", "prompt_tokens_cached_total")
        times = ("time_to_first_token_seconds_sum", "time_to_first_token_seconds_count")
        return [counter(name) for name in (*names, *times)]


def ask_runner(line: str) -> None:
    """Have the runner do something for this check."""
    print(line, file=sys.__stdout__, flush=True)
    sys.stdin.readline()


def restart() -> None:
    """Have the server end and start again, at the same address and with the same folder of prefixes."""
    ask_runner("restart")


def run(*command: str, seconds: int = SECONDS - 10, **environment: str) -> str:
    """What a program prints. It runs in the current folder, and its own output goes to the log too."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "timeout": seconds}
    try:
        done = subprocess.run(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, **options)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{Path(command[0]).name} has not ended after {seconds} s") from None
    print(*command, done.stdout, done.stderr, sep="\n", file=sys.stderr, flush=True)
    assert done.returncode == 0, f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-300:]}"
    return done.stdout


def program(name: str) -> str:
    """The path of a program of this environment."""
    return str(Path(sys.executable).with_name(name))


def _check(function: Callable[[], None]) -> str:
    """Run a check; returns "" or what went wrong, in one line."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS + 5)
    try:
        function()
    except BaseException as e:
        traceback.print_exc()
        line = traceback.extract_tb(e.__traceback__)[-1].line if isinstance(e, AssertionError) and not e.args else ""
        said = " ".join(str(e).split()) or line
        # a check's own words need no name of an error
        return (said if isinstance(e, AssertionError) and e.args else f"{type(e).__name__}: {said}")[:300]
    finally:
        signal.alarm(0)
    return ""


def main() -> None:
    """Run the checks of a file, and write what became of each as a line of JSON."""
    path = os.path.abspath(sys.argv[1])
    functions = [
        value
        for name, value in runpy.run_path(path).items()
        if isinstance(value, FunctionType) and value.__code__.co_filename == path and not name.startswith("_")
    ]
    with open(os.environ["RESULTS"], "w", encoding="utf-8") as results:
        for function in functions:
            print(f"--- {function.__name__}", file=sys.stderr, flush=True)
            wrong = _check(function)
            print(json.dumps([function.__name__.replace("_", " "), wrong]), file=results, flush=True)


if __name__ == "__main__":
    sys.path[0] = ""  # a client's name is a package's, not that of a file here
    sys.path.append(str(Path(__file__).parent))
    main()
    os._exit(0)  # threads of a client may not end
