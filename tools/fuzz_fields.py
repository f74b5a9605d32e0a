"""Send thousands of requests with random fields to servers: all are answered, none ends or spoils the process.

    python tools/fuzz_fields.py --cases 20000 --write benchmarks/results/fuzz_fields.json
    python tools/fuzz_fields.py --case 1234                (one of them, with its answer)

A case is a number: the same one makes the same request. Six servers run in one process: of a pair with a head, of a
model with images, with embeddings and filling in, and with three templates: two that know tools, and one that does not.
All keep conversations in one folder, with host memory that is too small for them, and requests begin alike, so that
prefixes come from slots, host memory and files. A share of the requests is in order, and forces a call of tools with
names and schemas of all scripts (fuzz_tools.py): the answer must be that call.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import httpx

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import fuzz_tools
from fuzz_values import FLAGS, SAMPLING, TOOL, Fuzzer

ANTHROPIC_TOOL = {"name": "add", "input_schema": TOOL["function"]["parameters"]}
SERVERS = ("plain", "images", "embeddings", "tools", *fuzz_tools.TEMPLATES)
FORCED = 0.3
"""The share of requests that force a call."""
TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    '{% if m.tool_calls %}{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template of a model that calls tools: a call is a bare object, and a model that begins one must complete it."""
COMPLETION = (
    *SAMPLING,
    *(*FLAGS, "prompt", "stop", "grammar", "json_schema", "samplers", "dry_sequence_breakers", "logit_bias", "suffix"),
    *("speculative", "stream_options", "response_fields", "lora", "model", "user"),
    *("bad_words", "stop_token_ids", "allowed_token_ids"),
)
CHAT = (
    *COMPLETION,
    *(
        "messages",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "response_format",
        "chat_template_kwargs",
        "reasoning_effort",
        "chat_template",
    ),
    *("reasoning_format", "reasoning_budget_message", "thinking_budget_tokens", "messages", "tools", "tool_choice"),
)
RESPONSES = (
    *CHAT,
    "input",
    "instructions",
    "text",
    "reasoning",
    "max_output_tokens",
    "previous_response_id",
    "truncation",
)
ENDPOINTS: dict[str, tuple[dict[str, Any], tuple[str, ...], int]] = {
    "/completion": ({"prompt": "the self", "n_predict": 4}, COMPLETION, 20),
    "/v1/completions": ({"prompt": "the self", "max_tokens": 4}, COMPLETION, 12),
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "a"}], "max_tokens": 6}, CHAT, 25),
    "/v1/responses": ({"input": "the self", "max_output_tokens": 4}, RESPONSES, 10),
    "/v1/messages": (
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 6},
        (*CHAT, "system", "thinking", "output_config", "stop_sequences", "metadata"),
        10,
    ),
    "/v1/messages/count_tokens": ({"messages": [{"role": "user", "content": "a"}]}, (*CHAT, "system", "thinking"), 3),
    "/v1/embeddings": ({"input": "the self"}, ("input", "encoding_format", "embd_normalize", "model", "content"), 6),
    "/embedding": ({"content": "the self"}, ("input", "content", "embd_normalize", "encoding_format"), 3),
    "/tokenize": ({"content": "the self"}, ("content", "prompt", *FLAGS), 4),
    "/detokenize": ({"tokens": [1, 2, 3]}, ("tokens",), 3),
    "/apply-template": ({"messages": [{"role": "user", "content": "a"}]}, CHAT, 5),
    "/v1/chat/completions/input_tokens": ({"messages": [{"role": "user", "content": "a"}]}, CHAT, 3),
    "/v1/responses/input_tokens": ({"input": "a"}, RESPONSES, 2),
    "/infill": (
        {"input_prefix": "a", "input_suffix": "b", "n_predict": 4},
        (*COMPLETION, "input_prefix", "input_suffix", "input_extra"),
        5,
    ),
    "/slots/{}?action={}": ({"filename": "a.bin"}, ("filename",), 3),
    "/props": ({}, ("chat_template",), 1),
}
"""Path -> a request, fields to spoil, and how often."""
PAGES = (
    "/health",
    "/v1/models",
    "/v1/models/tiny",
    "/v1/models/x%00y",
    "/props",
    "/metrics",
    "/slots",
    "/",
    "/nowhere",
)
BEGINNINGS = tuple(" ".join(f"{letter} {i}" for i in range(24)) for letter in "abcdefghijkl")
"""Beginnings of prompts, long enough to be cached, and to be read from a file."""
N_SECONDS = 600.0
"""Seconds after which an answer hangs. A request may ask for the whole context, and the machine may be busy."""
CACHE_BYTES = 100_000
"""Bytes of host memory: fewer prefixes fit than there are beginnings."""
EXPECTED = frozenset({200, 400, 404, 405, 413, 429, 501})
"""Status codes that are no errors; 501: the server was started without this endpoint."""
CALLS = (b'"tool_calls"', b'"tool_use"', b'"function_call"')
CHECK = {"prompt": "the self", "n_predict": 8, "temperature": 0.0, "cache_prompt": False}


