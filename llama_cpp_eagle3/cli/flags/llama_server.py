"""llama-server's own flags."""

from __future__ import annotations

from pathlib import Path

from ...config.eagle3_options import MMPROJ, OPTIONS
from ...config.eagle3_options import SERVER as SERVER_TITLE
from ...config.flag import flag, one_of, only, port_number
from ...config.option import flags_of
from ...serve.absent import RERANKING
from .template import TEMPLATE

POOLING_TYPES = ("none", "mean", "cls", "last")

SERVER = (
    flag("--host HOST,... LLAMA_ARG_HOST", "or FILE.sock, a UNIX socket (default: 127.0.0.1)", default="127.0.0.1"),
    flag("--port PORT LLAMA_ARG_PORT", "(default: 8080)", port_number, default=8080),
    *flags_of(OPTIONS, SERVER_TITLE),
    flag("-a --alias NAMES LLAMA_ARG_ALIAS", "names of the model, separated by commas"),
    flag("--tags TAGS LLAMA_ARG_TAGS", "of the model, separated by commas", default=""),
    flag("--slots LLAMA_ARG_ENDPOINT_SLOTS | --no-slots", "GET /slots (default: on)", default=True),
    flag("--metrics LLAMA_ARG_ENDPOINT_METRICS", "GET /metrics"),
    flag("--ui --webui LLAMA_ARG_UI | --no-ui --no-webui", "a page at / (default: on)", default=True),
    flag("--slot-save-path DIR", "where slots may be saved", Path),
    flag(
        "--context-shift LLAMA_ARG_CONTEXT_SHIFT | --no-context-shift",
        "cut tokens out of a full context (default: off)",
        default=False,
    ),
    flag("--embedding --embeddings LLAMA_ARG_EMBEDDINGS", "/v1/embeddings, in another context", dest="embeddings"),
    flag(
        "--pooling {none,mean,cls,last,rank} LLAMA_ARG_POOLING",
        "of embeddings (default: the model's)",
        one_of(POOLING_TYPES),
        lacks=f"rank: {RERANKING.why}",
    ),
    flag("--spm-infill", "suffix before prefix, as some models have it"),
    flag("--api-key KEYS LLAMA_API_KEY", "separated by commas"),
    flag("--api-key-file FNAME LLAMA_ARG_API_KEY_FILE", "a key in each line; lines with # are comments", Path),
    flag(
        "--cors-origins ORIGINS LLAMA_ARG_CORS_ORIGINS",
        "*, localhost, or a list (default: none)",
        default="",
        differs="none, llama.cpp *: pages of other sites may not read answers",
    ),
    flag("--ssl-key-file FNAME LLAMA_ARG_SSL_KEY_FILE", "TLS", Path),
    flag("--ssl-cert-file FNAME LLAMA_ARG_SSL_CERT_FILE", "TLS", Path),
    flag(
        "-to --timeout S LLAMA_ARG_TIMEOUT",
        "for slow clients (default: 600)",
        float,
        default=600.0,
        differs="600, llama.cpp 3600",
    ),
    flag("--sse-ping-interval S LLAMA_ARG_SSE_PING_INTERVAL", "(default: 30)", int, default=30),
    flag("--max-queued-requests N", "then 429 (default: 128)", int, default=128, is_ours=True),
    flag("--max-body-size MiB", "(default: 64)", int, default=64, is_ours=True),
    flag("--limit-concurrency N", "connections, then 503 (default: 512)", int, default=512, is_ours=True),
    flag(
        "--record FNAME",
        "append prompts and answers, for `train -f` (default: nothing is recorded)",
        Path,
        is_ours=True,
    ),
    flag("--record-max-size MiB", "of that file, then recording ends (default: 256)", int, default=256, is_ours=True),
    flag(
        "--learn-share SHARE",
        "of each day in which --learn may learn, while nobody waits (default: 0.25; 0: never)",
        float,
        default=0.25,
        is_ours=True,
    ),
    flag("--log-format FORMAT", "text or json (default: text)", one_of(("text", "json")), default="text", is_ours=True),
    flag(
        "-n --predict --n-predict N LLAMA_ARG_N_PREDICT", "tokens by default (default: -1, no limit)", int, default=-1
    ),
    MMPROJ,
    flag("--media-http", "fetch images from public http addresses in messages", is_ours=True),
    flag("--media-http-private", "and from those of this machine and private networks", is_ours=True),
    *TEMPLATE,
    flag("--jinja LLAMA_ARG_JINJA | --no-jinja", "(default: on)", default=True),
    flag(
        "--prefill-assistant LLAMA_ARG_PREFILL_ASSISTANT | --no-prefill-assistant",
        "go on with a last message of the assistant (default: on)",
        default=True,
    ),
    flag(
        "--cache-reuse 0 LLAMA_ARG_CACHE_REUSE",
        "0 alone: a context is never shifted",
        only("0", "a context is never shifted"),
        default="0",
    ),
)
