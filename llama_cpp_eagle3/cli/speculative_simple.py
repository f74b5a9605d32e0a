"""Generate from one prompt with a target and its drafters, and print figures.

The flags are llama.cpp's. Text goes to stdout, figures to stderr. Without -md n-grams draft, or a block in the model's
file. Without -m it is SmolLM2-135M-Instruct, which is fetched once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from .._core import read_target
from ..doctor.pair_check import size_of
from ..draft.siblings import advice
from ..files.text_file import as_text, read_bytes, read_text
from ..files.whole_file import output_path, write_whole
from ..llama import Eagle3Llama
from ..log import progress_bar
from ..media import Prompt, read_media
from .figures import Figures, bytes_read, report, show
from .flags import LOAD, LOG, PROMPT, SAMPLING, changed
from .load_model import BAR, calibrate, load_model, resolve_pair
from .parser import Parser
from .sampling_flags import sampling_of
from .sources import heads_of, lacks_weights
from .writer import Writer

_DEMO_PROMPT = '''\
class Stack:
    """A last-in, first-out collection of items."""

    def __init__(self, items=None):'''
_DEMO_REPEAT_PENALTY = 1.15  # small models repeat themselves

_MARKER = "<__media__>"  # llama.cpp's

FLAGS = {
    "prompt and output": PROMPT,
    **LOAD,
    "sampling": changed(
        SAMPLING,
        "temperature",
        default=0.0,
        help="(default: 0, greedy)",
        differs="0, llama.cpp 0.8: figures of two runs can be compared",
    ),
    "log": LOG,
}
"""Title -> flags."""


def add_arguments(parser: Parser) -> None:
    """Add this command's flags."""
    parser.add_flags(FLAGS)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if resolve_pair(args) and args.prompt is args.file is args.binary_file is None:
        args.prompt, args.escape = _DEMO_PROMPT, False
        if args.repeat_penalty is None:
            args.repeat_penalty = _DEMO_REPEAT_PENALTY
    prompt = read_prompt(args)
    drafts = heads_of(args)
    if args.baseline and args.spec_type == ():
        raise ValueError("--baseline compares with a run that drafts: leave --spec-type none out")
    if args.predict < -1:
        raise ValueError(f"expected -n >= -1, found {args.predict}")

    if args.json not in (None, "-"):
        output_path(args.json, args.model, *drafts, args.file, args.binary_file)
    out = None if args.json == "-" else sys.stdout
    figures = generate(args, drafts, prompt, out)
    baseline = None
    if args.baseline and figures.finish_reason != "interrupted":
        baseline = generate(args, (), prompt, None, draft_sources=())
    show(figures, baseline)
    if args.baseline and lacks_weights(args):
        print(f"\nn-grams drafted; {advice(read_target(args.model), size_of(args.model))}", file=sys.stderr)
    if args.json is not None:
        text = json.dumps(report(figures, {**vars(args), "prompt": prompt}, baseline), indent=2, default=str)
        if args.json == "-":
            print(text)
        else:
            write_whole(args.json, text + "\n")
    return 130 if figures.finish_reason == "interrupted" else 0


def read_prompt(args: argparse.Namespace) -> str:
    """The prompt, from -p, -f or -bf."""
    if sum(given is not None for given in (args.prompt, args.file, args.binary_file)) != 1:
        raise ValueError("give the prompt with -p TEXT or -f FNAME")
    if args.binary_file is not None:
        return read_bytes(args.binary_file).decode("utf-8")
    if args.file is not None:
        text = as_text(sys.stdin.buffer.read(), "standard input") if args.file == "-" else read_text(args.file)
        return text[:-1] if text.endswith("\n") else text  # llama.cpp drops it too
    return unescape(args.prompt) if args.escape else str(args.prompt)


def unescape(text: str) -> str:
    """Process llama.cpp's escapes; others stay as they are."""
    known = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
    result, chars = [], iter(text)
    for char in chars:
        if char == "\\":
            following = next(chars, "")
            char = known.get(following, char + following)
        result.append(char)
    return "".join(result)


def generate(args: argparse.Namespace, drafts: Sequence[str], prompt: str, out: Any, **more: Any) -> Figures:
    """Load, generate once, free. The text is written to `out` as it comes. more: see `load_model`."""
    start = time.perf_counter()
    llm = load_model(args, drafts, **more)
    try:
        load_seconds = time.perf_counter() - start
        given = prompt_tokens(llm, prompt, args.media)
        tokens = given.tokens
        n_left = llm.n_ctx() - len(tokens)
        if n_left <= 0:
            raise ValueError(f"the prompt has {len(tokens)} tokens, the context {llm.n_ctx()}: use a larger -c")
        if args.predict != 0:
            calibrate(llm)
        for media in given.media:
            if media.first > llm.n_tokens:
                llm.eval(tokens[llm.n_tokens : media.first])
            llm.eval_media(media)
        if not given.media:
            _evaluate_with_bar(llm, tokens)
        steps_before = sum(d.n_steps for d in llm.drafters)
        writer = Writer(out, args.color)
        writer.write(prompt)
        finish_reason = _stream(llm, tokens, n_left if args.predict < 0 else min(args.predict, n_left), args, writer)
        stats = llm.last_stats
        n_steps = sum(d.n_steps for d in llm.drafters) - steps_before
        return Figures(
            stats=stats,
            text=writer.text[len(prompt) :],
            n_prompt=len(tokens),
            finish_reason=finish_reason,
            load_seconds=load_seconds,
            n_bytes_read=bytes_read(llm, stats, n_steps),
            draft=_describe_draft(llm),
            device=", ".join(dict.fromkeys(d.device for d in llm.drafters)),
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
    """How it drafts: a length, a tree's shape, or auto."""
    if not llm.drafters and llm.engine.drafting.ngram is None:
        return "0"
    tree = f"tree {llm.draft_tree_depth}x{llm.draft_tree_topk}:{llm.draft_tree_tokens}"
    return {"auto": "auto", "tree": tree, "chain": str(llm.draft_n_max)}[llm.draft]


def _evaluate_with_bar(llm: Eagle3Llama, tokens: list[int]) -> None:
    """Evaluate a long prompt batch by batch with a progress bar; `generate` then finds it in the context."""
    n_batch = llm.context_params.n_ubatch
    with closing(progress_bar(len(tokens), "tok", desc="prompt", **BAR)) as bar:
        for i in range(0, 0 if bar.disable or len(tokens) <= n_batch else len(tokens), n_batch):
            llm.eval(tokens[i : i + n_batch])
            bar.update(len(tokens[i : i + n_batch]))


def _stream(llm: Eagle3Llama, tokens: list[int], n_predict: int, args: argparse.Namespace, writer: Writer) -> str:
    """Generate and write; returns why it ended."""
    stream = llm.generate(tokens, sampling=sampling_of(args))
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
