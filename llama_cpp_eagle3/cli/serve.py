"""Serve a target and its head over HTTP, with the flags and endpoints of llama-server, compatible with OpenAI's API.

Without -m it is SmolLM2-135M-Instruct, which is fetched once.
"""

from __future__ import annotations

import argparse

from .._core import read_arch
from ..extras import extra
from .load_model import resolve_pair
from .parser import Parser
from .server_options import add_server_flags, serve_options


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    with extra("serve"):
        import starlette  # noqa: F401  a missing package is an error before any flag is
    add_server_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Load and serve until a signal comes.

    Raises:
        ValueError, OSError, RuntimeError: it cannot be started; no port was open.
    """
    with extra("serve"):
        from ..serve.log_lines import configure
        from ..serve.run import bind
        from ..serve.run import run as run_server
        from .load_server import load_server
    configure(args.log_format, args.verbose)
    resolve_pair(args)
    read_arch(args.model)  # a file that is missing is an error before a port is taken
    options = serve_options(args)
    with bind(args.host, args.port) as sockets:
        server = load_server(args, options)
        run_server(server, sockets, args.limit_concurrency, args.ssl_key_file, args.ssl_cert_file)
    return 0
