"""Flags of `serve` and `batch`: those of llama-server's that have a meaning here."""

from __future__ import annotations

import argparse
import re
import ssl
from pathlib import Path
from typing import Any

from ..config.serve_options import ServeOptions, is_loopback, is_unix_socket
from ..files.text_file import read_lines, whole_characters
from ..files.whole_file import output_path
from ..serve.embedder import POOLING
from .flags import LOAD, LOG, REFUSED, REFUSED_BY_SERVER, SAMPLING, SERVER, changed
from .flags.template import template_of
from .parser import Parser
from .sampling_flags import given as sampling_given
from .sampling_flags import sampling_of

FLAGS = {
    **LOAD,
    "context": changed(
        LOAD["context"], "keep", metavar="N", read=int, default=0, help="tokens that --context-shift keeps (default: 0)"
    ),
    "server": SERVER,
    "sampling: defaults of requests": SAMPLING,
    "log": LOG,
    "refused": (*REFUSED, *REFUSED_BY_SERVER),
}
"""Title -> flags."""
_AS_GIVEN = (
    "cors_origins", "slots", "metrics", "ui", "slot_save_path", "jinja", "reasoning_format", "reasoning_budget",
    "reasoning_budget_message", "embeddings", "context_shift", "spm_infill", "prefill_assistant",
)  # fmt: skip
"""Options whose value is that of the flag of the same name."""

_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\sA-Z/?#@]+")
"""What a browser sends: in small letters, without a path."""


def add_server_flags(parser: Parser) -> None:
    """Add the flags."""
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


def serve_options(args: argparse.Namespace) -> ServeOptions:
    """The endpoints' options.

    Raises:
        ValueError, OSError: a flag is invalid, or a file that it names cannot be used.
    """
    sampling_of(args)  # what requests begin with is refused now, if it can never work
    named = whole_characters(args.alias or args.hf_repo or Path(args.model).name)  # clients could not send others
    names = [name.strip() for name in named.split(",") if name.strip()]
    if not names:
        raise ValueError("--alias: expected a name")
    keys = [key.strip() for key in (args.api_key or "").split(",") if key.strip()]
    if args.api_key is not None and not keys:  # such as of a variable that is not set
        raise ValueError("--api-key: expected a key, found none; without the flag the server asks for none")
    if args.api_key_file is not None:
        lines = [part.strip() for line in read_lines(args.api_key_file) for part in line.split("\r")]
        for i, line in enumerate(lines):
            if line.startswith("#") or not line:
                continue
            if re.search(r"\s#", line):  # it would be part of the key, and the key alone would open nothing
                raise ValueError(
                    f"--api-key-file: expected a key alone in line {i + 1} of '{args.api_key_file}', found a # after "
                    "it: a comment begins its line"
                )
            keys.append(line)
        if not keys:
            raise ValueError(f"--api-key-file: '{args.api_key_file}' has no keys")
    folder = args.slot_save_path
    if folder is not None and not folder.is_dir():
        raise ValueError(f"--slot-save-path: '{folder}' is not a folder")
    if (args.ssl_key_file is None) != (args.ssl_cert_file is None):
        raise ValueError("--ssl-key-file and --ssl-cert-file belong together")
    _check_certificate(args.ssl_cert_file, args.ssl_key_file)
    if args.n_parallel == 0:
        raise ValueError("-np: expected a number of slots, or -1 for 4 that share the context, found 0")
    origins = [origin.strip() for origin in args.cors_origins.split(",")]
    wrong = [origin for origin in origins if args.cors_origins and not _ORIGIN.fullmatch(origin)]
    if wrong and args.cors_origins not in ("*", "localhost"):
        raise ValueError(
            "--cors-origins: expected *, localhost, or origins as browsers send them, such as https://example.org:8443 "
            f"or null, with commas between them; found {wrong[0]!r:.80}"
        )
    if args.reasoning_budget < -1:
        raise ValueError("--reasoning-budget: expected a number of tokens, or -1 for no limit")
    if args.timeout <= 0:
        raise ValueError(f"expected --timeout > 0, found {args.timeout:g}")
    for name in ("max_queued_requests", "max_body_size", "limit_concurrency", "record_max_size"):
        if getattr(args, name) < 1:
            raise ValueError(f"expected --{name.replace('_', '-')} >= 1, found {getattr(args, name)}")
    if args.prefix_cache_disk_bytes is not None and (args.prefix_cache_dir is None or args.prefix_cache_disk_bytes < 1):
        n_mib = args.prefix_cache_disk_bytes >> 20
        raise ValueError(f"--cache-disk-size: expected 1 or more and --cache-disk, found {n_mib}")
    if not 0.0 <= args.learn_share <= 1.0:
        raise ValueError(f"--learn-share: expected 0 to 1, found {args.learn_share:g}")
    hosts = [host.strip() for host in args.host.split(",") if host.strip()]
    return ServeOptions(
        **{name: getattr(args, name) for name in _AS_GIVEN},
        model_name=min(names),
        aliases=frozenset(names),
        tags=frozenset(tag.strip() for tag in whole_characters(args.tags).split(",") if tag.strip()),
        defaults=defaults_of(args),
        api_keys=tuple(keys),
        local_only=not keys and all(is_unix_socket(host) or is_loopback(host) for host in hosts),
        n_queue_max=args.max_queued_requests,
        n_body_max=args.max_body_size << 20,
        timeout_seconds=args.timeout,
        ping_seconds=args.sse_ping_interval if args.sse_ping_interval > 0 else 1e6,
        chat_template=template_of(args),
        chat_template_kwargs=args.chat_template_kwargs or {},
        enable_thinking={"on": True, "off": False, "auto": None}[args.reasoning],
        pooling=None if args.pooling is None else POOLING[args.pooling],
        record=None if args.record is None else output_path(args.record, args.model),
        n_record_max=args.record_max_size << 20,
        learn_share=args.learn_share,
        media_http="private" if args.media_http_private else args.media_http,
    )


def _check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Raise ValueError if there is no TLS with these files. A key that has a password is tried when the server asks."""
    if certificate is None or key is None:
        return
    asked: list[bool] = []

    def password() -> str:
        asked.append(True)
        return ""

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password=password)
    except OSError as e:
        if not asked:
            why = e.strerror or e
            raise ValueError(f"--ssl-cert-file '{certificate}' with --ssl-key-file '{key}': {why}") from None
