"""The command itself: its messages before it opens a port, signals, TLS."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llama_cpp_eagle3.cli import main, serve
from llama_cpp_eagle3.config.serve_options import ServeOptions
from llama_cpp_eagle3.serve.middleware import Middleware
from llama_cpp_eagle3.serve.run import address_of, bind
from loading import path_of
from tiny import write_head, write_target


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def flags(pair: Any, *more: Any) -> list[str]:
    files = ["-m", path_of(pair[0]), "-md", path_of(pair[1]), "-t", "1", "-c", "512", "-np", "2"]
    return [*files, "--spec-draft-n-max", "3", *map(str, more)]


def test_errors_before_the_port_opens(pair: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_target(tmp_path / "wide.gguf", n_embd=96)
    misfit = write_head(tmp_path / "misfit.gguf", other)
    key_file = tmp_path / "keys"
    key_file.write_text("\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for args, word in (
            (flags(pair, "--port", port), "in use: another program listens there; end it, or give another --port"),
            (["-m", str(tmp_path / "nothing.gguf")], "no such file: the folder"),
            (["-m", path_of(pair[0]), "-md", str(tmp_path / "nothing.gguf"), "--port", "0"], "nothing.gguf"),
            (["-m", path_of(pair[0]), "-md", misfit.path, "--port", "0"], "misfit.gguf"),
            (flags(pair, "--slot-save-path", tmp_path / "nowhere"), "nowhere"),
            (flags(pair, "--api-key-file", key_file), "no keys"),
            (flags(pair, "--api-key", ""), "expected a key"),
            (flags(pair, "--chat-template", "{% if %}", "--port", "0"), "in Jinja in --chat-template or"),
            (flags(pair, "--api-key", " , "), "expected a key"),
            (flags(pair, "--ssl-key-file", key_file), "belong together"),
            (flags(pair, "--ssl-key-file", key_file, "--ssl-cert-file", key_file), f"--ssl-key-file '{key_file}': "),
            (flags(pair, "--ssl-key-file", key_file, "--ssl-cert-file", tmp_path / "x"), "No such file"),
            (flags(pair, "--cors-origins", "htp:/x y"), "--cors-origins: expected *, localhost, or origins"),
            (flags(pair, "--cors-origins", "http://x.org,http://x.org/a"), "between them; found 'http://x.org/a'"),
            (flags(pair, "-np", "0"), "-np: expected a number of slots, or -1"),
            (flags(pair, "--host", "192.0.2.1", "--port", "0"), "--host takes an address of this machine"),
            (flags(pair, "--host", "256.1.1.1", "--port", "0"), "--host takes a name or an address of this machine"),
            (flags(pair, "--host", "http://localhost", "--port", "0"), "found 'http://localhost', which is a URL"),
            (flags(pair, "--host", "unix:///run/x.sock"), "found 'unix:///run/x.sock', which is a URL"),
        ):
            assert main(["serve", *map(str, args)]) == 2, args
            lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
            assert len(lines) == 1, lines
            assert word in lines[0]


@pytest.mark.parametrize("port", ["70000", "-1", "65536", "http"])
def test_ports(port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is no port is refused before anything is loaded or fetched."""
    monkeypatch.setattr(serve, "resolve_pair", lambda *_, **more: pytest.fail("it began to load"))
    for environment, args in (({}, ["--port", port]), ({"LLAMA_ARG_PORT": port}, [])):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as e:
            main(["serve", *args])
        assert e.value.code == 2
        assert f"expected a port, 1 to 65535 or 0 for a free one, found '{port}'" in capsys.readouterr().err


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in which a socket's name fits into the system's 108 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_unix_sockets(short_path: Path) -> None:
    """A file of a server that was killed is replaced, one that is used or is no socket is not; it is removed again."""
    path = short_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with bind(f"{path},127.0.0.1", 0) as bound:
        assert [address_of(opened, False).partition(":")[0] for opened in bound] == ["unix", "http"]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        with pytest.raises(OSError, match=rf"cannot listen on {path}: Address already in use"), bind(str(path), 0):
            pass
        assert path.is_socket()
    assert not path.exists()
    path.write_text("a file")
    with pytest.raises(OSError, match="there is a file of this name that is no socket"), bind(str(path), 0):
        pass
    assert path.read_text() == "a file"
    (short_path / "y.sock").symlink_to("/nowhere")
    with pytest.raises(OSError, match="that is no socket"), bind(f"{short_path}/y.sock", 0):
        pass


def test_a_socket_of_another_server_stays(short_path: Path) -> None:
    path = short_path / "x.sock"
    with bind(str(path), 0):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


