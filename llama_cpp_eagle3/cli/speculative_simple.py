"""Generate from one prompt with a target and an EAGLE-3 head, and say what it took.

The flags are llama.cpp's. Text goes to stdout, figures to stderr. Without -m the bundled pair is used: a small model of
Python code with a head that was trained for it.
"""

from __future__ import annotations

import argparse
import codecs
import json
import sys
import time
from pathlib import Path
from typing import Any

from ..llama import Eagle3Llama
from ..media import Prompt, read_media
from .figures import Figures, bytes_read, report, show
from .model import fill_in_bundled_pair, load_model, progress_bar
from .options import add_draft_flags, add_model_flags, add_sampling_flags

_DEMO_PROMPT = '''\
class Stack:
    """A last-in, first-out collection of items."""

    def __init__(self, items=None):'''
_DEMO_REPEAT_PENALTY = 1.15  # small models repeat themselves

_MARKER = "<__media__>"  # llama.cpp's
_CYAN, _PLAIN = "\x1b[36m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    prompt = parser.add_argument_group("prompt and output")
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="(default with the bundled pair: some Python)")
    prompt.add_argument("-f", "--file", metavar="FNAME", help="read the prompt from a file, - is stdin")
    prompt.add_argument(
        *("--image", "--audio"),
        dest="media",
        action="append",
        default=[],
        metavar="FNAME",
        help="an image or a sound, with --mmproj; it stands where the prompt says <__media__>, or before it",
    )
    prompt.add_argument(
        "-e", "--escape", action=argparse.BooleanOptionalAction, default=True, help="process \\n, \\t, \\\\ in -p"
    )
    prompt.add_argument("-n", "--predict", "--n-predict", type=int, default=128, metavar="N", help="-1 = to the end")
    prompt.add_argument(
        "-co",
        "--color",
        nargs="?",
        const="on",
        default="auto",
        choices=("on", "off", "auto"),
        help="colour the accepted draft tokens (auto: on a terminal)",
    )
    prompt.add_argument("--json", metavar="FNAME", help="write the figures to a file too, - is stdout instead of text")
    prompt.add_argument("--baseline", action="store_true", help="run without the head too, and print the ratio")
    prompt.add_argument("-v", "--verbose", action="store_true", help="show llama.cpp's own messages")
    add_model_flags(parser)
    add_draft_flags(parser)
    add_sampling_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if fill_in_bundled_pair(args) and args.prompt is None and args.file is None:
        args.prompt, args.escape = _DEMO_PROMPT, False
        if args.repeat_penalty is None:
            args.repeat_penalty = _DEMO_REPEAT_PENALTY
    if args.repeat_penalty is None:
        args.repeat_penalty = 1.0
    prompt = read_prompt(args)
    draft = args.model_draft if args.spec_type == "draft-eagle3" else None
    if args.baseline and draft is None:
        raise ValueError("--baseline compares with a run that drafts: give -md")
    if args.predict < -1:
        raise ValueError(f"expected -n >= -1, found {args.predict}")

    out = None if args.json == "-" else sys.stdout
    figures = generate(args, draft, prompt, out)
    baseline = generate(args, None, prompt, None) if args.baseline and figures.finish_reason != "interrupted" else None
    show(figures, figures.draft, baseline)
    if args.json is not None:
        text = json.dumps(report(figures, {**vars(args), "prompt": prompt}, baseline), indent=2)
        if args.json == "-":
            print(text)
        else:
            Path(args.json).write_text(text + "\n", encoding="utf-8")
    return 130 if figures.finish_reason == "interrupted" else 0


def read_prompt(args: argparse.Namespace) -> str:
    """The prompt, from -p or -f."""
    if (args.prompt is None) == (args.file is None):
        raise ValueError("give the prompt with -p TEXT or -f FNAME")
    if args.file is not None:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text(encoding="utf-8")
        return text[:-1] if text.endswith("\n") else text  # llama.cpp drops it too
    return unescape(args.prompt) if args.escape else str(args.prompt)


def unescape(text: str) -> str:
    """Process the escapes that llama.cpp knows; others stay as they are."""
    known = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
    result, chars = [], iter(text)
    for char in chars:
        if char == "\\":
            following = next(chars, "")
            char = known.get(following, char + following)
        result.append(char)
    return "".join(result)


