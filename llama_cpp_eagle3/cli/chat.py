"""Talk to a model in the terminal, as with `llama-cli -cnv`. Accepted drafted tokens are coloured.

A model without a chat template goes on with the text that it is given. A line that ends with \\ goes on with the next
one. Ctrl-C stops an answer, Ctrl-D ends. /help shows the commands.
Without -m it is SmolLM2-135M-Instruct, which is fetched once.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from ..chat import ChatTemplates
from ..chat.builtin_templates import named_templates
from ..errors import Eagle3Error
from ..files.text_file import read_text
from ..llama import Eagle3Llama
from .chat_session import ChatSession, Piece
from .flags import CONVERSATION, LOAD, LOG, REFUSED, REFUSED_BY_CHAT, SAMPLING, TEMPLATE
from .flags.template import template_of
from .line_editor import LineEditor
from .load_model import calibrate, load_model, resolve_pair
from .parser import Parser
from .sampling_flags import sampling_for
from .sources import heads_of
from .writer import is_coloured

_CYAN, _GREY, _PLAIN = "\x1b[36m", "\x1b[90m", "\x1b[0m"
_HELP = """\
/regen   another answer instead of the last one
/clear   begin anew
/stats   figures of the last answer
/help    these lines
/exit    end, as /quit and Ctrl-D do
A line that ends with \\ goes on with the next one, and lines that are pasted are one message.
With the flag -mli all lines go on, until one ends with \\.
Ctrl-C stops an answer, whose text stays in the conversation; two at the prompt end the program."""
_EDITING = """
The arrows up and down bring earlier messages, also of earlier runs, and Ctrl-R searches in them. They are in
'{path}', which the flag --simple-io leaves alone."""

_TEXT = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""Template for a model that has none: the text so far."""

FLAGS = {
    "conversation": CONVERSATION,
    "template": TEMPLATE,
    **LOAD,
    "sampling": SAMPLING,
    "log": LOG,
    "refused": (*REFUSED, *REFUSED_BY_CHAT),
}
"""Title -> flags."""


def add_arguments(parser: Parser) -> None:
    """Add this command's flags."""
    parser.add_flags(FLAGS)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if not args.conversation:
        raise ValueError("a chat is a conversation: `speculative-simple` continues a text")
    first = _first(args)
    if args.single_turn and first is None:
        raise ValueError("--single-turn needs a message: -p TEXT or -f FNAME")
    resolve_pair(args)
    with load_model(args, heads_of(args)) as llm:
        calibrate(llm)
        return _Chat(args, llm).run(first)


def _first(args: argparse.Namespace) -> str | None:
    if args.prompt is not None and args.file is not None:
        raise ValueError("-p and -f exclude each other")
    if args.file is not None:
        return read_text(Path(args.file).expanduser()).removesuffix("\n")
    return None if args.prompt is None else str(args.prompt)