@dataclass
class Record:
    """The results of all requests."""

    n_cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    n_calls: int = 0
    """Answers with calls of tools."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0
    rss_start: int = 0
    rss_peak: int = 0
    reused: dict[str, int] = field(default_factory=dict)
    """Tokens of prompts that prefixes saved, by the kind of memory."""

    def summary(self) -> dict[str, Any]:
        """Return the results for a file; memory in MiB."""
        return {
            "date": date.today().isoformat(),
            "cases": self.n_cases,
            "with_tool_calls": self.n_calls,
            "statuses": dict(sorted(self.statuses.items())),
            "deaths": sum(failure["what"] == "death" for failure in self.failures),
            "failures": self.failures,
            "seconds": round(self.seconds, 1),
            "slowest_seconds": round(self.slowest, 2),
            "reused_tokens": self.reused,
            "rss_start_mib": self.rss_start >> 10,
            "rss_peak_mib": self.rss_peak >> 10,
        }


@dataclass
class Request:
    """A case: one request."""

    server: str
    method: str
    path: str
    data: bytes
    leaves: bool
    """Whether the client leaves after the first bytes of the answer."""
    forced: dict[str, Any] | None = None
    """The body of a request that is in order, and forces a call."""


def make(seed: int, case: int, image: bytes) -> Request:
    """Make the request of a number."""
    fuzzer = Fuzzer(seed, case, image)
    if fuzzer.rng.random() < FORCED:
        path = fuzzer.pick(fuzz_tools.PATHS)
        forced = fuzz_tools.make_body(fuzzer, path, fuzz_tools.make_tools(fuzzer))
        server = fuzzer.pick(("tools", *fuzz_tools.TEMPLATES))
        return Request(server, "POST", path, json.dumps(forced).encode(), False, forced)
    server = fuzzer.pick(SERVERS)
    if fuzzer.rng.random() < 0.02:
        return Request(server, "GET", fuzzer.pick(PAGES), b"", False)
    path = fuzzer.rng.choices(list(ENDPOINTS), [weight for *_, weight in ENDPOINTS.values()])[0]
    if server == "embeddings" and fuzzer.rng.random() < 0.4:
        path = fuzzer.pick(("/v1/embeddings", "/embedding", "/infill"))
    body, fields, _ = ENDPOINTS[path]
    body = dict(body)
    if server == "tools" and "messages" in body and fuzzer.rng.random() < 0.8:
        if path.startswith("/v1/messages"):
            tools, choice = (
                ANTHROPIC_TOOL,
                fuzzer.pick(({"type": "any"}, {"type": "auto"}, {"type": "tool", "name": "add"})),
            )
        else:
            tools = TOOL
            choice = fuzzer.pick(("required", "auto", {"type": "function", "function": {"name": "add"}}))
        body |= {"tools": [tools], "tool_choice": choice, "max_tokens": fuzzer.pick((3, 20, 120))}
        if fuzzer.rng.random() < 0.7:
            body |= {"logit_bias": [["{", 100]]}  # else the model would write anything before the call
    if fuzzer.rng.random() < 0.4:
        _begin(body, fuzzer.pick(BEGINNINGS))
    if server == "images" and "messages" in body and fuzzer.rng.random() < 0.5:
        body["messages"] = [{"role": "user", "content": [fuzzer.part(), fuzzer.part()]}]
    if fuzzer.rng.random() < 0.3:
        body["stream"] = True
    body = fuzzer.spoil(body, fields)
    if path.startswith("/slots/"):
        path = path.format(fuzzer.pick((0, 1, 2, -1, "x", 10**20)), fuzzer.pick(("save", "restore", "erase", "x", "")))
    return Request(server, "POST", path, fuzzer.encode(body), fuzzer.rng.random() < 0.03)


def _begin(body: dict[str, Any], text: str) -> None:
    """Put a text at the beginning of a request's text."""
    for name in ("prompt", "input", "input_prefix"):
        if name in body:
            body[name] = f"{text} {body[name]}"
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": text}, {"role": "assistant", "content": "b"}, *body["messages"]]


