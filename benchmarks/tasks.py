"""Work that people do, with models that they use, through servers that they use.

    python benchmarks/tasks.py --tasks edits coding --sides plain auto auto-ngram llama-server:ngram-mod --runs 2

What is asked lies in tasks/, in the model's own chat template: coding questions, edits of a file, holes in a file at
40 places (/infill, as llama.vim sends it), questions about a document, quotes, JSON by schema, an agent's conversation
with tools. Sides take turns: each round starts a side's server, asks everything, and ends it, so that no answer is
found in a cache of an earlier round. Times are the client's.

Sides are `plain`, `auto` (all that can draft), `auto-ngram` and `auto-draft` (one drafter alone), `chain-3` (fixed
chains of -md), `llama-server` and `llama-server:TYPES[@N]` (its --spec-type with +, and its --spec-draft-n-max), and
`llama_cpp` and `llama_cpp:lookup` (llama-cpp-python in this process, plain and with its prompt lookup). The default is
Qwen2.5-Coder-1.5B-Instruct with the 0.5B as -md.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from llama_cpp_eagle3 import models
from llama_cpp_eagle3.bench import peer
from llama_cpp_eagle3.bench.figures import Spread, percent, table
from llama_cpp_eagle3.drafters import kind_of

FOLDER = Path(__file__).parent / "tasks"
SIDES = ("plain", "auto", "auto-ngram", "auto-draft", "chain-3", "llama_cpp", "llama-server")
Json = dict[str, Any]
_N_BEFORE, _N_AFTER = 60, 30
"""Lines around a hole."""
_FIRST_ASKED: Json = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}


@dataclass(frozen=True)
class Asked:
    """A request: an endpoint of both servers, and its body."""

    path: str
    body: Json


@dataclass
class Answer:
    """What a user feels of an answer, or the sum of several."""

    n: int = 1
    tokens: int = 0
    accepted: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    """Of n_prompt: those that were not evaluated again."""
    t_first: float = 0.0
    t_whole: float = 0.0

    def __add__(self, other: Answer) -> Answer:
        return Answer(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    @property
    def rate(self) -> float:
        """Tokens/s after the first token of each answer."""
        return (self.tokens - self.n) / max(1e-9, self.t_whole - self.t_first)

    @property
    def tokens_a_step(self) -> float:
        """Tokens that a pass of the target gave."""
        return self.tokens / max(1, self.tokens - self.accepted)


def _lines(name: str) -> list[Json]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def _about_files(name: str, max_tokens: int) -> list[Asked]:
    """Chats about a text: an instruction after it, or before it if it is code that comes back."""
    found = []
    for line in _lines(name):
        text = (FOLDER / line["file"]).read_text(encoding="utf-8")
        if "n_chars" in line:
            content = f"{text[: line['n_chars']]}\n\n---\n{line['instruction']}"
        else:
            content = f"{line['instruction']}\n\n```{line['file'].split('.')[1]}\n{text}```"
        more: Json = {}
        if "schema" in line:
            schema = {"name": "answer", "schema": line["schema"], "strict": True}
            more = {"response_format": {"type": "json_schema", "json_schema": schema}}
        found.append(_chat([{"role": "user", "content": content}], max_tokens, **more))
    return found


def _chat(messages: list[Json], max_tokens: int, **more: Any) -> Asked:
    return Asked("/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens, **more})


def _coding() -> list[Asked]:
    return [_chat(line["messages"], 192) for line in _lines("coding.jsonl")]


def _agent() -> list[Asked]:
    """A turn of the assistant after the other: each with all before it as the file has it, whatever was answered."""
    spec = json.loads((FOLDER / "agent.json").read_text(encoding="utf-8"))
    turns = [i for i, message in enumerate(spec["messages"]) if message["role"] == "assistant"]
    return [_chat(spec["messages"][:i], 384, tools=spec["tools"]) for i in turns]


def _fim() -> list[Asked]:
    """Holes to the end of a line, with the other file of its kind as context, as llama.vim sends them."""
    places = _lines("fim.jsonl")
    names = list(dict.fromkeys(place["file"] for place in places))
    found = []
    for place in places:
        lines = (FOLDER / place["file"]).read_text(encoding="utf-8").splitlines(keepends=True)
        i = place["line"] - 1
        other = next(
            name for name in names if name != place["file"] and name.split(".")[1] == place["file"].split(".")[1]
        )
        extra = "".join((FOLDER / other).read_text(encoding="utf-8").splitlines(keepends=True)[:20])
        body = {
            "input_prefix": "".join(lines[max(0, i - _N_BEFORE) : i]),
            "prompt": lines[i][: place["column"]],
            "input_suffix": "".join(["\n", *lines[i + 1 : i + 1 + _N_AFTER]]),
            "input_extra": [{"filename": other.removesuffix(".txt").removeprefix("fim_"), "text": extra}],
            "n_predict": 32,
        }
        found.append(Asked("/infill", body))
    return found


TASKS: dict[str, Callable[[], list[Asked]]] = {
    "coding": _coding,
    "edits": lambda: _about_files("edits.jsonl", 384),
    "fim": _fim,
    "documents": lambda: _about_files("documents.jsonl", 128),
    "quotes": lambda: _about_files("quotes.jsonl", 256),
    "json": lambda: _about_files("json.jsonl", 256),
    "agent": _agent,
}


class ServerSide:
    """A server process, ours or llama.cpp's, and a client of it."""

    def __init__(self, command: Sequence[str], port: int):
        self._port = port
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen([*command, "--port", str(port)], stdout=self._log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 300
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                self._log.seek(0)
                raise RuntimeError(f"{' '.join(command)} does not answer:\n{self._log.read()[-2000:]}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            with closing(self._connect(5)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        except OSError:
            return False

    def _connect(self, timeout: float = 1800) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)

    def ask(self, asked: Asked) -> tuple[Answer, str]:
        """An answer's figures and its text; calls of tools are part of it as JSON."""
        start, first, text, timings = time.perf_counter(), 0.0, [], {}
        with closing(self._connect()) as connection:
            body = json.dumps({**asked.body, "stream": True})
            connection.request("POST", asked.path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{asked.path} answered {response.status}: {response.read(500)!r}")
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if said := _said(event):
                    first = first or time.perf_counter()
                    text.append(said)
                timings = event.get("timings") or timings
        end = time.perf_counter()
        n_cached = timings.get("cache_n", 0)
        answer = Answer(
            tokens=timings["predicted_n"],
            accepted=timings.get("draft_n_accepted", 0),
            n_prompt=timings["prompt_n"] + n_cached,
            n_cached=n_cached,
            t_first=(first or end) - start,
            t_whole=end - start,
        )
        return answer, "".join(text)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _said(event: Json) -> str:
    """The text in an event of a stream, of /infill or of a chat."""
    if "choices" not in event:
        return str(event.get("content") or "")
    delta = (event["choices"] or [{}])[0].get("delta") or {}
    calls = [call["function"] for call in delta.get("tool_calls") or ()]
    return str(delta.get("content") or "") + "".join(str(f.get("name") or "") + f.get("arguments", "") for f in calls)


class PythonSide:
    """llama-cpp-python in this process. Each event of its streams is a token."""

    def __init__(self, model: str, args: Any, *, lookup: bool):
        draft = LlamaPromptLookupDecoding(num_pred_tokens=4) if lookup else None  # for a CPU its documentation says 2
        n_threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
        self._llm = llama_cpp.Llama(
            model, n_ctx=args.ctx_size, **n_threads, draft_model=draft, logits_all=lookup, verbose=False
        )

    def ask(self, asked: Asked) -> tuple[Answer, str]:
        """An answer's figures and its text."""
        body = dict(asked.body)
        start, first, text = time.perf_counter(), 0.0, []
        for event in self._stream(asked.path, body):
            choice = event["choices"][0]
            if said := choice.get("text") or (choice.get("delta") or {}).get("content"):
                first = first or time.perf_counter()
                text.append(said)
        end = time.perf_counter()
        return Answer(tokens=len(text), t_first=(first or end) - start, t_whole=end - start), "".join(text)

    def _stream(self, path: str, body: Json) -> Iterator[Json]:
        if path == "/infill":
            extra = "".join(f"{file['filename']}\n{file['text']}\n" for file in body["input_extra"])
            more = {"max_tokens": body["n_predict"], "temperature": body["temperature"], "seed": body["seed"]}
            prompt = extra + body["input_prefix"] + body["prompt"]
            return self._llm.create_completion(prompt, suffix=body["input_suffix"], stream=True, **more)
        if "response_format" in body:
            schema = body["response_format"]["json_schema"]["schema"]
            body["response_format"] = {"type": "json_object", "schema": schema}
        return self._llm.create_chat_completion(**body, stream=True)

    def close(self) -> None:
        self._llm.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command_of(side: str, model: str, draft: str, args: Any) -> list[str]:
    """The command of a server, ours or llama.cpp's.

    Raises:
        ValueError: there is no such side.
    """
    common_flags = ["-m", model, "-c", str(args.ctx_size * args.clients), "-np", str(args.clients)]
    common_flags += ["-t", str(args.threads), "--no-ui", "--host", "127.0.0.1"]
    name, _, types = side.partition(":")
    spec_type = kind_of(draft).spec_types[0]
    if name == "llama-server":
        types, _, n_max = types.partition("@")
        flags = ["--spec-type", types.replace("draft", spec_type).replace("+", ",")] if types else []
        flags += ["-md", draft] if "draft" in types else []
        flags += ["--spec-draft-n-max", n_max] if n_max else []
        return [str(peer.get_tools(args.tools) / "llama-server"), *common_flags, *flags, "--offline"]
    chain = re.fullmatch(r"chain-(\d+)", side)
    ours = {
        "plain": ["--spec-type", "none"],
        "auto": ["-md", draft],
        "auto-ngram": ["--spec-type", "ngram-simple"],
        "auto-draft": ["-md", draft, "--spec-type", spec_type],
        side if chain else "": [
            "-md",
            draft,
            "--spec-type",
            spec_type,
            "--spec-draft-n-max",
            chain[1] if chain else "",
        ],
    }
    if side not in ours:
        raise ValueError(f"expected one of {', '.join(SIDES)}, chain-N or llama-server:TYPES@N, found {side!r}")
    return [sys.executable, "-m", "llama_cpp_eagle3", "serve", *common_flags, *ours[side]]


@contextmanager
def open_side(side: str, model: str, draft: str, args: Any) -> Iterator[ServerSide | PythonSide]:
    """A side that has answered once."""
    found: ServerSide | PythonSide
    if side.startswith("llama_cpp"):
        found = PythonSide(model, args, lookup=side.endswith(":lookup"))
    else:
        found = ServerSide(command_of(side, model, draft, args), free_port())
    with closing(found):
        found.ask(Asked("/v1/chat/completions", {**_FIRST_ASKED, "seed": 1}))
        yield found


def run_task(
    side: ServerSide | PythonSide, requests: Sequence[Asked], n_clients: int
) -> tuple[Answer, float, list[str]]:
    """The sum of all answers, the seconds that all took, and the texts. Several clients share the requests."""
    start = time.perf_counter()
    if n_clients == 1:
        found = [side.ask(asked) for asked in requests]
    else:
        with ThreadPoolExecutor(n_clients) as clients:
            found = list(clients.map(side.ask, requests))
    answers, texts = zip(*found, strict=True)
    return sum(answers, Answer(n=0)), time.perf_counter() - start, list(texts)


def measure(args: Any, model: str, draft: str) -> tuple[dict[str, dict[str, list[Answer]]], dict[str, Any]]:
    """Figures by task and side, an entry for each round; and the seconds of each round and the texts of the first."""
    more = {"temperature": args.temp, "seed": 7}
    tasks = {task: [Asked(a.path, {**a.body, **more}) for a in TASKS[task]()[: args.first]] for task in args.tasks}
    for requests in tasks.values():
        for asked in requests:
            key = "n_predict" if "n_predict" in asked.body else "max_tokens"
            asked.body[key] = min(asked.body[key], args.n_predict)
    found: dict[str, dict[str, list[Answer]]] = {task: {side: [] for side in args.sides} for task in tasks}
    seconds: dict[str, dict[str, list[float]]] = {task: {side: [] for side in args.sides} for task in tasks}
    texts: dict[str, dict[str, list[str]]] = {task: {} for task in tasks}
    for i in range(args.runs):
        # the other way round each time, so that a machine that becomes slower favours no side
        for side in args.sides if i % 2 == 0 else reversed(args.sides):
            with open_side(side, model, draft, args) as opened:
                for task, requests in tasks.items():
                    common.progress(f"run {i + 1} of {args.runs}: {side}, {task}")
                    answer, t_all, said = run_task(opened, requests, args.clients)
                    found[task][side].append(answer)
                    seconds[task][side].append(t_all)
                    known = texts[task].setdefault(side, said)
                    if known != said:
                        common.progress("")
                        print(f"{task}: {side} wrote another text in round {i + 1} than in its first")
    return found, {"seconds": seconds, "texts": texts}


def is_ours(side: str) -> bool:
    """Whether a side is our server."""
    return not side.startswith(("llama_cpp", "llama-server"))


def different(texts: dict[str, list[str]]) -> list[str]:
    """Our sides whose texts are not those of the first of them."""
    ours = [side for side in texts if is_ours(side)]
    return [side for side in ours if texts[side] != texts[ours[0]]]


def report(task: str, sides: dict[str, list[Answer]], seconds: dict[str, list[float]]) -> str:
    """A task's table."""
    first = statistics.median(next(iter(seconds.values())))
    rows = []
    for side, answers in sides.items():
        whole, n = Spread.of(a.t_whole / a.n for a in answers), answers[0].n
        is_known = not side.startswith("llama_cpp")  # whose streams tell neither
        rows.append([
            side,
            Spread.of(a.rate for a in answers).text(1),
            Spread.of(a.t_first / a.n for a in answers).text(2),
            whole.text(2),
            f"{first / statistics.median(seconds[side]):.2f}",
            f"{statistics.median(a.tokens_a_step for a in answers):.2f}" if is_known else "",
            percent(answers[0].n_cached / answers[0].n_prompt, 0) if is_known else "",
            f"{answers[0].tokens / n:.0f}",
        ])  # fmt: skip
    head = [f"{task}, {n} answers", "tokens/s after the first", "first token, s", "whole answer, s"]
    head += ["speed, whole answers", "tokens a step", "prompt reused", "tokens"]
    return table(head, rows)


def main() -> None:
    """Measure and print."""
    p = common.parser(__doc__, runs=2)
    p.add_argument("--tasks", nargs="+", choices=TASKS, default=tuple(TASKS))
    p.add_argument("--sides", nargs="+", default=SIDES)
    p.add_argument("--first", type=int, help="of each task only the first ones")
    p.add_argument("--temp", type=float, default=0.0)
    p.add_argument("--clients", type=int, default=1, help="at once; they share the requests of a task")
    p.add_argument("--name", help="of the results that --publish writes")
    p.set_defaults(ctx_size=4096, n_predict=384)
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the servers end too
    if args.clients > 1 and any(side.startswith("llama_cpp") for side in args.sides):
        p.error("llama_cpp answers one client")
    pair = args.model or "qwen2.5-coder-1.5b", args.model_draft or "qwen2.5-coder-0.5b"
    model, draft = (str(models.fetched(f, common.progress)) if f in models.names() else f for f in pair)
    found, more = measure(args, model, draft)
    text = "\n\n".join(report(task, sides, more["seconds"][task]) for task, sides in found.items())
    others = {task: wrong for task in found if (wrong := different(more["texts"][task]))}
    same = "the text of our sides was the same" if not others else f"**texts differ from the first side's: {others}**"
    text += (
        f"\n\n{args.clients} client{'s' * (args.clients > 1)}, temperature {args.temp:g}, at most {args.n_predict} "
        f"tokens an answer; medians of {args.runs} rounds in turns (lowest - highest). Speed is that of all answers "
        f"together, the first side's being 1; {same}."
    )
    data = {task: {side: [asdict(a) for a in answers] for side, answers in s.items()} for task, s in found.items()}
    name = args.name or f"tasks-{'-'.join(args.tasks)}"
    section = common.Section(
        "tasks", f"Tasks: {', '.join(args.tasks)}", text, {**data, "seconds": more["seconds"]}, name
    )
    common.finish(args, section, [model, draft])
    if others:
        sys.exit(f"a drafter changed the text: {others}")


if __name__ == "__main__":
    main()
