"""Measure what conversations cost: evaluated tokens and seconds to the first token, ours and llama-server's.

    python benchmarks/conversations.py --models smollm2 hybrid --slots 1 default 4 --transcripts tools switch

Transcripts (talks/transcripts.py) are played against both servers, request by request in turn. A request must evaluate
at least what is *new* in it: the tokens of its prompt after the last beginning of a message that it shares with an
earlier prompt of the same transcript; of a completion, the tokens after the common beginning. Evaluated tokens are the
server's own count; they do not depend on how busy the machine is.

The hybrid has random weights in the shape of Qwen3.5-0.8B, so that its seconds are meaningful, and a template that
drops thoughts (talks/thoughts.jinja). A bias makes it write letters, which are one token each wherever they recur, and
a budget ends its thoughts. A word is five of its tokens, so its texts have fewer words.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import common
import random_model
from comparison import peer_tools
from llama_cpp_eagle3 import models
from llama_cpp_eagle3.bench.report import table
from llama_cpp_eagle3.engine.prefix_nodes import n_common
from llama_cpp_eagle3.files.cache_dir import cache_dir
from llama_cpp_eagle3.files.whole_file import whole_file
from talks.transcripts import RESTART, TRANSCRIPTS, Sizes, typing
from task_requests import Asked
from task_sides import ServerSide, free_port

Json = dict[str, Any]
_TEMPLATE = Path(__file__).parent / "talks" / "thoughts.jinja"
_N_THOUGHT = 8
"""Tokens of a thought, for models that think."""
_LETTERS = b"abcdefghjklmopqrstuvwxyz"
"""The letters, without i and n, which a random model's tokenizer joins."""
SIDES = ("ours", "llama-server")
SETTINGS = ("1", "default", "4")
"""Values of -np."""


@dataclass(frozen=True)
class Model:
    """A model file, and how to ask it."""

    path: str
    turn: str
    """The beginning of each message."""
    flags: tuple[str, ...] = ()
    body: Json = field(default_factory=dict)
    """Fields of each request."""
    can_fill_in: bool = False
    words: int = 150
    """Words of a system prompt; a message has a fifth of them."""


@dataclass
class Figures:
    """The figures of one request."""

    n_prompt: int
    n_evaluated: int
    n_new: int
    t_first: float
    is_first: bool
    """Whether nothing of the prompt was known."""


Found = dict[str, dict[str, dict[str, dict[str, list[Figures]]]]]
"""Figures by model, setting, transcript and side."""


def model_of(name: str) -> Model:
    """Return the model of a name on the command line."""
    if name == "hybrid":
        path = cache_dir() / "random" / "random-Qwen3.5-0.8B-Q4_0.gguf"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as part:
                random_model.write_target(part, random_model.SHAPES["Qwen3.5-0.8B"], "Q4_0")
        body = {"logit_bias": [[byte, 100.0] for byte in _LETTERS], "reasoning_budget_tokens": _N_THOUGHT}
        return Model(str(path), "<|im_start|>", ("--jinja", "--chat-template-file", str(_TEMPLATE)), body, words=40)
    if name == "gemma3":
        return Model(str(models.fetched("gemma-3-270m")), "<|im_start|>")
    if name == "smollm2":
        return Model(str(models.smollm2()[0]), "<|im_start|>")
    if name in ("qwen-0.5b", "qwen-1.5b"):
        path = models.fetched(f"qwen2.5-coder-{name.removeprefix('qwen-')}")
        return Model(str(path), "<|im_start|>", can_fill_in=True)
    return Model(name, "<|im_start|>")