class Servers:
    """The process with the servers."""

    def __init__(self, folder: Path):
        self._log = (folder / "log").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the servers did not start: {self.log()}")
        self.urls: dict[str, str] = json.loads(line)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def rss(self, what: str = "VmRSS") -> int:
        """Return the process's memory in KiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith(what + ":")))

    def log(self) -> str:
        """Return the end of the process's output."""
        self._log.flush()
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 3000))
        return self._log.read().decode(errors="replace")

    def close(self) -> int:
        """End the process as an operator does; return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(120)
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()


def send(client: httpx.Client, request: Request) -> tuple[int, bytes]:
    """Send a request; return the answer's status and its bytes."""
    headers = {"Content-Type": "application/json"}
    with client.stream(request.method, request.path, content=request.data or None, headers=headers) as response:
        if request.leaves:
            return response.status_code, next(response.iter_raw(), b"")
        return response.status_code, response.read()


def why_wrong(status: int, data: bytes, request: Request) -> str:
    """Return an answer's error; "" if there is none."""
    if request.forced is not None:
        return fuzz_tools.why_wrong(request.path, request.forced, status, data)
    if status not in EXPECTED:
        return f"status {status}"
    if (b'"code":5' in data or b'"code":"server_error"' in data) and status != 501:
        return "an error of the server in a stream"
    if request.leaves or not data.startswith(b"{"):
        return ""
    try:
        json.loads(data, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return "the answer is no JSON"
    return ""


def run(seed: int, cases: range, n_clients: int = 4, quiet: bool = True) -> Record:
    """Send all requests."""
    from vlm_pairs import load_vlm

    image, record, lock = load_vlm("qwen25vl").file, Record(), threading.Lock()
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for case in cases:
        left.put(case)
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(Path(folder))
        before = {name: check(url) for name, url in servers.urls.items()}
        record.rss_start, start = servers.rss(), time.monotonic()

        def work() -> None:
            with ExitStack() as stack:
                limits = httpx.Limits(keepalive_expiry=1.0)  # the server closes a connection that is idle for 5 s
                clients = {
                    name: stack.enter_context(
                        httpx.Client(base_url=url, timeout=N_SECONDS, trust_env=False, limits=limits)
                    )
                    for name, url in servers.urls.items()
                }
                while servers.is_alive:
                    try:
                        send_one(clients, left.get(block=False))
                    except queue.Empty:
                        break

        def send_one(clients: dict[str, httpx.Client], case: int) -> None:
            request = make(seed, case, image)
            begin = time.monotonic()
            try:
                status, data = send(clients[request.server], request)
                wrong = why_wrong(status, data, request)
            except httpx.HTTPError as e:
                status, data, wrong = 0, str(e).encode(), type(e).__name__
            with lock:
                record.n_cases += 1
                record.n_calls += status == 200 and any(name in data for name in CALLS)
                record.slowest = max(record.slowest, time.monotonic() - begin)
                record.statuses[f"{request.path.partition('?')[0]} {status}"] += 1
                if wrong:
                    record.failures.append(
                        {
                            "case": case,
                            "what": wrong if servers.is_alive else "death",
                            "request": f"{request.server} {request.method} {request.path} {request.data[:600]!r}",
                            "answer": data[:600].decode(errors="replace"),
                        }
                    )
                    if not quiet:
                        print(json.dumps(record.failures[-1], indent=1), file=sys.stderr, flush=True)
                if not quiet and record.n_cases % 1000 == 0:
                    print(record.n_cases, f"{servers.rss() >> 10} MiB", file=sys.stderr, flush=True)

        threads = [threading.Thread(target=work) for _ in range(n_clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        record.seconds = time.monotonic() - start
        if record.n_cases < len(cases) and servers.is_alive:
            record.failures.append({"case": -1, "what": f"{len(cases) - record.n_cases} cases were not sent"})
        if servers.is_alive:
            record.rss_peak = servers.rss("VmHWM")
            record.reused = reused(servers.urls.values())
            for name, url in servers.urls.items():
                if check(url) != before[name]:
                    record.failures.append({"case": -1, "what": f"{name} answers otherwise than before"})
        code = servers.close()
        if code:
            record.failures.append({"case": -1, "what": "death", "answer": f"exit code {code}"})
    return record


def check(url: str) -> Any:
    """Return a server's answer to a plain request."""
    answer = httpx.post(f"{url}/completion", json=CHECK, timeout=120.0, trust_env=False)
    return answer.json().get("content", answer.text)


def reused(urls: Iterable[str]) -> dict[str, int]:
    """Return the tokens of prompts that prefixes saved, by the kind of memory."""
    pattern = re.compile(r'^llamacpp:prefix_cache_reused_tokens_total\{tier="(\w+)"\} (\d+)', re.MULTILINE)
    counts: Counter[str] = Counter()
    for url in urls:
        text = httpx.get(f"{url}/metrics", timeout=120.0, trust_env=False).text
        counts.update({tier: int(n) for tier, n in pattern.findall(text)})
    return dict(counts)


def serve(folder: Path) -> None:
    """Run the servers in this process until standard input ends."""
    from serving import Running
    from tiny import write_perfect_pair
    from vlm_pairs import load_vlm

    pair = write_perfect_pair(folder / "target.gguf", folder / "head.gguf")
    vlm = load_vlm("qwen25vl")
    (folder / "slots").mkdir()
    more: dict[str, tuple[Any, dict[str, Any]]] = {
        "plain": (
            pair,
            {"draft_n_max": 4, "options": {"slot_save_path": folder / "slots"}},
        ),
        "images": ((vlm,), {"mmproj_path": vlm.mmproj, "n_ctx": 1024, "options": {"context_shift": False}}),
        "embeddings": ((fim_target(pair[0]),), {"n_batch": 128, "options": {"embeddings": True, "pooling": 1}}),
    }
    for name, template in {"tools": TOOL_TEMPLATE, **fuzz_tools.TEMPLATES}.items():
        more[name] = pair, {"draft_n_max": 3, "n_ctx": 8192, "options": {"chat_template": template}}
    kept: dict[str, Any] = {"prefix_cache_dir": folder / "cache", "prefix_cache_bytes": CACHE_BYTES}
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(Running(*files, **kept, **options)) for name, (files, options) in more.items()
        }
        print(json.dumps({name: server.url for name, server in running.items()}), flush=True)
        sys.stdin.read()


def fim_target(target: Any) -> Path:
    """Return the same target with tokens for filling in."""
    import gguf

    from gguf_raw import U32, RawFile, spoil

    def change(file: RawFile) -> None:
        tokens, types = file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type")
        for i, name in enumerate(("pre", "suf", "mid")):
            token = tokens.index(f"<|unused_{i}|>".encode())
            types[token] = gguf.TokenType.CONTROL
            file.set(f"tokenizer.ggml.fim_{name}_token_id", U32, token)

    return spoil(Path(target.path), change)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="this case alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="file of the record")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return 0
    cases = range(args.first, args.first + args.cases) if args.case is None else range(args.case, args.case + 1)
    record = run(args.seed, cases, quiet=False)
    text = json.dumps({"seed": args.seed, "first": cases.start, **record.summary()}, indent=1) + "\n"
    if args.write is None:
        print(text)
    else:
        args.write.write_text(text, encoding="utf-8")
    return int(bool(record.failures))


if __name__ == "__main__":
    sys.exit(main())
