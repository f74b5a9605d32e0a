"""Let clients generate, save, restore and erase at random, and compare each text with plain llama_cpp.

python tools/slot_traffic.py [seconds] [seed] [kind ...]    (on every kind of memory, if none is named)
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from llama_cpp_eagle3._core import read_target
from loading import load_plain
from random_arch import write_random_arch
from serving import Running
from tiny import write_head, write_target

N_SLOTS = 4
N_VOCAB = 256
SHAPES = (1, 3, 8, 64)
"""Rows of a pass, for each of which plain llama_cpp evaluates the texts once."""


@dataclass
class Kind:
    """A server whose memory has its own way of taking tokens back."""

    arch: str
    options: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "streams": Kind("llama"),
    "pool": Kind("llama", {"kv_unified": True}),
    "tree": Kind("llama", {"kv_unified": True, "draft": "tree"}),
    "f16": Kind("llama", {"type_k": 1, "type_v": 1}),
    "host": Kind("llama", {"prefix_cache_bytes": 1 << 20}),
    "disk": Kind("llama", {"prefix_cache_bytes": 1 << 20, "prefix_cache_disk_bytes": 4 << 20}),
    "disk-snapshots": Kind("qwen35", {"prefix_cache_bytes": 4 << 20, "prefix_cache_disk_bytes": 16 << 20}),
    "windows": Kind("gemma3"),
    "windows-pool": Kind("gemma3", {"kv_unified": True, "draft": "tree"}),
    "windows-alone": Kind("gemma3", {"swa_full": False, "prefix_cache_bytes": 1 << 20}),
    "snapshots": Kind("qwen35"),
    "checkpoint": Kind("mamba"),
}


@dataclass
class Answer:
    """A greedy text, with the log probabilities of its tokens and of the best two at each."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    best: list[list[tuple[int, float]]]
    what: dict[str, Any]


def write_pair(folder: Path, kind: Kind) -> tuple[Any, Any]:
    """Write a random target and a random head."""
    if kind.arch == "llama":
        target = write_target(folder / "target.gguf")
        return target, write_head(folder / "head.gguf", target)
    path = write_random_arch(folder, kind.arch)
    info = read_target(str(path))
    described: Any = SimpleNamespace(
        path=str(path), arch=info.arch, n_embd=info.n_embd, n_vocab=info.n_vocab, n_layer=info.n_layer
    )
    return described, write_head(folder / "head.gguf", described, boundaries=(1, info.n_layer - 1, info.n_layer))


def serve(folder: Path, name: str) -> Running:
    """Start a server of this kind."""
    options = {"draft": "chain", "draft_n_max": 4} | KINDS[name].options
    if "prefix_cache_disk_bytes" in options:
        options["prefix_cache_dir"] = folder / "cache"
    if options["draft"] == "tree":
        del options["draft_n_max"]
    return Running(
        *write_pair(folder, KINDS[name]), n_parallel=N_SLOTS, n_ctx=2048, n_batch=128, n_ubatch=64,
        options={"slot_save_path": folder}, **options,
    )  # fmt: skip


class Client:
    """One of the concurrent clients."""

    def __init__(self, running: Running, folder: Path, seed: int, stems: list[list[int]]):
        self.running, self.folder, self.rng, self.stems = running, folder, random.Random(seed), stems
        self.answers: list[Answer] = []
        self.done: Counter[str] = Counter()

    def go_on(self, until: float, n_max: int) -> None:
        """Send requests until a time, at most n_max."""
        for _ in range(n_max):
            if time.monotonic() > until:
                return
            name = self.rng.choices(("generate", "save", "restore", "erase", "spoil"), (12, 3, 4, 1, 1))[0]
            self.done[name] += 1
            getattr(self, name)()

    def generate(self) -> None:
        rng = self.rng
        stem = rng.choice(self.stems)
        prompt = stem[: rng.randrange(1, len(stem) + 1)] if rng.random() < 0.5 else list(stem)
        if self.answers and rng.random() < 0.4:  # continue an earlier text
            last = rng.choice(self.answers[-4:])
            prompt = (last.prompt + last.tokens)[:200]
        prompt = [*prompt, *(rng.randrange(N_VOCAB) for _ in range(rng.randrange(1, 30)))]
        body: dict[str, Any] = {"prompt": prompt, "n_predict": rng.randrange(1, 40), "temperature": 0.0, "n_probs": 2}
        if rng.random() < 0.7:
            body["id_slot"] = rng.randrange(N_SLOTS)
        answer = self.running.ask("/completion", body)
        rows = answer["completion_probabilities"]
        best = [[(top["id"], top["logprob"]) for top in row["top_logprobs"]] for row in rows]
        timings = answer["timings"]
        what = {"cache_n": timings["cache_n"], "drafted": timings.get("draft_n", 0), "id_slot": answer["id_slot"]}
        self.answers.append(Answer(prompt, [row["id"] for row in rows], [row["logprob"] for row in rows], best, what))

    def _slot(self, action: str, name: str = "") -> Any:
        id_slot = self.rng.randrange(N_SLOTS)
        return self.running.post(f"/slots/{id_slot}?action={action}", {"filename": name} if name else {})

    def save(self) -> None:
        self._slot("save", f"file-{self.rng.randrange(6)}")

    def restore(self) -> None:
        assert self._slot("restore", f"file-{self.rng.randrange(6)}").status_code in (200, 400)  # 400: no such file yet

    def erase(self) -> None:
        assert self._slot("erase").status_code == 200

    def spoil(self) -> None:
        found = sorted(self.folder.glob("file-?"))
        if not found:
            return
        data = bytearray(self.rng.choice(found).read_bytes())
        for _ in range(50):
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        name = f"spoilt-{self.rng.randrange(1 << 30)}"
        (self.folder / name).write_bytes(data)
        assert self._slot("restore", name).status_code == 400
        (self.folder / name).unlink()


