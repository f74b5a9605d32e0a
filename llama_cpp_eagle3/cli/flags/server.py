"""llama-server's own flags."""

from __future__ import annotations

from pathlib import Path

from ...serve.absent import ADAPTERS, FILES, PROPERTIES, PROXY, RERANKING, ROUTER, SLEEP, TOOLS, VIDEO
from .chat import TEMPLATE
from .flag import NO_OTHER_DRAFTS, flag, one_of, only, refuse
from .model import MMPROJ

POOLING_TYPES = ("none", "mean", "cls", "last")

_PROJECTOR_DEVICE = "the projector runs where the target's layers do: on the CPU with -ngl 0"
_IMAGE_TOKENS = "the projector's file has the number of tokens of an image"
_NO_PRESETS = "name the files with -m and -md"

SERVER = (
    flag("--host", "HOST,...", "(default: 127.0.0.1)", default="127.0.0.1", env="LLAMA_ARG_HOST"),
    flag("--port", "PORT", "(default: 8080)", int, default=8080, env="LLAMA_ARG_PORT"),
    flag("-np --parallel", "N", "slots (default: 4 that share -c)", int, default=-1, env="LLAMA_ARG_N_PARALLEL"),
    flag("-kvu --kv-unified", no="-no-kvu --no-kv-unified", help="slots share -c", env="LLAMA_ARG_KV_UNIFIED"),
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
    flag(
        "-cram --cache-ram",
        "MiB",
        "for prompts (default: 8192, or a quarter of the free memory)",
        int,
        default=None,
        env="LLAMA_ARG_CACHE_RAM",
        differs="8192 or a quarter of the free memory, llama.cpp 8192; states count too",
    ),
    flag("--cache-disk", "DIR", "keep prompts there, for the next start too (default: no)", Path, is_ours=True),
    flag(
        "--cache-disk-size",
        "MiB",
        "of that folder (default: 8192, or a quarter of the free room)",
        int,
        default=None,
        is_ours=True,
    ),
    flag(
        "-ctxcp --ctx-checkpoints --swa-checkpoints",
        "N",
        "saved states of a text (default: 32)",
        int,
        default=32,
        env="LLAMA_ARG_CTX_CHECKPOINTS",
    ),
    flag(
        "-cms --checkpoint-min-step",
        "N",
        "tokens between two of them (default: 256)",
        int,
        default=256,
        env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
        differs="256, llama.cpp 8192",
    ),
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
    refuse(
        "--no-cont-batching -nocb",
        "requests always join a running batch",
        env="LLAMA_ARG_CONT_BATCHING",
        fine="-cb --cont-batching",
    ),
    refuse(
        "--no-cache-prompt", "set it in a request: cache_prompt", fine="--cache-prompt", env="LLAMA_ARG_CACHE_PROMPT"
    ),
    refuse("--no-escape", "requests carry texts as they are", fine="-e --escape"),
    refuse("--no-warmup", "costs are measured with it", fine="--warmup"),
    refuse(
        "--no-cache-idle-slots",
        "an idle slot's prefix stays cached until another request needs the slot; then it goes to --cache-ram",
        fine="--cache-idle-slots",
        env="LLAMA_ARG_CACHE_IDLE_SLOTS",
    ),
    refuse(
        "--no-reasoning-preserve",
        "the template decides",
        fine="--reasoning-preserve",
        env="LLAMA_ARG_REASONING_PRESERVE",
    ),
    refuse(
        "--skip-chat-parsing",
        "--reasoning-format none leaves all in the content",
        fine="--no-skip-chat-parsing",
        env="LLAMA_ARG_SKIP_CHAT_PARSING",
    ),
    flag(
        "--cache-reuse",
        "0",
        "0 alone: a context is never shifted",
        only("0", "a context is never shifted"),
        default="0",
        env="LLAMA_ARG_CACHE_REUSE",
    ),
    *(
        refuse(names, why, env=env, metavar=metavar, fine=fine)
        for names, env, metavar, fine, why in (
            ("--kv-unified-per-slot", "LLAMA_ARG_KV_UNIFIED_PER_SLOT", "N", "", "-c is shared, or split evenly"),
            ("-lcs --lookup-cache-static", "", "FNAME", "", NO_OTHER_DRAFTS),
            ("-lcd --lookup-cache-dynamic", "", "FNAME", "", NO_OTHER_DRAFTS),
            ("--spec-ngram-size-n", "", "N", "", NO_OTHER_DRAFTS),
            ("--spec-ngram-size-m", "", "N", "", NO_OTHER_DRAFTS),
            ("--spec-ngram-min-hits", "", "N", "", NO_OTHER_DRAFTS),
            ("--spec-synth-len", "LLAMA_ARG_SPEC_SYNTH_LEN", "L", "", "see `bench --synthetic-acceptance`"),
            ("--spec-synth-rates", "LLAMA_ARG_SPEC_SYNTH_RATES", "P", "", "see `bench --synthetic-acceptance`"),
            ("--spec-default", "", "", "", NO_OTHER_DRAFTS),
            ("-r --reverse-prompt", "", "TEXT", "", "set it in a request: stop"),
            ("-sp --special", "", "", "", "special tokens are never part of a text here"),
            ("--embd-normalize", "", "N", "", "set it in a request: embd_normalize"),
            ("--rerank --reranking", "LLAMA_ARG_RERANKING", "", "", RERANKING.why),
            (
                "-mmu --mmproj-url",
                "LLAMA_ARG_MMPROJ_URL",
                "URL",
                "",
                "nothing is fetched from an address: --mmproj names a file",
            ),
            (
                "--mmproj-auto",
                "LLAMA_ARG_MMPROJ_AUTO",
                "",
                "--no-mmproj --no-mmproj-auto",
                "no projector is looked for: --mmproj names a file",
            ),
            ("--mmproj-offload", "LLAMA_ARG_MMPROJ_OFFLOAD", "", "--no-mmproj-offload", _PROJECTOR_DEVICE),
            ("-mmdev --mmproj-device", "MTMD_BACKEND_DEVICE", "DEVICE", "", _PROJECTOR_DEVICE),
            ("--image-min-tokens", "LLAMA_ARG_IMAGE_MIN_TOKENS", "N", "", _IMAGE_TOKENS),
            ("--image-max-tokens", "LLAMA_ARG_IMAGE_MAX_TOKENS", "N", "", _IMAGE_TOKENS),
            ("--mtmd-batch-max-tokens", "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS", "N", "", "images are encoded one by one"),
            ("--video-fps", "LLAMA_ARG_VIDEO_FPS", "N", "", VIDEO.why),
            ("--video-timestamp-interval", "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL", "N", "", VIDEO.why),
            ("--video-ffmpeg-dir", "LLAMA_ARG_VIDEO_FFMPEG_DIR", "DIR", "", VIDEO.why),
            ("--media-path", "", "PATH", "", "messages hold their images, and name no files of this machine"),
            ("--reuse-port", "LLAMA_ARG_REUSE_PORT", "", "", "one server has one port, or the start fails"),
            ("--path", "LLAMA_ARG_STATIC_PATH", "PATH", "", FILES.why),
            ("--cors-methods", "LLAMA_ARG_CORS_METHODS", "METHODS", "", "--cors-origins alone opens the server"),
            ("--cors-headers", "LLAMA_ARG_CORS_HEADERS", "HEADERS", "", "--cors-origins alone opens the server"),
            ("--cors-credentials", "LLAMA_ARG_CORS_CREDENTIALS", "", "--no-cors-credentials", "there are no cookies"),
            ("--api-prefix", "LLAMA_ARG_API_PREFIX", "PREFIX", "", FILES.why),
            ("--ui-config --webui-config", "LLAMA_ARG_UI_CONFIG", "JSON", "", FILES.why),
            ("--ui-config-file --webui-config-file", "LLAMA_ARG_UI_CONFIG_FILE", "PATH", "", FILES.why),
            (
                "--ui-mcp-proxy --webui-mcp-proxy",
                "LLAMA_ARG_UI_MCP_PROXY",
                "",
                "--no-ui-mcp-proxy --no-webui-mcp-proxy",
                PROXY.why,
            ),
            ("--tools", "LLAMA_ARG_TOOLS", "TOOLS", "", TOOLS.why),
            ("--tools-runtime", "LLAMA_ARG_TOOLS_RUNTIME", "OPTION", "", TOOLS.why),
            ("--mcp-servers-config", "LLAMA_ARG_MCP_SERVERS_CONFIG", "PATH", "", TOOLS.why),
            ("--mcp-servers-json", "LLAMA_ARG_MCP_SERVERS_JSON", "JSON", "", TOOLS.why),
            ("-ag --agent", "LLAMA_ARG_AGENT", "", "-no-ag --no-agent", TOOLS.why),
            ("--threads-http", "LLAMA_ARG_THREADS_HTTP", "N", "", "one thread speaks HTTP"),
            ("--props", "LLAMA_ARG_ENDPOINT_PROPS", "", "", PROPERTIES.why),
            ("--models-dir", "LLAMA_ARG_MODELS_DIR", "PATH", "", ROUTER.why),
            ("--models-preset", "LLAMA_ARG_MODELS_PRESET", "PATH", "", ROUTER.why),
            ("--models-max", "LLAMA_ARG_MODELS_MAX", "N", "", ROUTER.why),
            ("--models-autoload", "LLAMA_ARG_MODELS_AUTOLOAD", "", "--no-models-autoload", ROUTER.why),
            ("--reasoning-effort", "LLAMA_ARG_REASONING_EFFORT", "LEVEL", "", "set it in a request: reasoning_effort"),
            ("-sps --slot-prompt-similarity", "", "X", "", "the longest prefix wins"),
            ("--lora-init-without-apply", "", "", "", ADAPTERS.why),
            ("--sleep-idle-seconds", "", "S", "", SLEEP.why),
            ("--log-prompts-dir", "", "PATH", "", "prompts are never logged"),
            *(
                (f"--{name}", "", "", "", _NO_PRESETS)
                for name in (
                    *("embd-gemma-default", "fim-qwen-1.5b-default", "fim-qwen-3b-default", "fim-qwen-7b-default"),
                    *("fim-qwen-7b-spec", "fim-qwen-14b-spec", "fim-qwen-30b-default", "gpt-oss-20b-default"),
                    *("gpt-oss-120b-default", "vision-gemma-4b-default", "vision-gemma-12b-default"),
                )
            ),
        )
    ),
)
