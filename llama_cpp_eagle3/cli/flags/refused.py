"""Flags of llama.cpp that the commands here do not have, by the reason that errors give."""

from __future__ import annotations

from collections.abc import Mapping

from ...config.flag import NO_FIT, NO_OTHER_DRAFTS, TEXT_LOG, Flag, flag
from ...serve.absent import ADAPTERS, FILES, PROPERTIES, PROXY, RERANKING, ROUTER, SLEEP, TOOLS, VIDEO


def _refuse(by_reason: Mapping[str, str]) -> tuple[Flag, ...]:
    """Refused flags by their reasons, as `flag` reads them, separated by commas. After a bar are names that are
    accepted, as they name the behaviour that the commands have."""
    return tuple(flag(text, why_not=why) for why, flags in by_reason.items() for text in flags.split(","))


REFUSED = _refuse(
    {
        "download the file, and give its path with -m": """
            -mu --model-url URL LLAMA_ARG_MODEL_URL, -dr --docker-repo REPO LLAMA_ARG_DOCKER_REPO""",
        "llama_cpp has no reader for control vectors": """
            --control-vector FNAME, --control-vector-scaled FNAME:SCALE, --control-vector-layer-range START""",
        "llama_cpp gives no access to ggml's thread pools: use taskset and nice for the process": """
            -C --cpu-mask M, -Cr --cpu-range LO-HI, --cpu-strict N, --prio N, --poll N,
            -Cb --cpu-mask-batch M, -Crb --cpu-range-batch LO-HI, --cpu-strict-batch N, --prio-batch N, --poll-batch N,
            -Cd --cpu-mask-draft --spec-draft-cpu-mask M, -Crd --cpu-range-draft --spec-draft-cpu-range LO-HI,
            --cpu-strict-draft --spec-draft-cpu-strict N, --prio-draft --spec-draft-prio N,
            --poll-draft --spec-draft-poll N, -Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch M,
            -Crbd --cpu-range-batch-draft --spec-draft-cpu-range-batch LO-HI,
            --cpu-strict-batch-draft --spec-draft-cpu-strict-batch N,
            --prio-batch-draft --spec-draft-prio-batch N, --poll-batch-draft --spec-draft-poll-batch N""",
        "a head has one number: -td": "-tbd --threads-batch-draft --spec-draft-threads-batch N",
        "an EAGLE-3 head has no experts; -devd and -ngld choose its device": """
            -otd --override-tensor-draft --spec-draft-override-tensor PATTERN=BUFFER,
            -cmoed --cpu-moe-draft --spec-draft-cpu-moe LLAMA_ARG_SPEC_DRAFT_CPU_MOE,
            -ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe N LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE""",
        "llama.cpp itself ignores it": "-dt --defrag-thold N LLAMA_ARG_DEFRAG_THOLD",
        NO_FIT: "-fitt --fit-target MiB LLAMA_ARG_FIT_TARGET, -fitc --fit-ctx N LLAMA_ARG_FIT_CTX",
        "figures are printed at the end": "--perf LLAMA_ARG_PERF | --no-perf",
        "--tree-depth, --tree-topk and --tree-tokens draft trees here": """
            --draft-p-split --spec-draft-p-split P LLAMA_ARG_SPEC_DRAFT_P_SPLIT""",
        "a head chooses on its own device": """
            --no-spec-draft-backend-sampling LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING | --spec-draft-backend-sampling""",
        "greedy sampling runs on the target's device by default, other samplers on the CPU": """
            -bs --backend-sampling LLAMA_ARG_BACKEND_SAMPLING""",
        NO_OTHER_DRAFTS: """
            --spec-ngram-mod-n-min N, --spec-ngram-mod-n-max N, --spec-ngram-mod-n-match N,
            --spec-ngram-simple-size-n N, --spec-ngram-simple-size-m N, --spec-ngram-simple-min-hits N,
            --spec-ngram-map-k-size-n N, --spec-ngram-map-k-size-m N, --spec-ngram-map-k-min-hits N,
            --spec-ngram-map-k4v-size-n N, --spec-ngram-map-k4v-size-m N, --spec-ngram-map-k4v-min-hits N""",
        "it is called --spec-draft-n-max now": "--draft --draft-n --draft-max N LLAMA_ARG_DRAFT_MAX",
        "it is called --spec-draft-n-min now": "--draft-min --draft-n-min N LLAMA_ARG_DRAFT_MIN",
        "errors must be visible: redirect stderr with 2>": "--log-disable",
        TEXT_LOG: """
            --log-jsonl LLAMA_ARG_LOG_JSONL | --no-log-jsonl, --log-prefix LLAMA_ARG_LOG_PREFIX | --no-log-prefix,
            --log-timestamps LLAMA_ARG_LOG_TIMESTAMPS | --no-log-timestamps""",
        "-v shows all; without it warnings and errors are shown": """
            -lv --verbosity --log-verbosity N LLAMA_ARG_LOG_VERBOSITY""",
        "models are files here": "-cl --cache-list",
        "`register-python-argcomplete llama-cpp-eagle3` prints the script": "--completion-bash",
    }
)
"""Every command that loads a model refuses these."""

