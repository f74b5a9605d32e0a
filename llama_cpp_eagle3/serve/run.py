"""Run a loaded server: sockets and uvicorn."""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import uvicorn

from ..config.serve_options import is_unix_socket
from .app import make_app
from .protocol import http_config
from .server import Server

_SHUTDOWN_SECONDS = 2
_N_BACKLOG = 2048
_log = logging.getLogger(__name__)


def run(
    server: Server,
    sockets: list[socket.socket],
    n_connections: int,
    ssl_key_file: Path | None = None,
    ssl_cert_file: Path | None = None,
) -> None:
    """Start a server on sockets that `bind` has bound, and serve until a signal comes."""
    gc.freeze()  # what is loaded stays: the garbage collector, which holds all threads, need not look at it again
    for opened in sockets:
        opened.listen(_N_BACKLOG)
        _log.info("listening on %s", address_of(opened, ssl_cert_file is not None))
    config = http_config(
        make_app(server),
        n_connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        ssl_keyfile=None if ssl_key_file is None else str(ssl_key_file),
        ssl_certfile=None if ssl_cert_file is None else str(ssl_cert_file),
    )
    _Server(config).run(sockets=sockets)


_ADVICE = {
    errno.EADDRINUSE: ": another program listens there; end it, or give another --port (0: a free one)",
    errno.EADDRNOTAVAIL: ": --host takes an address of this machine, or 0.0.0.0 for all of them",
    errno.EACCES: ": ports below 1024 are the administrator's; give another --port",
    int(socket.EAI_NONAME): ": --host takes a name or an address of this machine, without a port, or FILE.sock",
}


@contextmanager
def bind(hosts: str, port: int) -> Iterator[list[socket.socket]]:
    """Bind sockets, so that no other process can take the port; those of a network do not listen yet.

    Names that end in .sock are UNIX sockets. At the end of the block all are closed, and these files removed.

    Raises:
        OSError: a port or a file is in use, or an address is not this machine's.
        ValueError: hosts names no address, or has a URL.
    """
    names = [host.strip() for host in hosts.split(",") if host.strip()]
    if not names:
        raise ValueError("--host: expected an address")
    if url := next((name for name in names if "://" in name), ""):
        raise ValueError(f"--host: expected an address, a name or FILE.sock, found '{url}', which is a URL")
    with ExitStack() as stack:
        bound = []
        for name in names:
            try:
                bound.append(stack.enter_context(_at_file(name) if is_unix_socket(name) else _at_port(name, port)))
            except OSError as e:
                where, advice = f"{name} port {port}", _ADVICE.get(e.errno or 0, "")
                if is_unix_socket(name):
                    where, advice = name, ""
                raise OSError(f"cannot listen on {where}: {e.strerror or e}{advice}") from None
        yield bound


@contextmanager
def _at_port(host: str, port: int) -> Iterator[socket.socket]:
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, proto) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        yield opened


@contextmanager
def _at_file(path: str) -> Iterator[socket.socket]:
    """A UNIX socket. It listens at once: its file shows other processes that it is used."""
    if not hasattr(socket, "AF_UNIX"):
        raise OSError("this Python has no UNIX sockets")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
        if os.path.lexists(path) and not Path(path).is_socket():
            raise OSError("there is a file of this name that is no socket: remove it, or give another name")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if Path(path).is_socket() and probe.connect_ex(path) == errno.ECONNREFUSED:
                os.unlink(path)  # a server that was killed left it behind
        opened.bind(path)
        own = os.stat(path)
        opened.listen(_N_BACKLOG)
        try:
            yield opened
        finally:
            with suppress(OSError):
                if os.path.samestat(own, os.stat(path)):
                    os.unlink(path)


def address_of(opened: socket.socket, is_tls: bool) -> str:
    """Return the URL of a socket, or as llama-server shows it the file of a UNIX socket."""
    name = opened.getsockname()
    if isinstance(name, str):
        return f"unix://{name}"
    host, port = name[:2]
    return f"http{'s' if is_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn's server, which returns from `run` after a signal instead of raising it again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM]
        hang_up = getattr(signal, "SIGHUP", None)  # the terminal is closed; nohup ignores it
        if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
            numbers.append(hang_up)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
