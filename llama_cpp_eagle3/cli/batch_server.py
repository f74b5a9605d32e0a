"""The server that answers the requests of a file, here or in a worker of Ray."""

from __future__ import annotations

import argparse

from ..serve.log_lines import configure
from ..serve.server import Server
from .load_server import load_server, why_no_draft
from .model import resolve_pair
from .server_options import serve_options


def batch_server(args: argparse.Namespace) -> Server:
    """The pair that the flags name, or the bundled one, to be started."""
    configure(args.log_format, args.verbose)
    resolve_pair(args, chats=True)
    return load_server(args, serve_options(args, why_no_draft(args)))
