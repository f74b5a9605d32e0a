"""Run the sides of tasks.py: our server, llama-server, and llama-cpp-python in this process, asked by one client."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

import common
from comparison import peer_tools
from comparison.ik_tools import get_ik_tools
from llama_cpp_eagle3.draft.kinds import kind_of
from task_requests import Asked, Json

SIDES = ("plain", "auto", "auto-ngram", "auto-draft", "chain-3", "llama_cpp", "llama-server")
_FIRST_ASKED: Json = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}


@dataclass
class Answer:
    """The times and tokens of an answer as its client sees them, or the sum of several."""

    n: int = 1
    tokens: int = 0
    accepted: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    """The part of n_prompt that was not evaluated again."""
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
        """Tokens per pass of the target."""
        return self.tokens / max(1, self.tokens - self.accepted)


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
        """Return the text of a GET."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: Json) -> Json:
        """Return the object of a POST."""
        answer: Json = json.loads(self._exchange("POST", path, body))
        return answer

    def tokens(self, text: str, *, add_special: bool = False) -> list[int]:
        """Return a text's tokens, special ones parsed."""
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
        """Yield the events of a stream, as they come."""
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
        """Return an answer's figures and its text; calls of tools are part of it as JSON."""
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
    """Return the text in an event of a stream, of /infill or of a chat."""
    if "choices" not in event:
        return str(event.get("content") or "")
    delta = (event["choices"] or [{}])[0].get("delta") or {}
    calls = [call["function"] for call in delta.get("tool_calls") or ()]
    return str(delta.get("content") or "") + "".join(str(f.get("name") or "") + f.get("arguments", "") for f in calls)


class PythonSide:
    """llama-cpp-python in this process. Each event of its streams is a token."""

    def __init__(self, model: str, args: Any, *, lookup: bool):
        draft = LlamaPromptLookupDecoding(num_pred_tokens=4) if lookup else None  # 2 is advised for CPUs
        n_threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
        self._llm = llama_cpp.Llama(
            model, n_ctx=args.ctx_size, **n_threads, draft_model=draft, logits_all=lookup, verbose=False
        )

    def ask(self, asked: Asked) -> tuple[Answer, str]:
        """Return an answer's figures and its text."""
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
            # its own suffix= takes token 0 for the tokens of fill-in-the-middle
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
    """Return a port on which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def longest_draft(spec_type: str, n_max: str) -> list[str]:
    """Return llama-server's flags for the longest draft of one of its types."""
    if spec_type == "ngram-mod":  # the shortest draft is 48 by default
        return ["--spec-ngram-mod-n-max", n_max, "--spec-ngram-mod-n-min", "1"]
    if spec_type in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
        return [f"--spec-{spec_type}-size-m", n_max]
    return ["--spec-draft-n-max", n_max]


def spec_flags(types: str, draft: str) -> list[str]:
    """Return llama-server's flags for its types, TYPE[@N] joined by +; `draft` is the type of the file."""
    parts = [part.partition("@") for part in types.split("+")]
    names = [kind_of(draft).spec_types[0] if name == "draft" else name for name, _, _ in parts]
    flags = ["--spec-type", ",".join(names)]
    flags += ["-md", draft] if any(name.startswith("draft") for name in names) else []
    for name, (_, _, n_max) in zip(names, parts, strict=True):
        flags += longest_draft(name, n_max) if n_max else []
    return flags


def command_of(side: str, model: str, draft: str | None, args: Any, more: Sequence[str] = ()) -> list[str]:
    """Return the command of a server, ours or llama.cpp's; more: flags of all sides.

    A side of ours may name its own drafters after a `=`, joined by +; else it is `draft`.

    Raises:
        ValueError: there is no such side.
    """
    common_flags = ["-m", model, "-c", str(args.ctx_size * args.clients), "-np", str(args.clients)]
    common_flags += ["-t", str(args.threads), "--host", "127.0.0.1", *more]
    name, _, types = side.partition(":")
    if name == "ik-server":
        flags = ["-rtr", "-thp", "-fa", "on", "--log-disable", *(["--spec-type", types] if types else [])]
        flags += ["-md", str(draft)] if types.startswith("draft") else []
        return [str(get_ik_tools() / "llama-server"), *common_flags, *flags]
    common_flags.append("--no-ui")
    side, _, other = side.partition("=")
    drafts = [common.path_of(one) for one in other.split("+")] if other else [draft]
    of_ours = [flag for one in drafts for flag in ("-md", one)]
    if name in ("llama-server", "llama-server-spm"):
        flags = spec_flags(types, drafts[0]) if types else []
        flags += ["--spm-infill"] if name.endswith("spm") else []
        return [str(peer_tools.get_tools(args.tools) / "llama-server"), *common_flags, *flags, "--offline"]
    ours = {
        "plain": ["--spec-type", "none"],
        "auto": of_ours,
        "auto-ngram": ["--spec-type", "ngram-simple"],
        "auto-spm": ["--spec-type", "ngram-simple", "--spm-infill"],
    }
    if side in ours:
        flags = ours[side]
    elif chain := re.fullmatch(r"auto-draft|chain-(\d+)", side):
        flags = [*of_ours, "--spec-type", kind_of(drafts[0]).spec_types[0]]
        flags += ["--spec-draft-n-max", chain[1]] if chain[1] else []
    else:
        raise ValueError(
            f"expected one of {', '.join(SIDES)}, chain-N, llama-server:TYPES@N or ik-server:TYPE, found {side!r}"
        )
    return [sys.executable, "-m", "llama_cpp_eagle3", "serve", *common_flags, *flags]


@contextmanager
def open_side(
    side: str, model: str, draft: str | None, args: Any, more: Sequence[str] = ()
) -> Iterator[ServerSide | PythonSide]:
    """Open a side, and let it answer once."""
    found: ServerSide | PythonSide
    if side.startswith("llama_cpp"):
        found = PythonSide(model, args, lookup=side.endswith(":lookup"))
    else:
        found = ServerSide(command_of(side, model, draft, args, more), free_port())
    with closing(found):
        found.ask(Asked("/v1/chat/completions", {**_FIRST_ASKED, "seed": 1}))
        yield found


def run_group(
    side: ServerSide | PythonSide, requests: Sequence[Asked], n_clients: int
) -> tuple[Answer, float, list[str]]:
    """Return the sum of all answers, the seconds of all, and the texts. Several clients share the requests."""
    start = time.perf_counter()
    if n_clients == 1:
        found = [side.ask(asked) for asked in requests]
    else:
        with ThreadPoolExecutor(n_clients) as clients:
            found = list(clients.map(side.ask, requests))
    answers, texts = zip(*found, strict=True)
    return sum(answers, Answer(n=0)), time.perf_counter() - start, list(texts)