class Side(ServerSide):
    """A server, and its memory since it started."""

    def __init__(self, name: str, model: Model, setting: str, args: Any, cache: Path):
        n_slots = 4 if setting == "default" else int(setting)
        n_ctx = args.ctx_size * (n_slots if setting != "default" else 2)
        flags = ["-m", model.path, "-c", str(n_ctx), "-t", str(args.threads), "--no-ui", "--host", "127.0.0.1"]
        flags += [*model.flags, *(["-np", setting] if setting != "default" else [])]
        if name == "ours":
            command = [sys.executable, "-m", "llama_cpp_eagle3", "serve", "--spec-type", "none", "--metrics"]
            command += ["--cache-disk", str(cache)] if args.cache_disk else []
        else:
            command = [str(peer_tools.get_tools(args.tools) / "llama-server"), "--offline"]
        super().__init__([*command, *flags], free_port())
        self._body = {**model.body, "temperature": 0, "seed": 1, "stream": True}
        self._n_predict = args.n_predict

    def answer(self, request: Json) -> tuple[Figures, Json, str]:
        """Return the figures of a request, the message that answers it, and the prompt's text if the answer has it."""
        path = "/infill" if "input_prefix" in request else "/v1/chat/completions" if "messages" in request else ""
        key = "max_tokens" if "messages" in request else "n_predict"
        body = {**request, **self._body, key: self._n_predict}
        start, first, timings, prompt = time.perf_counter(), 0.0, {}, ""
        message: Json = {"role": "assistant", "content": ""}
        for event in self.events(Asked(path or "/completion", body)):
            delta = (event["choices"] or [{}])[0].get("delta", {}) if "choices" in event else event
            if not first and any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls")):
                first = time.perf_counter()
            _add(message, delta)
            timings, prompt = event.get("timings") or timings, event.get("prompt") or prompt
        n, n_cached = timings["prompt_n"], timings["cache_n"]
        return Figures(n + n_cached, n, 0, (first or time.perf_counter()) - start, False), message, prompt

    @property
    def n_bytes_most(self) -> int:
        """Peak memory of the process, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        return 1024 * int(found[1]) if found else 0

    @property
    def n_bytes_cache(self) -> tuple[int, int]:
        """Bytes of our prefix cache, and its limit."""
        text = self.get("/metrics")
        found = dict(re.findall(r"^llamacpp:prefix_cache_(bytes|bytes_max) (\d+)", text, re.MULTILINE))
        return int(found["bytes"]), int(found["bytes_max"])


def _add(message: Json, delta: Json) -> None:
    """Add a part of a stream to a message."""
    message["content"] += delta.get("content") or ""
    if thought := delta.get("reasoning_content"):
        message["reasoning_content"] = message.get("reasoning_content", "") + thought
    for part in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        if part["index"] == len(calls):
            calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
        for name, text in part["function"].items():
            calls[part["index"]]["function"][name] += text or ""


class Known:
    """The prompts of a transcript so far, and where messages begin in them."""

    def __init__(self, side: Side, turn: str):
        self.side, self._turn = side, side.tokens(turn)
        self._prompts: list[list[int]] = []

    def n_new(self, request: Json, prompt: str) -> tuple[int, bool]:
        """Return the new tokens of a request's prompt, and whether all are new; `prompt`: its text, if known."""
        is_chat = "messages" in request
        text = self.side.post("/apply-template", request)["prompt"] if is_chat else prompt
        tokens = self.side.tokens(text, add_special=is_chat or "input_prefix" not in request)
        n_shared = max((n_common(tokens, other) for other in self._prompts), default=0)
        self._prompts.append(tokens)
        if is_chat:
            begins = [i for i in range(len(tokens)) if tokens[i : i + len(self._turn)] == self._turn]
            i = bisect_right(begins, n_shared)
            n_shared = begins[i - 1] if i else 0
        return len(tokens) - n_shared, n_shared <= 1


