"""Flags of `serve`: llama-server's, as far as they mean something here."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..cli.options import add_draft_flags, add_model_flags
from .embedder import POOLING

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
    media_http: bool = False
    """Whether images are fetched from addresses that requests name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_model_flags(parser)
    add_draft_flags(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", metavar="HOST", help="addresses, separated by commas")
    group.add_argument("--port", type=int, default=8080, metavar="PORT", help="(default: 8080)")
    group.add_argument("-np", "--parallel", type=int, default=-1, metavar="N", help="slots (default: 4 that share -c)")
    group.add_argument("-kvu", "--kv-unified", action=argparse.BooleanOptionalAction, help="slots share -c")
    group.add_argument("-a", "--alias", metavar="NAMES", help="names of the model, separated by commas")
    group.add_argument("--tags", default="", metavar="TAGS", help="of the model, separated by commas")
    group.add_argument("--slots", action=argparse.BooleanOptionalAction, default=True, help="GET /slots (default: on)")
    group.add_argument("--metrics", action="store_true", help="GET /metrics")
    group.add_argument("--ui", "--webui", action=argparse.BooleanOptionalAction, default=True, help="a page at /")
    group.add_argument("--slot-save-path", type=Path, metavar="DIR", help="where slots may be saved")
    group.add_argument(
        "--context-shift", action=argparse.BooleanOptionalAction, default=False, help="cut tokens out of a full context"
    )
    group.add_argument("--embeddings", "--embedding", action="store_true", help="/v1/embeddings, in another context")
    group.add_argument("--pooling", choices=POOLING, help="of embeddings (default: what the model says)")
    group.add_argument("--spm-infill", action="store_true", help="suffix before prefix, as some models have it")
    group.add_argument("--cache-ram", type=int, default=1024, metavar="MiB", help="for prompts (default: 1024)")
    group.add_argument("--api-key", default="", metavar="KEYS", help="separated by commas")
    group.add_argument("--api-key-file", type=Path, metavar="FNAME", help="a key in each line")
    group.add_argument("--cors-origins", default="", metavar="ORIGINS", help="*, localhost, or a list (default: none)")
    group.add_argument("--ssl-key-file", type=Path, metavar="FNAME")
    group.add_argument("--ssl-cert-file", type=Path, metavar="FNAME")
    group.add_argument(
        "-to", "--timeout", type=float, default=600.0, metavar="S", help="for slow clients (default: 600)"
    )
    group.add_argument(*("--max-queued-requests",), type=int, default=128, metavar="N", help="then 429 (default: 128)")
    group.add_argument("--max-body-size", type=int, default=64, metavar="MiB", help="(default: 64)")
    group.add_argument("--sse-ping-interval", type=int, default=30, metavar="S", help="(default: 30)")
    group.add_argument("--log-format", choices=("text", "json"), default="text")
    group.add_argument("-v", "--verbose", action="store_true", help="show llama.cpp's own messages")
    group.add_argument("-n", "--predict", "--n-predict", type=int, default=-1, metavar="N", help="tokens by default")
    group.add_argument("--media-http", action="store_true", help="fetch images from addresses in messages")
    _add_chat(parser)
    _add_sampling(parser)


def _add_chat(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("chat")
    group.add_argument("--chat-template", default="", metavar="JINJA", help="or the name of one of llama.cpp's")
    group.add_argument("--chat-template-file", type=Path, metavar="FNAME")
    group.add_argument("--chat-template-kwargs", default="{}", metavar="JSON", help="variables of the template")
    group.add_argument("--jinja", action=argparse.BooleanOptionalAction, default=True, help="(default: on)")
    group.add_argument("--reasoning", "-rea", choices=("on", "off", "auto"), default="auto", help="let the model think")
    group.add_argument("--reasoning-format", default="auto", choices=("auto", "none", "deepseek", "deepseek-legacy"))
    group.add_argument("--reasoning-budget", type=int, default=-1, metavar="N", help="tokens (default: -1, no limit)")
    group.add_argument("--reasoning-budget-message", default="", metavar="TEXT", help="written when it is spent")
    group.add_argument("--prefill-assistant", action=argparse.BooleanOptionalAction, default=True)


_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "top_n_sigma", "typical_p", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length"),
    *("dry_penalty_last_n", "xtc_probability", "xtc_threshold", "dynatemp_range", "mirostat", "seed", "samplers"),
)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling, if a request does not say it")
    for flags, name, kind in (
        (("--temp", "--temperature"), "temperature", float),
        (("--top-k",), "top_k", int),
        (("--top-p",), "top_p", float),
        (("--min-p",), "min_p", float),
        (("--top-nsigma", "--top-n-sigma"), "top_n_sigma", float),
        (("--typical", "--typical-p"), "typical_p", float),
        (("--repeat-penalty",), "repeat_penalty", float),
        (("--repeat-last-n",), "repeat_last_n", int),
        (("--presence-penalty",), "presence_penalty", float),
        (("--frequency-penalty",), "frequency_penalty", float),
        (("--dry-multiplier",), "dry_multiplier", float),
        (("--dry-base",), "dry_base", float),
        (("--dry-allowed-length",), "dry_allowed_length", int),
        (("--dry-penalty-last-n",), "dry_penalty_last_n", int),
        (("--xtc-probability",), "xtc_probability", float),
        (("--xtc-threshold",), "xtc_threshold", float),
        (("--dynatemp-range",), "dynatemp_range", float),
        (("--mirostat",), "mirostat", int),
        (("-s", "--seed"), "seed", int),
    ):
        group.add_argument(*flags, dest=name, type=kind, metavar="N" if kind is int else "X")
    group.add_argument("--samplers", metavar="NAMES", help="in their order, separated by ;")


def defaults_of(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of a request that the flags set."""
    given = {name: getattr(args, name) for name in _SAMPLING if getattr(args, name) is not None}
    if "samplers" in given:
        given["samplers"] = given["samplers"].split(";")
    if args.verbose:
        given["verbose"] = True
    return given | ({"n_predict": args.predict} if args.predict >= 0 else {})


def serve_options(args: argparse.Namespace, why_no_draft: str) -> ServeOptions:
    """What the endpoints must know.

    Raises:
        ValueError, OSError: a flag cannot work.
    """
    names = [name.strip() for name in (args.alias or Path(args.model).name).split(",") if name.strip()]
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
    if min(args.max_queued_requests, args.max_body_size) < 1 or args.timeout <= 0:
        raise ValueError("expected --max-queued-requests >= 1, --max-body-size >= 1 and --timeout > 0")
    return ServeOptions(
        model_name=min(names),
        aliases=frozenset(names),
        tags=frozenset(tag.strip() for tag in args.tags.split(",") if tag.strip()),
        defaults=defaults_of(args),
        api_keys=tuple(keys),
        cors_origins=args.cors_origins,
        slots=args.slots,
        metrics=args.metrics,
        ui=args.ui,
        slot_save_path=folder,
        n_queue_max=args.max_queued_requests,
        n_body_max=args.max_body_size << 20,
        timeout_seconds=args.timeout,
        ping_seconds=args.sse_ping_interval if args.sse_ping_interval > 0 else 1e9,
        why_no_draft=why_no_draft,
        chat_template=_template(args),
        jinja=args.jinja,
        chat_template_kwargs=_template_kwargs(args.chat_template_kwargs),
        enable_thinking={"on": True, "off": False, "auto": None}[args.reasoning],
        reasoning_format=args.reasoning_format,
        reasoning_budget=args.reasoning_budget,
        reasoning_budget_message=args.reasoning_budget_message,
        embeddings=args.embeddings,
        pooling=None if args.pooling is None else POOLING[args.pooling],
        context_shift=args.context_shift,
        spm_infill=args.spm_infill,
        prefill_assistant=args.prefill_assistant,
        media_http=args.media_http,
    )


def _template(args: argparse.Namespace) -> str:
    if args.chat_template_file is None:
        return str(args.chat_template)
    if args.chat_template:
        raise ValueError("--chat-template and --chat-template-file exclude each other")
    return str(args.chat_template_file.read_text(encoding="utf-8"))


def _template_kwargs(text: str) -> dict[str, Any]:
    try:
        kwargs = json.loads(text)
    except ValueError as e:
        raise ValueError(f"--chat-template-kwargs: {e}") from None
    if not isinstance(kwargs, dict):
        raise ValueError("--chat-template-kwargs: expected a JSON object")
    return kwargs