def generate(args: argparse.Namespace, draft: str | None, prompt: str, out: Any) -> Figures:
    """Load, generate once, free. The text goes to `out` as it comes."""
    start = time.perf_counter()
    llm = load_model(args, draft)
    try:
        load_seconds = time.perf_counter() - start
        if llm.draft == "auto":
            llm.calibrate()
        given = prompt_tokens(llm, prompt, args.media)
        tokens = given.tokens
        n_left = llm.n_ctx() - len(tokens)
        if n_left <= 0:
            raise ValueError(f"the prompt has {len(tokens)} tokens, the context {llm.n_ctx()}: use a larger -c")
        for media in given.media:
            if media.first > llm.n_tokens:
                llm.eval(tokens[llm.n_tokens : media.first])
            llm.eval_media(media)
        if not given.media:
            _evaluate_with_bar(llm, tokens)
        steps_before = 0 if llm.drafter is None else llm.drafter.n_steps
        writer = _Writer(out, args.color)
        writer.write(prompt)
        finish_reason = _stream(llm, tokens, n_left if args.predict < 0 else min(args.predict, n_left), args, writer)
        stats = llm.last_stats
        n_steps = 0 if llm.drafter is None else llm.drafter.n_steps - steps_before
        return Figures(
            stats=stats,
            text=writer.text[len(prompt) :],
            n_prompt=len(tokens),
            finish_reason=finish_reason,
            load_seconds=load_seconds,
            n_bytes_read=bytes_read(llm, stats, n_steps),
            draft=_describe_draft(llm),
            device="" if llm.drafter is None else llm.drafter.device,
        )
    finally:
        llm.close()


def prompt_tokens(llm: Eagle3Llama, prompt: str, files: list[str]) -> Prompt:
    """Tokens of a prompt with images, as llama.cpp's multimodal tool reads it."""
    if not files:
        return Prompt(llm.tokenize(prompt.encode("utf-8"), add_bos=True, special=True), [])
    if llm.projector is None:
        raise ValueError("--image and --audio need --mmproj")
    if _MARKER not in prompt:
        prompt = _MARKER * len(files) + prompt
    return llm.projector.prompt(prompt.replace(_MARKER, llm.projector.marker), [read_media(name) for name in files])


def _describe_draft(llm: Eagle3Llama) -> str:
    """What was drafted: a length, a tree's shape, or auto."""
    if llm.drafter is None:
        return "0"
    tree = f"tree {llm.draft_tree_depth}x{llm.draft_tree_topk}:{llm.draft_tree_tokens}"
    return {"auto": "auto", "tree": tree, "chain": str(llm.draft_n_max)}[llm.draft]


def _evaluate_with_bar(llm: Eagle3Llama, tokens: list[int]) -> None:
    """Evaluate a long prompt batch by batch, showing how it gets on; `generate` then finds it in the context."""
    n_batch = llm.context_params.n_ubatch
    bar = progress_bar(len(tokens), "prompt", "tok") if len(tokens) > n_batch else None
    if bar is not None:
        with bar:
            for i in range(0, len(tokens), n_batch):
                llm.eval(tokens[i : i + n_batch])
                bar.update(len(tokens[i : i + n_batch]))


def _stream(llm: Eagle3Llama, tokens: list[int], n_predict: int, args: argparse.Namespace, writer: _Writer) -> str:
    """Generate and write; returns why it ended."""
    stream = llm.generate(
        tokens,
        temp=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repeat_penalty=args.repeat_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        ignore_eos=args.ignore_eos,
    )
    try:
        while n_predict > 0:
            token = next(stream)
            if token in llm.engine.vocab.eog:
                return "stop"
            writer.write_piece(llm.detokenize([token], special=True), llm.last_token_drafted)
            n_predict -= 1
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        stream.close()
        writer.finish()
    return "length"


class _Writer:
    """Writes text as it comes: whole characters only, accepted draft tokens in colour."""

    def __init__(self, out: Any, color: str):
        self.out = out
        self.color = out is not None and (color == "on" or (color == "auto" and out.isatty()))
        self.text = ""
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def write(self, text: str, drafted: bool = False) -> None:
        """Write text."""
        self.text += text
        if self.out is not None and text:
            self.out.write(f"{_CYAN}{text}{_PLAIN}" if drafted and self.color else text)
            self.out.flush()

    def write_piece(self, piece: bytes, drafted: bool) -> None:
        """Write the text of a token; bytes of an incomplete character wait for the next one."""
        self.write(self._decode(piece), drafted)

    def finish(self) -> None:
        """Write what waits, and end the line."""
        self.write(self._decode(b"", True))
        if self.out is not None:
            self.out.write("\n")
            self.out.flush()
