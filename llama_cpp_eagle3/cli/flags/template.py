"""Flags of chat templates and parsing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ...config.flag import flag, json_of, on_off_auto, one_of
from ...files.text_file import read_text

REASONING_FORMATS = ("auto", "none", "deepseek", "deepseek-legacy")


def _object(text: str) -> dict[str, Any]:
    found = json_of(text)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return found


TEMPLATE = (
    flag(
        "--chat-template JINJA LLAMA_ARG_CHAT_TEMPLATE",
        "instead of the model's own, or the name of one of llama.cpp's",
        default="",
    ),
    flag("--chat-template-file FNAME LLAMA_ARG_CHAT_TEMPLATE_FILE", "the same from a file", Path),
    flag("--chat-template-kwargs JSON LLAMA_ARG_CHAT_TEMPLATE_KWARGS", "variables of the template", _object),
    flag(
        "-rea --reasoning on|off|auto LLAMA_ARG_REASONING",
        "let the model think (default: auto)",
        on_off_auto,
        default="auto",
    ),
    flag(
        "--reasoning-format FORMAT LLAMA_ARG_THINK",
        f"{', '.join(REASONING_FORMATS)} (default: auto)",
        one_of(REASONING_FORMATS),
        default="auto",
    ),
    flag("--reasoning-budget N LLAMA_ARG_THINK_BUDGET", "tokens (default: -1, no limit)", int, default=-1),
    flag(
        "--reasoning-budget-message TEXT LLAMA_ARG_THINK_BUDGET_MESSAGE", "written when the budget is spent", default=""
    ),
)


def template_of(args: argparse.Namespace) -> str:
    """The template that the flags name; empty: the model's own.

    Raises:
        ValueError, OSError: there are two, or the file cannot be read.
    """
    if args.chat_template_file is None:
        return str(args.chat_template)
    if args.chat_template:
        raise ValueError("--chat-template and --chat-template-file exclude each other")
    text = read_text(args.chat_template_file.expanduser())
    if not text.strip():
        raise ValueError(f"--chat-template-file: expected a template in '{args.chat_template_file}', found no text")
    return text