REFUSED_BY_SERVER = _refuse(
    {
        "requests always join a running batch": """
            --no-cont-batching -nocb LLAMA_ARG_CONT_BATCHING | -cb --cont-batching""",
        "set it in a request: cache_prompt": "--no-cache-prompt LLAMA_ARG_CACHE_PROMPT | --cache-prompt",
        "requests carry texts as they are": "--no-escape | -e --escape",
        "costs are measured with it": "--no-warmup | --warmup",
        "an idle slot's prefix stays cached until another request needs the slot; then it goes to --cache-ram": """
            --no-cache-idle-slots LLAMA_ARG_CACHE_IDLE_SLOTS | --cache-idle-slots""",
        "the template decides": "--no-reasoning-preserve LLAMA_ARG_REASONING_PRESERVE | --reasoning-preserve",
        "--reasoning-format none leaves all in the content": """
            --skip-chat-parsing LLAMA_ARG_SKIP_CHAT_PARSING | --no-skip-chat-parsing""",
        "-c is shared, or split evenly": "--kv-unified-per-slot N LLAMA_ARG_KV_UNIFIED_PER_SLOT",
        NO_OTHER_DRAFTS: """
            -lcs --lookup-cache-static FNAME, -lcd --lookup-cache-dynamic FNAME, --spec-ngram-size-n N,
            --spec-ngram-size-m N, --spec-ngram-min-hits N, --spec-default""",
        "see `bench --synthetic-acceptance`": """
            --spec-synth-len L LLAMA_ARG_SPEC_SYNTH_LEN, --spec-synth-rates P LLAMA_ARG_SPEC_SYNTH_RATES""",
        "set it in a request: stop": "-r --reverse-prompt TEXT",
        "special tokens are never part of a text here": "-sp --special",
        "set it in a request: embd_normalize": "--embd-normalize N",
        RERANKING.why: "--rerank --reranking LLAMA_ARG_RERANKING",
        "--mmproj names a file: none is looked for, or fetched from an address": """
            -mmu --mmproj-url URL LLAMA_ARG_MMPROJ_URL,
            --mmproj-auto LLAMA_ARG_MMPROJ_AUTO | --no-mmproj --no-mmproj-auto""",
        "the projector runs where the target's layers do: on the CPU with -ngl 0": """
            --mmproj-offload LLAMA_ARG_MMPROJ_OFFLOAD | --no-mmproj-offload,
            -mmdev --mmproj-device DEVICE MTMD_BACKEND_DEVICE""",
        "the projector's file has the number of tokens of an image": """
            --image-min-tokens N LLAMA_ARG_IMAGE_MIN_TOKENS, --image-max-tokens N LLAMA_ARG_IMAGE_MAX_TOKENS""",
        "images are encoded one by one": "--mtmd-batch-max-tokens N LLAMA_ARG_MTMD_BATCH_MAX_TOKENS",
        VIDEO.why: """
            --video-fps N LLAMA_ARG_VIDEO_FPS, --video-timestamp-interval N LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL,
            --video-ffmpeg-dir DIR LLAMA_ARG_VIDEO_FFMPEG_DIR""",
        "messages hold their images, and name no files of this machine": "--media-path PATH",
        "one server has one port, or the start fails": "--reuse-port LLAMA_ARG_REUSE_PORT",
        FILES.why: """
            --path PATH LLAMA_ARG_STATIC_PATH, --api-prefix PREFIX LLAMA_ARG_API_PREFIX,
            --ui-config --webui-config JSON LLAMA_ARG_UI_CONFIG,
            --ui-config-file --webui-config-file PATH LLAMA_ARG_UI_CONFIG_FILE""",
        "--cors-origins alone opens the server": """
            --cors-methods METHODS LLAMA_ARG_CORS_METHODS, --cors-headers HEADERS LLAMA_ARG_CORS_HEADERS""",
        "there are no cookies": "--cors-credentials LLAMA_ARG_CORS_CREDENTIALS | --no-cors-credentials",
        PROXY.why: """
            --ui-mcp-proxy --webui-mcp-proxy LLAMA_ARG_UI_MCP_PROXY | --no-ui-mcp-proxy --no-webui-mcp-proxy""",
        TOOLS.why: """
            --tools TOOLS LLAMA_ARG_TOOLS, --tools-runtime OPTION LLAMA_ARG_TOOLS_RUNTIME,
            --mcp-servers-config PATH LLAMA_ARG_MCP_SERVERS_CONFIG, --mcp-servers-json JSON LLAMA_ARG_MCP_SERVERS_JSON,
            -ag --agent LLAMA_ARG_AGENT | -no-ag --no-agent""",
        "one thread speaks HTTP": "--threads-http N LLAMA_ARG_THREADS_HTTP",
        PROPERTIES.why: "--props LLAMA_ARG_ENDPOINT_PROPS",
        ROUTER.why: """
            --models-dir PATH LLAMA_ARG_MODELS_DIR, --models-preset PATH LLAMA_ARG_MODELS_PRESET,
            --models-max N LLAMA_ARG_MODELS_MAX,
            --models-autoload LLAMA_ARG_MODELS_AUTOLOAD | --no-models-autoload""",
        "set it in a request: reasoning_effort": "--reasoning-effort LEVEL LLAMA_ARG_REASONING_EFFORT",
        "the longest prefix wins": "-sps --slot-prompt-similarity X",
        ADAPTERS.why: "--lora-init-without-apply",
        SLEEP.why: "--sleep-idle-seconds S",
        "prompts are never logged": "--log-prompts-dir PATH",
        "name the files with -m and -md": """
            --embd-gemma-default, --fim-qwen-1.5b-default, --fim-qwen-3b-default, --fim-qwen-7b-default,
            --fim-qwen-7b-spec, --fim-qwen-14b-spec, --fim-qwen-30b-default, --gpt-oss-20b-default,
            --gpt-oss-120b-default, --vision-gemma-4b-default, --vision-gemma-12b-default""",
    }
)
"""`serve` and `batch` refuse these besides."""

REFUSED_BY_CHAT = _refuse(
    {"what is typed here is text: serve and speculative-simple take images": "-mm --mmproj FILE LLAMA_ARG_MMPROJ"}
)
"""`chat` refuses these besides."""
