"""A pair, by the flags of `serve` and `batch`, loaded into a server that is not started."""

from __future__ import annotations

import argparse
import logging
from concurrent.futures import ThreadPoolExecutor

from ..config.serve_options import ServeOptions
from ..serve.log_lines import configure
from ..serve.server import Server
from .load_model import load_model, resolve_pair
from .sampling_flags import sampling_for
from .server_options import serve_options
from .sources import heads_of

_N_SLOTS = 4
_log = logging.getLogger("llama_cpp_eagle3.serve")


def load_server(args: argparse.Namespace, options: ServeOptions) -> Server:
    """Load the pair, and measure the costs of drafts if "auto" needs them."""
    n_parallel = args.n_parallel if args.n_parallel > 0 else _N_SLOTS
    pooled = args.kv_unified if args.kv_unified is not None else (True if args.n_parallel <= 0 else None)
    llm = load_model(args, heads_of(args), n_parallel=n_parallel, kv_unified=pooled)
    try:
        sampling_for(llm.engine, args)  # else each request would fail
        if llm.draft == "auto":
            # OpenMP keeps a pool of threads for each that computes, as long as that lives. With more of them than
            # processors all sleep where they would wait awake, and passes of the engine's take half as long again.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(llm.calibrate, log=_log.info).result()
        server = Server(llm, options)
    except BaseException:
        llm.close()
        raise
    state = server.drafting()
    n_ctx = f"{n_parallel} slots, n_ctx {server.engine.n_ctx}{' shared' if server.engine.target.is_pooled else ' each'}"
    drafts = f"drafts: {state['mode']}, n_max {state['n_max']}" if state["enabled"] else "no drafts"
    _log.info("loaded '%s': %s; %s%s", args.model, n_ctx, drafts, f" ({state['reason']})" if state["reason"] else "")
    return server


def batch_server(args: argparse.Namespace) -> Server:
    """The pair that the flags name, or ours, to be started."""
    configure(args.log_format, args.verbose)
    resolve_pair(args)
    return load_server(args, serve_options(args))