def ask_around(running: Running, folder: Path, seed: int, seconds: float, n_max: int) -> list[Client]:
    """Run four clients at once."""
    rng = random.Random(seed)
    stems = [[rng.randrange(N_VOCAB) for _ in range(rng.choice((20, 90, 180)))] for _ in range(5)]
    clients = [Client(running, folder, 1000 * seed + i, stems) for i in range(4)]
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(4) as pool:
        for asked in [pool.submit(client.go_on, until, n_max) for client in clients]:
            asked.result()
    return clients


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def evaluate(plain: llama_cpp.Llama, tokens: list[int], n_rows: int) -> np.ndarray:
    """Return the log probabilities of all next tokens, evaluated n_rows at a time."""
    plain.reset()
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(plain.ctx), True)
    for i in range(0, len(tokens), n_rows):
        plain.eval(tokens[i : i + n_rows])
    return log_softmax(plain.scores[: len(tokens)])


@dataclass
class Verdict:
    """The result of the comparison."""

    n_tokens: int = 0
    spread: float = 0.0
    """The largest difference of plain llama_cpp's log probabilities between shapes of a pass, over some texts."""
    apart: float = 0.0
    """The largest difference of a log probability from plain llama_cpp's."""
    n_ties: int = 0
    """Tokens that are not plain llama_cpp's best, by no more than that."""


def compare(path: str, name: str, answers: list[Answer], n_spread: int = 12) -> Verdict:
    """Compare every token of every text with plain llama_cpp, which has the text alone. Raises AssertionError."""
    found = Verdict()
    caches = {key: value for key, value in KINDS[name].options.items() if key in ("type_k", "type_v")}
    with closing(load_plain(path, logits_all=True, n_ctx=512, n_batch=64, n_ubatch=64, **caches)) as plain:
        for answer in answers[:: max(1, len(answers) // n_spread)]:
            rows = [evaluate(plain, answer.prompt + answer.tokens, n) for n in SHAPES]
            found.spread = max(found.spread, *(float(np.abs(r - rows[0]).max()) for r in rows[1:]))
        allowed = 2 * found.spread
        for answer in answers:
            rows = evaluate(plain, answer.prompt + answer.tokens, SHAPES[-1])[len(answer.prompt) - 1 :]
            for i, token in enumerate(answer.tokens):
                where = f"token {i} of {len(answer.tokens)}, {answer.what}, prompt of {len(answer.prompt)} tokens"
                behind = float(rows[i].max() - rows[i][token])
                assert behind <= allowed, f"{where}: {behind} behind the best, allowed {allowed}"
                said = [(token, answer.logprobs[i]), *answer.best[i]]
                apart = max(abs(rows[i][t] - logprob) for t, logprob in said)
                assert apart <= allowed, f"{where}: {apart} apart, allowed {allowed}"
                found.n_ties += behind > 0
                found.apart = max(found.apart, float(apart))
            found.n_tokens += len(answer.tokens)
    return found


def main() -> None:
    """Run all kinds in turns."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for name in (names := sys.argv[3:] or list(KINDS)):
        with tempfile.TemporaryDirectory() as folder:
            with serve(Path(folder), name) as running:
                clients = ask_around(running, Path(folder), seed, seconds / len(names), 1 << 30)
                path = running.server.llm.model_path
            answers = [answer for client in clients for answer in client.answers]
            done = sum((client.done for client in clients), Counter[str]())
            try:
                print(name, "seed", seed, dict(done), compare(path, name, answers), flush=True)
            except AssertionError as e:
                print(name, "seed", seed, dict(done), "FAILED", e, flush=True)


if __name__ == "__main__":
    main()
