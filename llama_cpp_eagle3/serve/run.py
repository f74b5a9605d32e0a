"""From flags to a running server: sockets, loading, uvicorn."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from ..cli.model import load_model, resolve_pair
from ..cli.sources import head_of, source_options
from .app import make_app
from .info import drafting
from .log import configure
from .options import ServeOptions, serve_options
from .protocol import http_config
from .server import Server

_N_SLOTS = 4
_SHUTDOWN_SECONDS = 2
_log = logging.getLogger(__name__)


def serve(args: argparse.Namespace) -> int:
    """Load and serve until a signal comes.

    Raises:
        ValueError, OSError, RuntimeError: it cannot be started; no port was open.
    """
    configure(args.log_format, args.verbose)
    resolve_pair(args)
    if not Path(args.model).is_file():
        raise ValueError(f"'{args.model}' is missing: -m takes a GGUF file")
    why = why_no_draft(args)
    options = serve_options(args, why)
    sockets = _bind(args.host, args.port)
    try:
        server = load(args, options)
    except BaseException:
        for opened in sockets:
            opened.close()
        raise
    for opened in sockets:
        opened.listen(2048)
        _log.info("listening on %s", _address_of(opened, args.ssl_cert_file is not None))
    config = http_config(
        make_app(server),
        args.limit_concurrency,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        ssl_keyfile=None if args.ssl_key_file is None else str(args.ssl_key_file),
        ssl_certfile=None if args.ssl_cert_file is None else str(args.ssl_cert_file),
    )
    _Server(config).run(sockets=sockets)
    return 0


def load(args: argparse.Namespace, options: ServeOptions) -> Server:
    """Load the pair, and measure what drafts cost if that decides about them."""
    n_parallel = args.parallel if args.parallel > 0 else _N_SLOTS
    pooled = args.kv_unified if args.kv_unified is not None else (True if args.parallel <= 0 else None)
    draft = head_of(args)
    llm = load_model(
        args, draft, n_parallel=n_parallel, kv_unified=pooled, prefix_cache_bytes=_host_bytes(args.cache_ram)
    )
    try:
        if llm.draft == "auto":
            llm.calibrate(log=_log.info)
        server = Server(llm, options)
    except BaseException:
        llm.close()
        raise
    state = drafting(server)
    n_ctx = f"{n_parallel} slots, n_ctx {server.engine.n_ctx}{' shared' if server.engine.target.is_pooled else ' each'}"
    drafts = f"drafts: {state['mode']}, n_max {state['n_max']}" if state["enabled"] else "no drafts"
    _log.info("loaded '%s': %s; %s%s", args.model, n_ctx, drafts, f" ({state['reason']})" if state["reason"] else "")
    return server


def _host_bytes(n_mib: int) -> int:
    """Of --cache-ram, where -1 is no limit."""
    return n_mib << 20 if n_mib >= 0 else sys.maxsize


def why_no_draft(args: argparse.Namespace) -> str:
    """Why the flags say that nothing is drafted; empty if they do not."""
    if args.spec_type == ():
        return "--spec-type none"
    if head_of(args) is None and not source_options(args).get("draft_sources"):
        return "no head was given: -md takes one, and --spec-type ngram-simple needs none"
    return ""


def _bind(hosts: str, port: int) -> list[socket.socket]:
    """Sockets that are bound, so that nobody else can take the port, and do not listen yet.

    Raises:
        OSError: a port is in use, or an address is not this machine's.
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


def _address_of(opened: socket.socket, is_tls: bool) -> str:
    host, port = opened.getsockname()[:2]
    return f"http{'s' if is_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn's, for which a signal is a usual end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
