"""Try our server with clients that people use, each from the package index in an environment of its own.

    python tests/clients/run.py [--part] [--model MODEL] [NAME ...]

versions.txt pins the clients, programs/ has a file of checks for each, checks.py runs these in the client's
environment, with an empty home and no variables but the server's address. Results go to results.json, and
docs/clients.md is written of them. --part tries a few light ones in minutes, and writes nothing.
What client and server said is in build/clients/NAME.log.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from threading import Timer
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
BUILD = ROOT / "build" / "clients"
RESULTS = FOLDER / "results.json"
PAGE = ROOT / "docs" / "clients.md"
BIN = Path(sys.executable).parent
MODEL = "qwen2.5-coder-0.5b"
PART = ("openai", "anthropic", "instructor", "ollama")
FLAGS = ("-c", "32768", "--metrics", "--temp", "0")
SECONDS_START, SECONDS_STOP, SECONDS_CLIENT = 600, 300, 3600
HEAD = """# Clients

Which programs work with the server? `make clients` installs each into an environment of its own, runs it against
`llama-cpp-eagle3 serve` and checks what came of it: that a tool was called with these arguments, that a file was
edited, that the second turn found its prompt. It has written this page; "no" is a client whose checks have not been run
yet. The models are small: these checks are about the server, not about how well a model does. Most clients want an API
key: any will do, unless the server has `--api-key`.
"""


@dataclass(frozen=True)
class Client:
    """A client: its line in versions.txt and its file of checks."""

    name: str
    requirements: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Its checks."""
        return FOLDER / "programs" / f"{self.name.replace('-', '_')}.py"

    @property
    def docstring(self) -> str:
        """What it is, and how it is connected."""
        return ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""

    @property
    def model(self) -> str:
        """The model that it is tried with: a larger one if its file asks for that as TARGET."""
        for node in ast.parse(self.path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TARGET":
                return str(ast.literal_eval(node.value))
        return MODEL


def clients() -> list[Client]:
    """All clients, in the order of versions.txt."""
    lines = (FOLDER / "versions.txt").read_text(encoding="utf-8").splitlines()
    read = [line.partition(":") for line in lines if line and not line.startswith("#")]
    return [Client(name, tuple(requirements.split())) for name, _, requirements in read]


def environment(client: Client) -> Path:
    """The folder with the client's programs; it is installed unless these versions are there.

    Raises:
        RuntimeError: it cannot be installed.
    """
    folder, stamp = BUILD / client.name, BUILD / client.name / "installed"
    if stamp.is_file() and stamp.read_text().split() == list(client.requirements):
        return folder / "bin"
    shutil.rmtree(folder, ignore_errors=True)
    python, packages = sys.executable, list(client.requirements)
    if packages[-1].startswith("python>="):
        python = newer_python(packages.pop().removeprefix("python>="))
    for command in (["venv", "-q", "--python", python, folder], ["pip", "install", "-q", "-p", folder, *packages]):
        done = subprocess.run([BIN / "uv", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"it cannot be installed: {done.stderr.strip()[-500:]}")
    stamp.write_text(" ".join(client.requirements))
    return folder / "bin"


def newer_python(least: str) -> str:
    """A Python of this version or newer, ours if it is.

    Raises:
        RuntimeError: there is none.
    """
    found = [*Path.home().glob(".pyenv/versions/3.*/bin/python3.*"), *Path("/usr").glob("*bin/python3.*")]
    for path in [Path(sys.executable), *(one for one in found if re.fullmatch(r"python3\.\d+", one.name))]:
        version = subprocess.run([path, "-V"], capture_output=True, text=True, check=False).stdout.split()[1:]
        if version and [*map(int, version[0].split("."))][:2] >= [*map(int, least.split("."))]:
            return str(path)
    raise RuntimeError(f"there is no Python {least} or newer on this machine")


@dataclass
class Server:
    """`llama-cpp-eagle3 serve`, which keeps its address and its folder of prefixes when it is restarted."""

    model: str
    log: Path
    folder: str
    process: subprocess.Popen[bytes] | None = None
    port: int = field(default=0)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            RuntimeError: it ended, or does not answer.
        """
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.port = probe.getsockname()[1]
        command = [BIN / "llama-cpp-eagle3", "serve", "-m", self.model, *FLAGS]
        command += ["--port", str(self.port), "--cache-disk", self.folder]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + SECONDS_START
        while time.monotonic() < end and self.process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(0.2)
        raise RuntimeError(f"the server does not start: see {self.log}")

    def stop(self) -> None:
        """End it; a server that does not is killed."""
        if self.process is not None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(SECONDS_STOP)
            self.process.kill()


def run(client: Client, programs: Path, server: Server, log: Path) -> dict[str, str]:
    """Run a client's checks; returns check -> "" or what went wrong."""
    with tempfile.TemporaryDirectory() as home, log.open("ab") as output:
        results = Path(home) / "results"
        variables = {"HOME": home, "PATH": f"{programs}:/usr/bin:/bin", "LANG": "C.UTF-8", "RESULTS": str(results)}
        process = subprocess.Popen(
            [programs / "python", FOLDER / "checks.py", client.path],
            cwd=home,
            env={**variables, "URL": server.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        assert process.stdout and process.stdin
        timer = Timer(SECONDS_CLIENT, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            for line in process.stdout:
                output.write(line.encode())
                if line == "restart\n":
                    server.stop()
                    server.start()
                    process.stdin.write("\n")
                    process.stdin.flush()
            code = process.wait()
        finally:
            timer.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started and left
        found = dict(map(json.loads, results.read_text().splitlines())) if results.is_file() else {}
        return found if code == 0 and found else {**found, "all checks run": f"its process ended with {code}"}


def page(results: dict[str, Any]) -> str:
    """docs/clients.md."""
    rows, parts = [], []
    for client in clients():
        untried = {"version": client.requirements[0].replace("==", " "), "model": "", "date": "no", "checks": {}}
        result = results.get(client.name, untried)
        works = ", ".join(name for name, wrong in result["checks"].items() if not wrong)
        fails = "; ".join(f"{name}: {wrong}" for name, wrong in result["checks"].items() if wrong).replace("|", "\\|")
        title, _, connect = client.docstring.partition("\n")
        about = f"{result['version']} | {result['model']} | {result['date']}"
        rows.append(f"| [{client.name}](#{client.name}) | {about} | {works} | {fails} |")
        parts.append(f"## {client.name}\n{title}\n```\n{textwrap.dedent(connect).strip()}\n```\n")
    table = ["| client | version | model | tried | works | fails |", "|---|---|---|---|---|---|", *rows]
    return "\n".join([HEAD, *table, "", *parts])


def main(arguments: list[str]) -> int:
    """Try the clients; returns 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="clients of versions.txt; all without one")
    parser.add_argument("--part", action="store_true", help=f"{', '.join(PART)}; nothing is written")
    parser.add_argument("--model", help="another model than the client's")
    given = parser.parse_args(arguments)
    names = given.names or (PART if given.part else [client.name for client in clients()])
    unknown = set(names) - {client.name for client in clients()}
    if unknown:
        parser.error(f"not in versions.txt: {', '.join(sorted(unknown))}")
    BUILD.mkdir(parents=True, exist_ok=True)
    n_passed = n_failed = 0
    for client in clients():
        if client.name not in names:
            continue
        log = BUILD / f"{client.name}.log"
        log.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            server = Server(given.model or client.model, log, folder)
            try:
                programs = environment(client)
                server.start()
                checks = run(client, programs, server, log)
            except RuntimeError as e:
                checks = {"it runs": str(e)}
            finally:
                server.stop()
        for name, wrong in checks.items():
            print(f"{client.name}: {name}: {wrong or 'ok'}", flush=True)
        n_passed, n_failed = n_passed + list(checks.values()).count(""), n_failed + sum(map(bool, checks.values()))
        results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        results[client.name] = {
            "version": client.requirements[0].replace("==", " "),
            "model": server.model,
            "date": date.today().isoformat(),
            "checks": checks,
        }
        if not given.part:
            RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            PAGE.write_text(page(results), encoding="utf-8")
    print(f"{n_passed} passed, {n_failed} failed")
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