def test_a_server_at_a_unix_socket(pair: Any, short_path: Path) -> None:
    """Requests wait while it loads. They may name any host: no page of another site reaches the socket."""
    path = short_path / "x.sock"
    command = [sys.executable, "-m", "llama_cpp_eagle3", "serve", *flags(pair, "--host", path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.02)
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://any.host", timeout=60) as client:
            assert client.get("/health").status_code == 200
            assert client.post("/completion", json={"prompt": "a", "n_predict": 2}).json()["tokens_predicted"] == 2
    finally:
        process.terminate()
        _, log = process.communicate(timeout=120)
    assert process.returncode == 0
    assert f"listening on unix://{path}" in log
    assert not path.exists()


def test_a_process(pair: Any, tmp_path: Path) -> None:
    """The log has JSON lines, a request gets its answer, and the process ends within five seconds despite a stream."""
    port = free_port()
    args = [
        arg for arg in flags(pair, "--port", port, "--log-format", "json") if arg not in ("--spec-draft-n-max", "3")
    ]
    command = [sys.executable, "-m", "llama_cpp_eagle3", "serve", *args]
    env = {**os.environ, "LLAMA_CPP_EAGLE3_CACHE": str(tmp_path / "cache")}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*command, "--api-key", "sk-secret"], stderr=log, env=env)
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer sk-secret"}, trust_env=False) as client:
            wait_until_up(client, process)
            answer = client.post("/completion", json={"prompt": "a", "n_predict": 4}).json()
            assert answer["tokens_predicted"] == 4
            body = {"prompt": "a", "n_predict": 200, "stream": True}
            with client.stream("POST", "/completion", json=body) as response:
                next(response.iter_lines())
                start = time.monotonic()
                process.send_signal(signal.SIGTERM)
                process.wait(120)
                assert time.monotonic() - start < 5.0
        assert process.returncode == 0
    finally:
        process.kill()
    lines = (tmp_path / "log").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    messages = [line["message"] for line in found]
    assert f"listening on {url}" in messages
    assert "measuring what passes cost" in messages[0]  # before it begins
    assert any(line.get("path") == "/completion" and line["n_tokens"] == 4 for line in found)
    assert "sk-secret" not in "".join(lines)


@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_is_closed(pair: Any, nohup: bool) -> None:
    """It ends the server as SIGTERM does, unless it was started by nohup."""
    port = free_port()
    command = [*(["nohup"] if nohup else []), sys.executable, "-m", "llama_cpp_eagle3", "serve"]
    process = subprocess.Popen(
        [*command, *flags(pair, "--port", port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup may have started the tests
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            wait_until_up(client, process)
            process.send_signal(signal.SIGHUP)
            if nohup:
                time.sleep(0.5)
                assert client.get("/health").status_code == 200
                process.terminate()
            _, log = process.communicate(timeout=120)
            assert process.returncode == 0
            assert "Traceback" not in log
    finally:
        process.kill()


def wait_until_up(client: httpx.Client, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None
        try:
            assert client.get("/health").status_code == 200
            return
        except httpx.TransportError:
            time.sleep(0.02)
    pytest.fail("the server does not answer")


def test_tls(pair: Any, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject]
    try:
        subprocess.run([*make, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl")
    port = free_port()
    tls = ("--port", port, "--ssl-key-file", key, "--ssl-cert-file", cert)
    process = subprocess.Popen(
        [sys.executable, "-m", "llama_cpp_eagle3", "serve", *flags(pair, *tls)], stderr=subprocess.DEVNULL
    )
    try:
        context = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, trust_env=False) as client:
            wait_until_up(client, process)
            assert client.post("/completion", json={"prompt": "a", "n_predict": 2}).status_code == 200
    finally:
        process.terminate()
        process.wait(120)


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_answer_that_the_end_does_not_wait_for(has_begun: bool) -> None:
    """It is a 503, or a stream that is cut, and no error of the server."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        scope = {"type": "http", "method": "POST", "path": "/completion", "http_version": "1.0", "headers": []}
        task = asyncio.ensure_future(Middleware(app, ServeOptions(model_name="x"))(scope, asyncio.Event().wait, send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(ask())
    if has_begun:
        assert [(message["type"], message["status"]) for message in sent] == [("http.response.start", 200)]
    else:
        assert sent[0]["status"] == 503
        assert b"the server ends" in sent[1]["body"]


def test_a_second_signal_is_the_end() -> None:
    """uvicorn cancels the server's life then: the application is told of its end all the same."""
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        told.append((await receive())["type"])

    async def live() -> None:
        middleware = Middleware(app, ServeOptions(model_name="x"))
        task = asyncio.ensure_future(middleware({"type": "lifespan"}, asyncio.Event().wait, app))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(live())
    assert told == ["lifespan.shutdown"]
