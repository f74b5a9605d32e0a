"""The command line: `llama-cpp-eagle3 COMMAND ...`, also `python -m llama_cpp_eagle3 COMMAND ...`.

Each command is a module with `add_arguments(parser)` and `run(args) -> int`. It is imported only when it is called.
Flags that llama.cpp has too are in `flags`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

from .._library import mismatches
from .._version import LLAMA_CPP_PYTHON_VERSION, __version__
from ..extras import heads
from ..log import printable, shortened, show_llama_cpp
from .parser import Parser
from .streams import broken_stdout, open_streams

COMMANDS = {
    "batch": ("llama_cpp_eagle3.cli.batch", "complete the requests of a file"),
    "bench": ("llama_cpp_eagle3.cli.bench", "compare ways of drafting on the same files"),
    "cache": ("llama_cpp_eagle3.cli.cache", "list what is kept in the cache folder, or remove it"),
    "chat": ("llama_cpp_eagle3.cli.chat", "talk to a model in the terminal"),
    "calibrate": ("llama_cpp_eagle3.cli.calibrate", "measure what passes cost on this machine"),
    "convert": ("llama_cpp_eagle3_heads.cli.convert", "turn a Hugging Face head into a GGUF"),
    "doctor": ("llama_cpp_eagle3.cli.doctor", "check this machine, and a pair: what is right, what is not, what to do"),
    "inspect": ("llama_cpp_eagle3_heads.cli.inspect", "describe a head"),
    "learn": (
        "llama_cpp_eagle3.cli.learn",
        "what --learn has kept and learned: see it, learn now, take it along, forget",
    ),
    "quantize": ("llama_cpp_eagle3_heads.cli.quantize", "rewrite a GGUF head in another type"),
    "serve": ("llama_cpp_eagle3.cli.serve", "an OpenAI-compatible server"),
    "train": ("llama_cpp_eagle3_heads.cli.train", "make a head for a GGUF, from the GGUF alone"),
    "speculative-simple": ("llama_cpp_eagle3.cli.speculative_simple", "generate from one prompt, with figures"),
}
"""Command -> (module, what it does)."""

_PROG = "llama-cpp-eagle3"
_HEADS = "llama_cpp_eagle3_heads"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 or 2 after a one-line error, 130 after Ctrl-C."""
    open_streams()
    try:
        try:
            with mismatches():
                code = _main(list(sys.argv[1:] if argv is None else argv))
        except SystemExit:  # the help was shown
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, ValueError, OSError, MemoryError) as e:
        broken = broken_stdout(e)
        if isinstance(broken, BrokenPipeError):  # the reader of our output has left
            return 0
        why = _reason(e) if broken is None else f"standard output: {broken.strerror}"
        with suppress(OSError):  # standard error is full, or its reader has left
            print(f"{_PROG}: error: {why}", file=sys.stderr)
        return 2


def _reason(e: Exception) -> str:
    """An error in a line, in which a file's name cannot move the cursor of a terminal."""
    return printable(shortened(_message(e)), keep="\n\t")


def _message(e: Exception) -> str:
    if isinstance(e, MemoryError):
        return str(e) or "out of memory"
    if isinstance(e, OSError) and e.strerror:
        return e.strerror if e.filename is None else f"'{e.filename}': {e.strerror}"
    if isinstance(e, UnicodeEncodeError) and e.encoding == "utf-8":  # Python keeps an argument's bytes as surrogates
        return f"expected text in UTF-8, found {e.object[:60]!a}"
    return str(e)


def _main(argv: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:
        _complete(os.environ.get("COMP_LINE", "").split()[1:2])
    if argv and argv[0] in COMMANDS:
        return _run(argv[0], argv[1:])
    if argv and not argv[0].startswith("-"):
        close = difflib.get_close_matches(argv[0], COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        _parser().error(f"unknown command {argv[0]!r}, {hint}")
    _parser().parse_args(argv)  # shows help, the version, or an error
    return 2


class _Unfinished(Parser):
    """A parser for a line that is being typed: a flag may still lack its value, or its end."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does."""
        return argparse.ArgumentParser.parse_known_args(self, args, namespace)


def _parser(with_flags_of: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The program's parser. with_flags_of: the only command that has its flags."""
    parser = _Unfinished(_PROG, description="EAGLE-3 speculative decoding for GGUF models.")
    version = f"{_PROG} {__version__} for llama-cpp-python {LLAMA_CPP_PYTHON_VERSION}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Unfinished)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, add_help=False)
        if name in with_flags_of and not (module.startswith(_HEADS) and importlib.util.find_spec(_HEADS) is None):
            importlib.import_module(module).add_arguments(command)
    return parser


def _complete(typed: Sequence[str]) -> None:
    """Tell a shell how a line may go on, by argcomplete (docs/api.md, Command line), and end the process."""
    try:
        from argcomplete import autocomplete
    except ModuleNotFoundError:
        return
    autocomplete(_parser(typed))


def _run(command: str, argv: Sequence[str]) -> int:
    module_name, help_text = COMMANDS[command]
    with heads(f"`{command}`") if module_name.startswith(_HEADS) else nullcontext():
        module = importlib.import_module(module_name)
        parser = Parser(f"{_PROG} {command}", description=(module.__doc__ or help_text).strip())
        module.add_arguments(parser)
        parser.shorten_usage()
        args = parser.parse_args(argv)
        show_llama_cpp(getattr(args, "verbose", False))
        if getattr(args, "list_devices", False):
            from .load_model import list_devices

            return list_devices()
        return int(module.run(args))
