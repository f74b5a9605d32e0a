"""Flags of one prompt, or of a conversation, and of the output."""

from __future__ import annotations

from pathlib import Path

from ...config.eagle3_options import MMPROJ
from ...config.flag import flag, on_off_auto, only, typed

COLOR = flag(
    "-co --color on|off|auto",
    "colour the accepted draft tokens (default: auto, on a terminal, unless NO_COLOR is set or TERM=dumb)",
    on_off_auto,
    default="auto",
    bare="on",
)

PROMPT = (
    flag("-p --prompt TEXT", "(default without -m: some Python)", typed),
    flag("-f --file FNAME", "read the prompt from a file, - is stdin"),
    MMPROJ,
    flag(
        "--image --audio FILE",
        "an image or a sound, inserted at <__media__> in the prompt, or before it; may be repeated",
        dest="media",
        repeats=True,
        is_ours=True,
    ),
    flag("-bf --binary-file FNAME", "the same, with the newline at its end"),
    flag("-e --escape | --no-escape", "process \\n, \\t, \\\\ in -p (default: on)", default=True),
    flag(
        "-n --predict --n-predict N LLAMA_ARG_N_PREDICT",
        "tokens (default: 128, -1 = to the end)",
        int,
        default=128,
        differs="128, llama.cpp to the end of the context",
    ),
    flag(
        "-np --parallel 1 LLAMA_ARG_N_PARALLEL",
        "only 1: for several prompts use `batch` or `serve`",
        only("1", "there is one prompt; use `batch` or `serve` for several"),
        default="1",
    ),
    COLOR,
    flag("--json FNAME", "write the figures to a file too, - is stdout instead of text", is_ours=True),
    flag("--baseline", "run without drafts too, and print the ratio", is_ours=True),
)

CONVERSATION = (
    flag("-sys --system-prompt TEXT", "the system's message (default: none)", typed, default=""),
    flag("-sysf --system-prompt-file FNAME", "the same from a file", Path),
    flag("-p --prompt TEXT", "the first message", typed),
    flag("-f --file FNAME", "the same from a file"),
    flag("-st --single-turn", "end after the first answer"),
    flag("-mli --multiline-input", "messages of several lines, until one that ends with \\"),
    flag(
        "-n --predict --n-predict N LLAMA_ARG_N_PREDICT",
        "tokens of an answer (default: -1, to its end)",
        int,
        default=-1,
    ),
    flag("-r --reverse-prompt TEXT", "stop string; may be repeated", repeats=True),
    flag(
        "-cnv --conversation | -no-cnv --no-conversation", "on alone: speculative-simple completes texts", default=True
    ),
    COLOR,
    flag("--simple-io", "no line editing"),
)
