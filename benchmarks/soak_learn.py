"""A day of `serve --learn`, compressed: 200 cycles of work, idleness and a kill, on one folder.

    python benchmarks/soak_learn.py --cycles 200

Each cycle starts a server, asks for texts, waits while a head learns, and ends it: by SIGKILL, by SIGTERM, or after a
SIGKILL of the training. Texts must be the same as without drafts in all cycles, whatever was learned; of the texts that
a server kept, at most the last may be missing in the next one; its log has no line above level INFO but what the load
asks for. The server is the real one, but that fewer texts are enough for a training, and that it takes seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from llama_cpp_eagle3 import models
from llama_cpp_eagle3.cli import main as run_command
from llama_cpp_eagle3.draft.learn import learner, rounds
from llama_cpp_eagle3.serve import server
from serve import free_port
from soak import complaints

_N_PREDICT = 32
_IDLE_SECONDS = 0.3
_TRAINING_MINUTES = 0.1
_LONG_EVERY, _LONG_SECONDS = 4, 60.0  # each fourth cycle waits for the end of a training, at most so long
_ENDS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGKILL of the training")
_WARNINGS = ("--learn: ", "slower than", "the small model", "prefix cache")
"""How lines of the log begin that the load asks for."""


@dataclass
class Counts:
    """What happened."""

    cycles: int = 0
    texts: int = 0
    seconds: float = 0.0
    heads: Counter[str] = field(default_factory=Counter)
    n_kept: int = 0
    head: int = 0
    n_mib: float = 0.0
    wrong: list[str] = field(default_factory=list)


class SoonIdle(learner.Learner):
    """A learner that waits for no minute."""

    def __init__(self, *args: Any):
        """The arguments are those of `Learner`, with the seconds of idleness last."""
        super().__init__(*(*args[:-1], _IDLE_SECONDS))


def serve(arguments: list[str]) -> int:
    """The server, with trainings that begin early and end soon."""
    with (
        patch.object(server, "Learner", SoonIdle),
        patch.object(rounds, "N_ANSWER_MIN", 400),
        patch.object(rounds, "N_CONVERSATIONS_MIN", 10),
        patch.object(learner, "minutes_of", lambda texts, heads: _TRAINING_MINUTES),
    ):
        return run_command(["serve", *arguments])


class Day:
    """The cycles, and the texts that they must have."""

    def __init__(self, folder: Path, target: str, head: str, seed: int):
        self.folder, self.target, self.head = folder, target, head
        self.prompts = models.heldout_prompts()
        self.plain: dict[int, str] = {}
        self.rng = random.Random(seed)
        self.counts = Counts()

    def cycle(self) -> None:
        """Start a server, work, be idle, and end it."""
        counts, rng, port = self.counts, self.rng, free_port()
        log = self.folder / "log"
        command = [sys.executable, __file__, "--serve", "-m", self.target, "-md", self.head, "--port", str(port)]
        command += ["--learn", str(self.folder / "kept"), "--learn-share", "1", "-t", "1", "-c", "2048"]
        command += ["--log-format", "json"]
        with log.open("wb") as file, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            process = subprocess.Popen(command, stderr=file, stdout=subprocess.DEVNULL)
            try:
                self._wait_until_ready(client, process)
                learned = client.get("/props").json()["learn"]
                if counts.n_kept - learned["texts"] > 1:
                    counts.wrong.append(f"cycle {counts.cycles}: {learned['texts']} texts of {counts.n_kept}")
                for _ in range(rng.randint(2, 6)):
                    self.ask(client)
                self.idle(client)
                learned = client.get("/props").json()["learn"]
                counts.n_kept, counts.head = learned["texts"], learned["head"]
                counts.n_mib = learned["bytes"] / 2**20
                counts.heads = Counter(entry["state"] for entry in learned["heads"])
                if rng.random() < 0.5:  # while it learns
                    self.ask(client)
                self.end(process)
            finally:
                process.kill()
                process.wait()
        counts.wrong += complaints(log, _WARNINGS)
        counts.cycles += 1

    def _wait_until_ready(self, client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            with suppress(httpx.TransportError):
                if client.get("/health").status_code == 200:
                    return
            time.sleep(0.05)
        sys.exit(f"the server does not start:\n{(self.folder / 'log').read_text()}")

    def ask(self, client: httpx.Client) -> None:
        """Ask for a text with drafts; it must be the one without."""
        i = self.rng.randrange(len(self.prompts))
        body = {"prompt": self.prompts[i], "n_predict": _N_PREDICT, "temperature": 0.0}
        if i not in self.plain:
            answer = client.post("/completion", json=body | {"speculative": False, "store": False})
            self.plain[i] = answer.json()["content"]
        found = client.post("/completion", json=body | {"cache_prompt": self.rng.random() < 0.5}).json()["content"]
        self.counts.texts += 1
        if found != self.plain[i]:
            self.counts.wrong.append(f"prompt {i}: {found!r} instead of {self.plain[i]!r}")

    def idle(self, client: httpx.Client) -> None:
        """Ask for nothing, so that a head learns: for some seconds, or until a training has ended."""
        is_long = self.counts.cycles % _LONG_EVERY == 0
        n_heads = len(client.get("/props").json()["learn"]["heads"])
        end = time.monotonic() + (_LONG_SECONDS if is_long else self.rng.uniform(0.0, 5.0))
        while time.monotonic() < end:
            time.sleep(0.5)
            if is_long and len(client.get("/props").json()["learn"]["heads"]) > n_heads:
                return

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End the server, one way or the other."""
        how = self.rng.choice(_ENDS)
        if how == "SIGKILL of the training":
            found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
            for pid in found.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(self.rng.uniform(0.0, 1.5))
        process.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
        code = process.wait(30)
        if how == "SIGTERM" and code != 0:
            self.counts.wrong.append(f"cycle {self.counts.cycles}: SIGTERM ended the server with {code}")


def main() -> int:
    """Run the cycles; the exit code is 1 if something is wrong."""
    if sys.argv[1:2] == ["--serve"]:
        return serve(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9, help="end after so many")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    target, head = models.bundled_pair()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        day = Day(Path(folder), str(target), str(head), args.seed)
        counts = day.counts
        while counts.cycles < args.cycles and time.monotonic() - begun < args.seconds:
            day.cycle()
            counts.seconds = time.monotonic() - begun
            heads = ", ".join(f"{n} {state}" for state, n in sorted(counts.heads.items()))
            print(
                f"{counts.seconds:5.0f} s, cycle {counts.cycles}: {counts.texts} texts, {counts.n_kept} kept, {heads}, "
                f"head {counts.head}, {counts.n_mib:.1f} MiB, {len(counts.wrong)} wrong",
                flush=True,
            )
            for line in counts.wrong[-3:]:
                print(f"  {line}", flush=True)
    return int(bool(counts.wrong))


if __name__ == "__main__":
    sys.exit(main())
