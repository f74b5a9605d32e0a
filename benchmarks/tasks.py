"""Work that people do, with models that they use, through servers that they use.

    python benchmarks/tasks.py --tasks edits coding --sides plain auto auto-ngram llama-server:ngram-mod --runs 2

What is asked lies in tasks/, in the model's own chat template: coding questions, edits of a file, holes in a file at
40 places (/infill, as llama.vim sends it; and typed, where each character cancels the last request), questions about a
document, quotes, JSON by schema, an agent's conversation with tools. All sides are open at once and take turns, request
by request, since a machine's speed changes meanwhile; the rounds differ in a word at the beginning of the prompt, so
that nothing is found in a cache of an earlier one. Times are the client's. With --add a call goes on from the figures
that earlier calls have published under the same name.

Sides are `plain`, `auto` (all that can draft), `auto-ngram` and `auto-draft` (one drafter alone), `auto-spm` (n-grams,
and /infill with the suffix first), `chain-3` (fixed chains of -md), `llama-server` and `llama-server:TYPES[@N]` (its
--spec-type with +, and the longest draft of each of them), and `llama_cpp` and `llama_cpp:lookup` (llama-cpp-python in
this process, plain and with its prompt lookup). The default is Qwen2.5-Coder-1.5B-Instruct with the 0.5B as -md.
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
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

import common
from comparison import peer_tools
from comparison.figures import percent
from llama_cpp_eagle3 import models
from llama_cpp_eagle3.bench.report import Spread, table
from llama_cpp_eagle3.draft.kinds import kind_of

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
    is_cancelled: bool = False
    """The client goes away after the first token, and its times are not counted."""


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


@dataclass
class Turn:
    """What a side did before the next one had its turn."""

    i_round: int
    i_group: int
    seconds: float
    answer: Answer

    @property
    def key(self) -> tuple[int, int]:
        """The same for all sides that were asked the same."""
        return self.i_round, self.i_group


Found = dict[str, dict[str, list[Turn]]]
"""By task and side."""


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


def _typing() -> list[Asked]:
    """The same, typed: each of three characters cancels the request of the one before."""
    found = []
    for asked in _fim():
        typed = asked.body["prompt"]
        for n in (2, 1, 0):
            body = {**asked.body, "prompt": typed[: len(typed) - n]}
            found.append(Asked(asked.path, body, is_cancelled=n > 0))
    return found


TASKS: dict[str, Callable[[], list[Asked]]] = {
    "coding": _coding,
    "edits": lambda: _about_files("edits.jsonl", 384),
    "fim": _fim,
    "typing": _typing,
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

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str) -> str:
        """A GET's text."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: Json) -> Json:
        """A POST's object."""
        answer: Json = json.loads(self._exchange("POST", path, body))
        return answer

    def tokens(self, text: str, *, add_special: bool = False) -> list[int]:
        """Tokens of a text, special ones parsed."""
        found: list[int] = self.post("/tokenize", {"content": text, "add_special": add_special})["tokens"]
        return found

    def _exchange(self, method: str, path: str, body: Json | None) -> str:
        with closing(self._connect()) as connection:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            if response.status != 200:
                raise RuntimeError(f"{path} answered {response.status}: {text[:500]}")
            return text

    def events(self, asked: Asked) -> Generator[Json, None, None]:
        """The events of a stream, as they come."""
        with closing(self._connect()) as connection:
            body = json.dumps({**asked.body, "stream": True})
            connection.request("POST", asked.path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{asked.path} answered {response.status}: {response.read(500)!r}")
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    def ask(self, asked: Asked) -> tuple[Answer, str]:
        """An answer's figures and its text; calls of tools are part of it as JSON."""
        start, first, text, timings = time.perf_counter(), 0.0, [], {}
        with closing(self.events(asked)) as events:
            for event in events:
                if said := _said(event):
                    first = first or time.perf_counter()
                    text.append(said)
                    if asked.is_cancelled:
                        return Answer(n=0), said
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
                if asked.is_cancelled:
                    return Answer(n=0), said
        end = time.perf_counter()
        return Answer(tokens=len(text), t_first=(first or end) - start, t_whole=end - start), "".join(text)

    def _stream(self, path: str, body: Json) -> Iterator[Json]:
        if path == "/infill":
            # its own suffix= takes token 0 for those of fill-in-the-middle
            vocab = llama_cpp.llama_model_get_vocab(self._llm.model)
            pre, suf, mid = (getattr(llama_cpp, f"llama_vocab_fim_{name}")(vocab) for name in ("pre", "suf", "mid"))
            extra = "".join(f"{file['filename']}\n{file['text']}\n" for file in body["input_extra"])
            before, after = (
                self._llm.tokenize(text.encode(), add_bos=False)
                for text in (extra + body["input_prefix"] + body["prompt"], body["input_suffix"])
            )
            more = {"max_tokens": body["n_predict"], "temperature": body["temperature"], "seed": body["seed"]}
            return self._llm.create_completion([pre, *before, suf, *after, mid], stream=True, **more)
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


def longest_draft(spec_type: str, n_max: str) -> list[str]:
    """llama-server's flags for the longest draft of one of its types."""
    if spec_type == "ngram-mod":  # whose shortest is 48 by default
        return ["--spec-ngram-mod-n-max", n_max, "--spec-ngram-mod-n-min", "1"]
    if spec_type.startswith("ngram"):
        return [f"--spec-{spec_type}-size-m", n_max]
    return ["--spec-draft-n-max", n_max]


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
        flags += [flag for of_type in types.split("+") for flag in longest_draft(of_type, n_max)] if n_max else []
        return [str(peer_tools.get_tools(args.tools) / "llama-server"), *common_flags, *flags, "--offline"]
    chain = re.fullmatch(r"chain-(\d+)", side)
    ours = {
        "plain": ["--spec-type", "none"],
        "auto": ["-md", draft],
        "auto-ngram": ["--spec-type", "ngram-simple"],
        "auto-spm": ["--spec-type", "ngram-simple", "--spm-infill"],
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


def run_group(
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


def requests_of(task: str, i_round: int, args: Any) -> list[list[Asked]]:
    """What is asked in a round, in groups after which the next side has its turn."""
    found = []
    for asked in TASKS[task]()[: args.first]:
        body = {**asked.body, "temperature": args.temp, "seed": 7}
        key = "n_predict" if "n_predict" in body else "max_tokens"
        body[key] = min(body[key], args.n_predict)
        if "messages" in body:
            body["messages"] = [{"role": "system", "content": f"Round {i_round}. Be helpful."}, *body["messages"]]
        else:
            body["input_extra"] = [{"filename": f"round{i_round}.txt", "text": "\n"}, *body["input_extra"]]
        found.append(replace(asked, body=body))
    if task == "agent" or args.clients > 1:
        return [found]
    n_together = 3 if task == "typing" else 1
    return [found[i : i + n_together] for i in range(0, len(found), n_together)]


def measure(args: Any, model: str, draft: str, found: Found, i_first: int) -> None:
    """Add rounds to the figures.

    Raises:
        SystemExit: a drafter changed the text.
    """
    with ExitStack() as stack:
        opened = {side: stack.enter_context(open_side(side, model, draft, args)) for side in args.sides}
        for i in range(i_first, i_first + args.runs):
            for task in args.tasks:
                for k, requests in enumerate(requests_of(task, i, args)):
                    texts = {}
                    n = (i + k) % len(args.sides)
                    for side in [*args.sides[n:], *args.sides[:n]]:
                        common.progress(f"{task}, round {i + 1 - i_first} of {args.runs}: {side}")
                        answer, t_all, texts[side] = run_group(opened[side], requests, args.clients)
                        found[task][side].append(Turn(i, k, t_all, answer))
                    if wrong := different(texts):
                        sys.exit(f"{task}, request {k + 1}: a drafter changed the text: {wrong}")


def is_ours(side: str) -> bool:
    """Whether a side is our server."""
    return not side.startswith(("llama_cpp", "llama-server"))


def different(texts: dict[str, list[str]]) -> list[str]:
    """Our sides whose texts are not those of the first of them."""
    ours = [side for side in texts if is_ours(side) and side != "auto-spm"]  # whose prompts are others
    return [side for side in ours if texts[side] != texts[ours[0]]]


def report(task: str, sides: dict[str, list[Turn]]) -> str:
    """A task's table."""
    first = {turn.key: turn.seconds for turn in next(iter(sides.values()))}
    rows = []
    for side, turns in sides.items():
        rounds = [sum((t.answer for t in turns if t.i_round == i), Answer(n=0)) for i in {t.i_round for t in turns}]
        n = rounds[0].n
        is_known = not side.startswith("llama_cpp")  # whose streams tell neither
        rows.append([
            side,
            Spread.of(a.rate for a in rounds).text(1),
            Spread.of(a.t_first / n for a in rounds).text(2),
            Spread.of(a.t_whole / n for a in rounds).text(2),
            Spread.of(first[turn.key] / turn.seconds for turn in turns).text(2),
            f"{statistics.median(a.tokens_a_step for a in rounds):.2f}" if is_known else "",
            percent(rounds[0].n_cached / rounds[0].n_prompt, 0) if is_known else "",
            f"{statistics.median(a.tokens / n for a in rounds):.0f}",
        ])  # fmt: skip
    head = [f"{task}, {n} answers, {len(rounds)} rounds", "tokens/s after the first", "first token, s"]
    head += ["whole answer, s", "speed, whole answers", "tokens a step", "prompt reused", "tokens"]
    return table(head, rows)


def earlier(name: str, tasks: Sequence[str], sides: Sequence[str]) -> Found:
    """The figures that earlier calls have published.

    Raises:
        SystemExit: they are of other tasks or sides.
    """
    path = common.HERE / "results" / f"{name}.json"
    if not path.exists():
        return {task: {side: [] for side in sides} for task in tasks}
    figures = json.loads(path.read_text(encoding="utf-8"))["turns"]
    if list(figures) != list(tasks) or any(list(of_task) != list(sides) for of_task in figures.values()):
        sys.exit(f"--add: '{path}' has other tasks or sides")

    def turns(found: list[Json]) -> list[Turn]:
        return [Turn(**{**turn, "answer": Answer(**turn["answer"])}) for turn in found]

    return {task: {side: turns(found) for side, found in of_task.items()} for task, of_task in figures.items()}


def main() -> None:
    """Measure and print."""
    p = common.parser(__doc__, runs=2)
    p.add_argument("--tasks", nargs="+", choices=TASKS, default=tuple(TASKS))
    p.add_argument("--sides", nargs="+", default=SIDES)
    p.add_argument("--first", type=int, help="of each task only the first ones")
    p.add_argument("--temp", type=float, default=0.0)
    p.add_argument("--clients", type=int, default=1, help="at once; they share the requests of a task")
    p.add_argument("--add", action="store_true", help="rounds to those that are published")
    p.add_argument("--name", help="of the results that --publish writes")
    p.set_defaults(ctx_size=4096, n_predict=384)
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the servers end too
    if args.clients > 1 and any(side.startswith("llama_cpp") for side in args.sides):
        p.error("llama_cpp answers one client")
    pair = args.model or "qwen2.5-coder-1.5b", args.model_draft or "qwen2.5-coder-0.5b"
    model, draft = (str(models.fetched(f, common.progress)) if f in models.names() else f for f in pair)
    name = args.name or f"tasks-{'-'.join(args.tasks)}"
    new = {task: {side: [] for side in args.sides} for task in args.tasks}
    found: Found = earlier(name, args.tasks, args.sides) if args.add else new
    rounds = [turn.i_round for sides in found.values() for turns in sides.values() for turn in turns]
    measure(args, model, draft, found, max(rounds, default=-1) + 1)
    text = "\n\n".join(report(task, sides) for task, sides in found.items())
    text += (
        f"\n\n{args.clients} client{'s' * (args.clients > 1)}, temperature {args.temp:g}, at most {args.n_predict} "
        "tokens an answer; medians of the rounds (lowest - highest). Speed is that of whole answers beside the first "
        "side's in the same turn. The text of our sides was the same."
    )
    data = {task: {side: [asdict(turn) for turn in turns] for side, turns in s.items()} for task, s in found.items()}
    section = common.Section("tasks", f"Tasks: {', '.join(args.tasks)}", text, {"turns": data}, name)
    common.finish(args, section, [model, draft])


if __name__ == "__main__":
    main()
