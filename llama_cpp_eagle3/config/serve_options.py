"""Options of the server, as its flags set them."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

AllowHttp = bool | Literal["private"]
"""Whether http addresses are fetched: no, public ones, or those of this machine and of private networks too."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the server, as its flags set them."""

    model_name: str
    aliases: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    defaults: dict[str, Any] = field(default_factory=dict)
    """Defaults of a request's fields."""
    api_keys: tuple[str, ...] = ()
    cors_origins: str = ""
    """Empty: none; "localhost", "*", or origins separated by commas."""
    local_only: bool = False
    """Whether requests must name this machine as their host. Only its own programs reach a loopback address, but so do
    pages of other sites whose names were made to resolve to it."""
    slots: bool = True
    metrics: bool = False
    ui: bool = True
    slot_save_path: Path | None = None
    n_queue_max: int = 128
    """Sequences that may wait beside those that run."""
    n_body_max: int = 64 << 20
    timeout_seconds: float = 600.0
    """How long a client may take to send a body, or to read a part of an answer."""
    ping_seconds: float = 30.0
    prepare_seconds: float = 60.0
    """Time limit for preparing a request: templates, tokens, grammars, images."""
    chat_template: str = ""
    """The template in place of the model's own: Jinja, or the name of one of llama.cpp's."""
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
    """llama.cpp's number; None: the model's."""
    spm_infill: bool = False
    prefill_assistant: bool = True
    record: Path | None = None
    """File to which prompts and answers are written; None: none."""
    n_record_max: int = 256 << 20
    """Bytes of that file."""
    learn_share: float = 0.25
    """The share of each day in which a head may learn, if the model keeps texts."""
    learn_idle_seconds: float = 60.0
    """Seconds without a request, after which it does."""
    media_http: AllowHttp = False
    """Whether images are fetched from addresses that requests name."""


def is_unix_socket(host: str) -> bool:
    """Whether a host of --host is the file of a UNIX socket."""
    return host.endswith(".sock")


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, without a name server."""
    host = host.lower().removesuffix(".")
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