def play(args: Any, name: str, setting: str, found: Found) -> Json:
    """Play the transcripts with both servers in turn; return the memory that they took."""
    model = model_of(name)
    sizes = Sizes(model.words, model.words // 5, args.turns)
    memory: Json = {}
    with ExitStack() as stack:
        caches = {side: Path(stack.enter_context(tempfile.TemporaryDirectory())) for side in args.sides}
        sides = {side: Side(side, model, setting, args, caches[side]) for side in args.sides}
        stack.callback(lambda: [side.close() for side in sides.values()])
        for title in args.transcripts:
            figures = found[name][setting][title_of(title, args.cache_disk)]
            written = typing if title == "editor" and not model.can_fill_in else TRANSCRIPTS[title]
            transcripts = {side: written(sizes) for side in args.sides}
            known = {side: Known(sides[side], model.turn) for side in args.sides}
            asked = {side: next(transcript) for side, transcript in transcripts.items()}
            while asked:
                for side in list(asked):
                    common.progress(f"{name}, -np {setting}, {title}: {side}")
                    requests = asked.pop(side)
                    if requests == RESTART:
                        memory[f"{side}, before the restart"] = sides[side].n_bytes_most
                        sides[side].close()
                        sides[side] = Side(side, model, setting, args, caches[side])
                        known[side].side = sides[side]
                        answers: list[Json] = []
                    else:
                        assert not isinstance(requests, str)
                        answers = ask(sides[side], known[side], requests, figures[side])
                    try:
                        asked[side] = transcripts[side].send(answers)
                    except StopIteration:
                        continue
            row = next(rows_of({title: figures}))
            print(f"{name}, -np {setting}: {' | '.join(row)}", file=sys.stderr, flush=True)
        for side, server in sides.items():
            memory[side] = server.n_bytes_most
            if side == "ours":
                memory["prefix cache"], memory["prefix cache at most"] = server.n_bytes_cache
    return memory


def ask(side: Side, known: Known, requests: Sequence[Json], figures: list[Figures]) -> list[Json]:
    """Send requests at once; add their figures, the earliest first token first, and return the messages."""
    with ThreadPoolExecutor(len(requests)) as clients:
        answers = list(clients.map(side.answer, requests))
    for request, (own, _, prompt) in zip(requests, answers, strict=True):
        own.n_new, own.is_first = known.n_new(request, prompt or str(request.get("prompt", "")))
    figures += sorted((own for own, _, _ in answers), key=lambda own: own.t_first)
    return [message for _, message, _ in answers]


def rows_of(found: dict[str, dict[str, list[Figures]]]) -> Iterator[list[str]]:
    """Yield for each transcript the new tokens, the evaluated ones, and the time to a later request's first token."""
    for title, sides in found.items():
        ours, theirs = sides.get("ours", []), sides.get("llama-server", [])
        row = [title, str(len(ours or theirs)), str(sum(f.n_new for f in ours or theirs))]
        for figures in (ours, theirs):
            n_new, n = sum(f.n_new for f in figures), sum(f.n_evaluated for f in figures)
            row.append(f"{n} ({n / max(1, n_new):.2f})" if figures else "")
        for figures in (ours, theirs):
            later = [f.t_first for f in figures if not f.is_first]
            row.append(f"{statistics.median(later):.2f}" if later else "")
        pairs = [a.t_first / b.t_first for a, b in zip(ours, theirs, strict=False) if not (a.is_first or b.is_first)]
        row.append(f"{statistics.median(pairs):.2f} ({min(pairs):.2f} - {max(pairs):.2f})" if pairs else "")
        yield row


HEAD = (
    *("transcript", "requests", "new tokens", "evaluated: ours (of new)", "llama-server"),
    *("first token of later requests, s: ours", "llama-server", "ours, of llama-server's"),
)


def main() -> None:
    """Play the transcripts, and print a table for each model and setting."""
    p = common.parser(__doc__, runs=1)
    p.add_argument(
        "--models", nargs="+", default=["smollm2"], help="smollm2, qwen-0.5b, qwen-1.5b, gemma3, hybrid, FILE"
    )
    p.add_argument("--slots", nargs="+", choices=SETTINGS, default=["1", "default", "4"], help="-np of both servers")
    p.add_argument("--transcripts", nargs="+", choices=TRANSCRIPTS, default=list(TRANSCRIPTS))
    p.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    p.add_argument("--cache-disk", action="store_true", help="let ours keep conversations in a folder: for the restart")
    p.add_argument("--add", action="store_true", help="go on from what results/ has, and publish both")
    p.add_argument("--turns", type=int, default=8, help="of a long conversation")
    p.set_defaults(n_predict=12, ctx_size=4096)
    args = p.parse_args()
    found, memory = earlier() if args.add else ({}, {})
    for name in args.models:
        for setting in args.slots:
            titles = {title_of(t, args.cache_disk): {side: [] for side in args.sides} for t in args.transcripts}
            found.setdefault(name, {}).setdefault(setting, {}).update(titles)
            taken = play(args, name, setting, found)
            if not args.cache_disk:
                memory[f"{name}, -np {setting}"] = taken
    texts = []
    for name, setting in ((name, setting) for name, settings in found.items() for setting in settings):
        sizes = ", ".join(f"{what} {n / 2**20:.0f}" for what, n in memory[f"{name}, -np {setting}"].items())
        rows = table(HEAD, rows_of(found[name][setting]))
        texts += [f"## {name}, -np {setting}", "", rows, "", f"MiB of memory: {sizes}.", ""]
    data = {
        "found": {
            name: {
                setting: {t: {s: [asdict(f) for f in fs] for s, fs in sides.items()} for t, sides in titles.items()}
                for setting, titles in settings.items()
            }
            for name, settings in found.items()
        },
        "memory": memory,
    }
    section = common.Section("conversations", "What conversations cost", "\n".join(texts), data)
    common.finish(args, section, [model_of(name).path for name in found])


def title_of(transcript: str, has_disk: bool) -> str:
    """Return a row's title."""
    return f"{transcript}, --cache-disk" if has_disk else transcript


def earlier() -> tuple[Found, dict[str, Json]]:
    """Return the published figures and their memory."""
    document = json.loads((common.HERE / "results" / "conversations.json").read_text())
    found = {
        name: {
            setting: {t: {s: [Figures(**f) for f in fs] for s, fs in sides.items()} for t, sides in titles.items()}
            for setting, titles in settings.items()
        }
        for name, settings in document["found"].items()
    }
    return found, document["memory"]


if __name__ == "__main__":
    main()