class _Chat:
    """The chat's loop in a terminal."""

    def __init__(self, args: argparse.Namespace, llm: Eagle3Llama):
        self._llm, self._is_multiline = llm, args.multiline_input
        self._is_terminal = sys.stdin.isatty()
        self._color = is_coloured(sys.stdout, args.color)
        self._editor: LineEditor | None = None
        if self._is_terminal and not args.simple_io:
            with contextlib.suppress(ImportError):  # Windows
                self._editor = LineEditor(lambda text: print(text, file=sys.stderr))
        templates = named_templates(llm.model_address, template_of(args))
        self._is_chat = templates.is_explicit
        if not self._is_chat:
            print(
                "the model has no chat template: it continues the text that you type, and after an empty line its own "
                "(-n N limits it, Ctrl-C stops it; --chat-template chatml makes it a chat)",
                file=sys.stderr,
            )
            templates = ChatTemplates(llm.model_address, _TEXT)
        sampling = sampling_for(llm.engine, args)
        self._conversation = ChatSession(
            llm,
            templates,
            sampling,
            system=_system(args),
            n_predict=args.predict,
            stop=args.reverse_prompt or (),
            reasoning_budget=args.reasoning_budget,
            reasoning_message=args.reasoning_budget_message,
            enable_thinking={"on": True, "off": False, "auto": None}[args.reasoning],
            reasoning_format=args.reasoning_format,
            chat_template_kwargs=args.chat_template_kwargs,
        )
        self._is_single = args.single_turn

    def run(self, first: str | None) -> int:
        """Take turns until the end of the input; an exit code."""
        if first is not None:
            self._write(f"> {first}\n")
            is_answered = self._show(self._conversation.send(first))
            if self._is_single:
                return 130 if self._conversation.finish_reason == "interrupted" else 0 if is_answered else 1
        elif self._is_terminal:
            print(_about(self._llm), file=sys.stderr)
            print("/help shows the commands, Ctrl-C stops an answer, Ctrl-D ends", file=sys.stderr)
        n_interrupts = 0
        while True:
            try:
                text = self._read()
            except EOFError:
                if self._is_terminal:
                    self._write("\n")
                return 0
            except KeyboardInterrupt:
                n_interrupts += 1
                if n_interrupts > 1:
                    self._write("\n")
                    return 0
                self._write("\n(Ctrl-C once more, or Ctrl-D, ends)\n")
                continue
            n_interrupts = 0
            if text in ("/exit", "/quit"):
                return 0
            self._do(text)

    def _do(self, text: str) -> None:
        """Send a message, or do a command."""
        if text == "/regen":
            self._show(self._conversation.say_again())
        elif text == "/clear":
            self._conversation.clear()
            self._write("(cleared)\n")
        elif text == "/stats":
            self._write(self._stats())
        elif text == "/help":
            self._write(_HELP + (_EDITING.format(path=self._editor.path) if self._editor else "") + "\n")
        elif text.startswith("/") and text[1:].isalpha() and "\n" not in text:
            self._write(f"there is no command {text}; /help shows them\n")
        elif text.strip() or (self._conversation.messages and not self._is_chat):
            self._show(self._conversation.send(text))

    def _read(self) -> str:
        """The user's message: a line, and the lines that continue it."""
        lines: list[str] = []
        while True:
            line = input(("... " if lines else "> ") if self._is_terminal else "")
            if not lines and line.startswith("/"):
                return line.strip()
            goes_on = line.endswith("\\") != self._is_multiline
            lines.append(line.removesuffix("\\"))
            if not goes_on:
                text = "\n".join(lines).removesuffix("\n") if self._is_multiline else "\n".join(lines)
                if self._editor is not None:
                    self._editor.add(text)
                return text

    def _show(self, pieces: Iterator[Piece]) -> bool:
        """Write an answer as it comes; Ctrl-C stops it. Returns whether it ended without an error."""
        was_reasoning, is_answered = False, True
        try:
            for piece in pieces:
                if was_reasoning and not piece.is_reasoning:
                    self._write("\n\n")
                was_reasoning = piece.is_reasoning
                color = _CYAN if piece.is_drafted else _GREY if piece.is_reasoning else ""
                self._write(f"{color}{piece.text}{_PLAIN}" if color and self._color else piece.text)
        except KeyboardInterrupt:
            self._write("\n(stopped)")
        except (ValueError, Eagle3Error) as e:
            print(f"error: {e}", file=sys.stderr)
            is_answered = False
        if self._conversation.is_full:
            n_ctx = self._llm.n_ctx()
            self._write(f"\n(the context is full, {n_ctx} tokens: /clear begins anew, a larger -c makes room)")
        self._write("\n\n")
        return is_answered

    def _stats(self) -> str:
        stats, conversation = self._llm.last_stats, self._conversation
        if not conversation.finish_reason:
            return "nothing was answered yet\n"
        n = conversation.n_prompt
        speed, plain = stats.tokens_per_second or 0.0, self._llm.engine.drafting.plain_tokens_per_second
        times = f", {speed / plain:.2f} times plain decoding" if plain and stats.drafted else ""
        lines = [
            f"{stats.tokens} tokens ({conversation.finish_reason}), {speed:.1f} tokens/s{times}",
            f"prompt: {n} tokens, {stats.prompt_tokens} of them new, {stats.prefill_seconds:.2f} s",
            f"context: {min(n + stats.tokens, self._llm.n_ctx())} of {self._llm.n_ctx()} tokens",
        ]
        if stats.drafted:
            lines.append(
                f"drafted: {stats.accepted} of {stats.drafted} tokens accepted, mean acceptance length "
                f"{stats.mean_acceptance_length:.2f} tokens a step, {stats.steps} steps"
            )
        else:
            lines.append(f"drafted: nothing{': ' if stats.why_not_drafted else ''}{stats.why_not_drafted}")
        return "\n".join(lines) + "\n"

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _about(llm: Eagle3Llama) -> str:
    """Name the model, its drafters with their files and the context, in a line."""
    files = ", ".join(Path(file.path).name for file in llm.loaded.plan.drafts if not file.is_in_target)
    sources = (", ".join(llm.draft_sources) or "nothing") + (f" ({files})" if files else "")
    return f"{Path(llm.model_path).name}, context: {llm.n_ctx()} tokens, drafts by: {sources}"


def _system(args: argparse.Namespace) -> str:
    if args.system_prompt and args.system_prompt_file is not None:
        raise ValueError("-sys and -sysf exclude each other")
    if args.system_prompt_file is not None:
        return read_text(args.system_prompt_file.expanduser()).removesuffix("\n")
    return str(args.system_prompt)
