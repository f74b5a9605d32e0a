"""llama-server's own flags."""

from __future__ import annotations

from pathlib import Path

from ...config.eagle3 import MMPROJ, OPTIONS
from ...config.eagle3 import SERVER as SERVER_TITLE
from ...config.flag import flag, one_of, only
from ...config.option import flags_of
from ...serve.absent import RERANKING
from .chat import TEMPLATE

POOLING_TYPES = ("none", "mean", "cls", "last")

SERVER = (
    flag("--host", "HOST,...", "(default: 127.0.0.1)", default="127.0.0.1", env="LLAMA_ARG_HOST"),
    flag("--port", "PORT", "(default: 8080)", int, default=8080, env="LLAMA_ARG_PORT"),
    *flags_of(OPTIONS, SERVER_TITLE),
    flag("-a --alias", "NAMES", "names of the model, separated by commas", env="LLAMA_ARG_ALIAS"),
    flag("--tags", "TAGS", "of the model, separated by commas", default="", env="LLAMA_ARG_TAGS"),
    flag("--slots", no="--no-slots", help="GET /slots (default: on)", default=True, env="LLAMA_ARG_ENDPOINT_SLOTS"),
    flag("--metrics", help="GET /metrics", env="LLAMA_ARG_ENDPOINT_METRICS"),
    flag("--ui --webui", no="--no-ui --no-webui", help="a page at / (default: on)", default=True, env="LLAMA_ARG_UI"),
    flag("--slot-save-path", "DIR", "where slots may be saved", Path),
    flag(
        "--context-shift",
        no="--no-context-shift",
        help="cut tokens out of a full context (default: off)",
        default=False,
        env="LLAMA_ARG_CONTEXT_SHIFT",
    ),
    flag(
        "--embedding --embeddings",
        help="/v1/embeddings, in another context",
        dest="embeddings",
        env="LLAMA_ARG_EMBEDDINGS",
    ),
    flag(
        "--pooling",
        "{none,mean,cls,last,rank}",
        "of embeddings (default: the model's)",
        one_of(POOLING_TYPES),
        lacks=f"rank: {RERANKING.why}",
        env="LLAMA_ARG_POOLING",
    ),
    flag("--spm-infill", help="suffix before prefix, as some models have it"),
    flag("--api-key", "KEYS", "separated by commas", default="", env="LLAMA_API_KEY"),
    flag("--api-key-file", "FNAME", "a key in each line", Path, env="LLAMA_ARG_API_KEY_FILE"),
    flag(
        "--cors-origins",
        "ORIGINS",
        "*, localhost, or a list (default: none)",
        default="",
        env="LLAMA_ARG_CORS_ORIGINS",
        differs="none, llama.cpp *: pages of other sites may not read answers",
    ),
    flag("--ssl-key-file", "FNAME", "TLS", Path, env="LLAMA_ARG_SSL_KEY_FILE"),
    flag("--ssl-cert-file", "FNAME", "TLS", Path, env="LLAMA_ARG_SSL_CERT_FILE"),
    flag(
        "-to --timeout",
        "S",
        "for slow clients (default: 600)",
        float,
        default=600.0,
        env="LLAMA_ARG_TIMEOUT",
        differs="600, llama.cpp 3600",
    ),
    flag("--sse-ping-interval", "S", "(default: 30)", int, default=30, env="LLAMA_ARG_SSE_PING_INTERVAL"),
    flag("--max-queued-requests", "N", "then 429 (default: 128)", int, default=128, is_ours=True),
    flag("--max-body-size", "MiB", "(default: 64)", int, default=64, is_ours=True),
    flag("--limit-concurrency", "N", "connections, then 503 (default: 512)", int, default=512, is_ours=True),
    flag(
        "--record",
        "FNAME",
        "append prompts and answers, for `train -f` (default: nothing is recorded)",
        Path,
        is_ours=True,
    ),
    flag(
        "--record-max-size", "MiB", "of that file, then recording ends (default: 256)", int, default=256, is_ours=True
    ),
    flag(
        "--log-format", "FORMAT", "text or json (default: text)", one_of(("text", "json")), default="text", is_ours=True
    ),
    flag(
        "-n --predict --n-predict",
        "N",
        "tokens by default (default: -1, no limit)",
        int,
        default=-1,
        env="LLAMA_ARG_N_PREDICT",
    ),
    MMPROJ,
    flag("--media-http", help="fetch images from public http addresses in messages", is_ours=True),
    flag("--media-http-private", help="and from those of this machine and private networks", is_ours=True),
    *TEMPLATE,
    flag("--jinja", no="--no-jinja", help="(default: on)", default=True, env="LLAMA_ARG_JINJA"),
    flag(
        "--prefill-assistant",
        no="--no-prefill-assistant",
        help="go on with a last message of the assistant (default: on)",
        default=True,
        env="LLAMA_ARG_PREFILL_ASSISTANT",
    ),
    flag(
        "--cache-reuse",
        "0",
        "0 alone: a context is never shifted",
        only("0", "a context is never shifted"),
        default="0",
        env="LLAMA_ARG_CACHE_REUSE",
    ),
)
