"""Run a loaded server: sockets and uvicorn."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from .app import make_app
from .protocol import http_config
from .server import Server

_SHUTDOWN_SECONDS = 2
_log = logging.getLogger(__name__)


def run(
    server: Server,
    sockets: list[socket.socket],
    n_connections: int,
    ssl_key_file: Path | None = None,
    ssl_cert_file: Path | None = None,
) -> None:
    """Start a server on sockets that `bind` has bound, and serve until a signal comes."""
    for opened in sockets:
        opened.listen(2048)
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


def bind(hosts: str, port: int) -> list[socket.socket]:
    """Bind sockets, so that no other process can take the port; they do not listen yet.

    Raises:
        OSError: a port is in use, or an address is not this machine's.
        ValueError: hosts names no address.
    """
    bound: list[socket.socket] = []
    try:
        for host in [host.strip() for host in hosts.split(",") if host.strip()]:
            family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            opened = socket.socket(family, kind, proto)
            bound.append(opened)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                opened.bind(address)
            except OSError as e:
                raise OSError(f"cannot listen on {host} port {port}: {e.strerror or e}") from None
    except BaseException:
        for opened in bound:
            opened.close()
        raise
    if not bound:
        raise ValueError("--host: expected an address")
    return bound


def address_of(opened: socket.socket, is_tls: bool) -> str:
    """Return the URL of a socket."""
    host, port = opened.getsockname()[:2]
    return f"http{'s' if is_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn's server, which returns from `run` after a signal instead of raising it again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
