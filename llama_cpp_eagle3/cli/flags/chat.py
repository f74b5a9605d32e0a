"""Flags of chat templates and parsing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ...config.flag import flag, on_off_auto, one_of
from .prompt import COLOR

REASONING_FORMATS = ("auto", "none", "deepseek", "deepseek-legacy")


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"no JSON: {e}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return found


TEMPLATE = (
    flag(
        "--chat-template",
        "JINJA",
        "instead of the model's own, or the name of one of llama.cpp's",
        default="",
        env="LLAMA_ARG_CHAT_TEMPLATE",
    ),
    flag("--chat-template-file", "FNAME", "the same from a file", Path, env="LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    flag(
        "--chat-template-kwargs",
        "JSON",
        "variables of the template",
        _object,
        default=None,
        env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
    ),
    flag(
        "-rea --reasoning",
        "on|off|auto",
        "let the model think (default: auto)",
        on_off_auto,
        default="auto",
        dest="reasoning",
        env="LLAMA_ARG_REASONING",
    ),
    flag(
        "--reasoning-format",
        "FORMAT",
        f"{', '.join(REASONING_FORMATS)} (default: auto)",
        one_of(REASONING_FORMATS),
        default="auto",
        env="LLAMA_ARG_THINK",
    ),
    flag("--reasoning-budget", "N", "tokens (default: -1, no limit)", int, default=-1, env="LLAMA_ARG_THINK_BUDGET"),
    flag(
        "--reasoning-budget-message",
        "TEXT",
        "written when the budget is spent",
        default="",
        env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
    ),
)

CONVERSATION = (
    flag("-sys --system-prompt", "TEXT", "the system's message (default: none)", default=""),
    flag("-sysf --system-prompt-file", "FNAME", "the same from a file", Path),
    flag("-p --prompt", "TEXT", "the first message"),
    flag("-f --file", "FNAME", "the same from a file"),
    flag("-st --single-turn", help="end after the first answer"),
    flag("-mli --multiline-input", help="messages of several lines, until one that ends with \\"),
    flag(
        "-n --predict --n-predict",
        "N",
        "tokens of an answer (default: -1, to its end)",
        int,
        default=-1,
        env="LLAMA_ARG_N_PREDICT",
        dest="predict",
    ),
    flag("-r --reverse-prompt", "TEXT", "stop string; may be repeated", repeats=True),
    flag(
        "-cnv --conversation",
        no="-no-cnv --no-conversation",
        help="on alone: speculative-simple completes texts",
        default=True,
    ),
    COLOR,
    flag("--simple-io", help="no line editing"),
)
