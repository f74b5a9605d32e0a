"""Flags of `serve`: llama-server's, as far as they mean something here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ..cli.flags import LOAD, LOG, SAMPLING, SERVER, changed
from ..cli.parser import Parser
from ..cli.sampling import given as sampling_given
from ..media import AllowHttp
from .embedder import POOLING
from .limits import PREPARE_SECONDS

_N_BODY_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the endpoints must know of how the server was started."""

    model_name: str
    aliases: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    defaults: dict[str, Any] = field(default_factory=dict)
    """Of a request's fields."""
    api_keys: tuple[str, ...] = ()
    cors_origins: str = ""
    """Empty: none; "localhost", "*", or origins separated by commas."""
    local_only: bool = False
    """Whether requests must name this machine as their host: only its own programs reach a loopback address, and pages
    of other sites whose names were made to lead here are not among those."""
    slots: bool = True
    metrics: bool = False
    ui: bool = True
    slot_save_path: Path | None = None
    n_queue_max: int = 128
    """Sequences that may wait beside those that run."""
    n_body_max: int = _N_BODY_MAX
    timeout_seconds: float = 600.0
    """How long a client may take to send a body, or to take in a part of an answer."""
    ping_seconds: float = 30.0
    prepare_seconds: float = PREPARE_SECONDS
    why_no_draft: str = ""
    chat_template: str = ""
    """In place of the model's own: Jinja, or the name of one of llama.cpp's."""
    jinja: bool = True
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    enable_thinking: bool | None = None
    reasoning_format: str = "auto"
    reasoning_budget: int = -1
    """Tokens; -1: no limit."""
    reasoning_budget_message: str = ""
    context_shift: bool = False
    embeddings: bool = False
    pooling: int | None = None
    """llama.cpp's number; None: what the model says."""
    spm_infill: bool = False
    prefill_assistant: bool = True
    media_http: AllowHttp = False
    """Whether images are fetched from addresses that requests name."""


FLAGS = {
    **LOAD,
    "context": changed(
        LOAD["context"], "keep", metavar="N", read=int, default=0, help="tokens that --context-shift keeps (default: 0)"
    ),
    "server": SERVER,
    "sampling, if a request does not say it": SAMPLING,
    "log": LOG,
}
"""Title -> flags."""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_flags(FLAGS)


def defaults_of(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of a request that the flags set."""
    given = sampling_given(args)
    if "logit_bias" in given:
        given["logit_bias"] = [list(pair) for pair in given["logit_bias"]]
    if args.keep:
        given["n_keep"] = args.keep
    if args.verbose:
        given["verbose"] = True
    return given | ({"n_predict": args.predict} if args.predict >= 0 else {})


def serve_options(args: argparse.Namespace, why_no_draft: str) -> ServeOptions:
    """What the endpoints must know.

    Raises:
        ValueError, OSError: a flag cannot work.
    """
    names = [name.strip() for name in (args.alias or args.hf_repo or Path(args.model).name).split(",") if name.strip()]
    if not names:
        raise ValueError("--alias: expected a name")
    keys = [key.strip() for key in args.api_key.split(",") if key.strip()]
    if args.api_key_file is not None:
        lines = args.api_key_file.read_text(encoding="utf-8").splitlines()
        keys += [line.strip() for line in lines if line.strip()]
        if not keys:
            raise ValueError(f"--api-key-file: '{args.api_key_file}' has no keys")
    folder = args.slot_save_path
    if folder is not None and not folder.is_dir():
        raise ValueError(f"--slot-save-path: '{folder}' is not a folder")
    if (args.ssl_key_file is None) != (args.ssl_cert_file is None):
        raise ValueError("--ssl-key-file and --ssl-cert-file belong together")
    if args.reasoning_budget < -1:
        raise ValueError("--reasoning-budget: expected a number of tokens, or -1 for no limit")
    if min(args.max_queued_requests, args.max_body_size, args.limit_concurrency) < 1 or args.timeout <= 0:
        raise ValueError("expected --max-queued-requests, --max-body-size, --limit-concurrency >= 1 and --timeout > 0")
    return ServeOptions(
        model_name=min(names),
        aliases=frozenset(names),
        tags=frozenset(tag.strip() for tag in args.tags.split(",") if tag.strip()),
        defaults=defaults_of(args),
        api_keys=tuple(keys),
        cors_origins=args.cors_origins,
        local_only=not keys and all(is_loopback(host.strip()) for host in args.host.split(",") if host.strip()),
        slots=args.slots,
        metrics=args.metrics,
        ui=args.ui,
        slot_save_path=folder,
        n_queue_max=args.max_queued_requests,
        n_body_max=args.max_body_size << 20,
        timeout_seconds=args.timeout,
        ping_seconds=args.sse_ping_interval if args.sse_ping_interval > 0 else 1e6,
        why_no_draft=why_no_draft,
        chat_template=_template(args),
        jinja=args.jinja,
        chat_template_kwargs=args.chat_template_kwargs or {},
        enable_thinking={"on": True, "off": False, "auto": None}[args.reasoning],
        reasoning_format=args.reasoning_format,
        reasoning_budget=args.reasoning_budget,
        reasoning_budget_message=args.reasoning_budget_message,
        embeddings=args.embeddings,
        pooling=None if args.pooling is None else POOLING[args.pooling],
        context_shift=args.context_shift,
        spm_infill=args.spm_infill,
        prefill_assistant=args.prefill_assistant,
        media_http="private" if args.media_http_private else args.media_http,
    )


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, whatever name servers say."""
    host = host.lower().removesuffix(".")
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _template(args: argparse.Namespace) -> str:
    if args.chat_template_file is None:
        return str(args.chat_template)
    if args.chat_template:
        raise ValueError("--chat-template and --chat-template-file exclude each other")
    return str(args.chat_template_file.read_text(encoding="utf-8"))
