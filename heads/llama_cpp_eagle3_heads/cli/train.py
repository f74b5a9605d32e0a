"""Make an EAGLE-3 head for a target from its GGUF alone, or adapt a head to the file and to the prompts that you have.

Without -f the target makes up its own prompts; the answers are always its own. Everything lies in a work folder beside
the output until the head is written, so that --resume goes on after any interruption.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from llama_cpp_eagle3 import models
from llama_cpp_eagle3.cli.fetch_files import fetch_named
from llama_cpp_eagle3.cli.flags import pick
from llama_cpp_eagle3.cli.parser import Parser
from llama_cpp_eagle3.extras import HEADS, extra
from llama_cpp_eagle3_heads.cli.quantize import TYPES


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_flags({"target": pick("model", "n_gpu_layers", "n_threads")})
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FNAME", help="the head's GGUF to write")
    parser.add_argument(
        "--init", metavar="HEAD", help="go on from this head: a GGUF or its name, or a checkpoint folder"
    )
    parser.add_argument("--resume", action="store_true", help="go on with a run that was interrupted")
    parser.add_argument("--work", type=Path, metavar="DIR", help="work folder (default: OUTPUT.work)")
    parser.add_argument("--export", type=Path, metavar="DIR", help="write a Hugging Face checkpoint too")
    parser.add_argument(
        "--export-form", choices=("eagle", "speculators"), default="eagle",
        help="of that checkpoint: SpecForge's, or that of vLLM's speculators (default: eagle)",
    )  # fmt: skip
    parser.add_argument(
        "--outtype", type=str.lower, choices=TYPES, default="q8_0", help="type of the matrices (default: q8_0)"
    )
    data = parser.add_argument_group("texts")
    data.add_argument(
        "-f", "--file", action="append", type=Path, default=[], metavar="FNAME",
        help="prompts: plain text with a question per line; or JSON Lines, JSON, CSV or Parquet with messages, "
        "conversations, question, instruction, prompt, ... (docs/training.md has all shapes)",
    )  # fmt: skip
    data.add_argument("--tokens", type=int, metavar="N", help="of answers (default: as many as --minutes allow)")
    data.add_argument("-n", "--predict", type=int, default=320, metavar="N", help="tokens of an answer (default: 320)")
    data.add_argument("-c", "--ctx-size", type=int, default=768, metavar="N", help="of a text (default: 768)")
    data.add_argument("-np", "--parallel", type=int, default=16, metavar="N", help="answers at once (default: 16)")
    data.add_argument(
        "--cache", metavar="DIR",
        help="keep the rows on disk, which saves their passes; none: not (default: WORK/rows, if it takes less than "
        "half of what is free)",
    )  # fmt: skip
    head = parser.add_argument_group("head")
    head.add_argument("--layers", metavar="B,B,B", help="boundaries to read (default: 2, n/2, n - 3)")
    head.add_argument("--eagle31", action="store_true", help="with EAGLE-3.1's norms (llama.cpp's own cannot run it)")
    head.add_argument(
        "--feed-forward",
        type=int,
        metavar="N",
        help="width of a new head's feed-forward layer (default: the target's; less makes a smaller, cheaper head)",
    )
    head.add_argument(
        "--draft-vocab",
        metavar="N",
        help="tokens to draft, the most frequent of the answers; keep: those of --init as they are (default: 8192, or "
        "as many as --init, others if they cover at least a hundredth more)",
    )
    group = parser.add_argument_group("training")
    group.add_argument(
        "--minutes", type=float, metavar="N",
        help="of the whole run: prompts, answers, training and evaluation (default: 60, or what --tokens and --steps "
        "take)",
    )  # fmt: skip
    group.add_argument("--steps", type=int, default=0, metavar="N", help="train so many steps")
    group.add_argument("--lr", type=float, metavar="X", help="learning rate (default: 0.6 / width of the target)")
    group.add_argument("--device", metavar="NAME", help="where the head learns (default: cuda or mps if torch has it)")
    group.add_argument(
        "--dtype", choices=("auto", "f32", "bf16"), default="auto",
        help="of matrix products (default: bf16 where the device has it)",
    )  # fmt: skip
    group.add_argument(
        "--optimizer", choices=("adamw", "muon"),
        help="muon learns more from each text, but its steps cost more (default: muon for heads "
        "up to 1024 wide on devices with bf16)",
    )  # fmt: skip
    group.add_argument("--batch", type=int, metavar="N", help="texts per step (default: 8 with muon, else 4)")
    group.add_argument("--ttt-steps", type=int, metavar="N", help="draft steps in training (default: 4)")
    group.add_argument(
        "--anchors", type=int, default=48, metavar="N",
        help="rows of a text that draft steps after the first start from (default: 48)",
    )  # fmt: skip
    group.add_argument(
        "--eval-every", type=int, metavar="N", help="steps (default: 100, or so that there are eight evaluations)"
    )
    group.add_argument(
        "--patience", type=int, default=0, metavar="N", help="stop after N evaluations without a better one (0: never)"
    )
    group.add_argument("--seed", type=int, default=1, metavar="N")
    parser.hide("export_form", "dtype", "seed", "anchors", "eval_every", "parallel")  # most runs need none of them


_LOWEST = {
    0: ("steps", "patience", "lr"),
    1: (
        "tokens",
        "predict",
        "ctx_size",
        "parallel",
        "feed_forward",
        "batch",
        "ttt_steps",
        "anchors",
        "eval_every",
    ),
}


def _layers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(b) for b in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--layers: expected numbers with commas between, as in 2,16,29, found {text!r}") from None


def _draft_vocab(text: str | None) -> int | None:
    if text in (None, "keep"):
        return None
    try:
        n = int(str(text))
    except ValueError:
        n = 0
    if n < 1:
        raise ValueError(f"--draft-vocab: expected a number of at least 1, or keep, found {text!r}")
    return n


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.model is None:
        raise ValueError(f"expected -m, the target that the head is for: a GGUF, or one of {', '.join(models.names())}")
    for lowest, names in _LOWEST.items():
        for name in names:
            found = getattr(args, name)
            if found is not None and not lowest <= found < math.inf:
                raise ValueError(f"--{name.replace('_', '-')}: expected a number of at least {lowest}, found {found}")
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        raise ValueError(f"--minutes: expected more than 0, found {args.minutes:g}")
    with extra("train", of=HEADS):
        from ..train.job import Job
        from ..train.plan import Budget
        from ..train.session import run as train
        from ..train.trainer import Settings, check_device
    if args.init is not None and (args.layers or args.eagle31 or args.feed_forward):
        raise ValueError(
            "--init: the head's file has its boundaries, norms and widths; leave --layers, --eagle31 and "
            "--feed-forward out"
        )
    if args.draft_vocab == "keep" and args.init is None:
        raise ValueError("--draft-vocab keep: there is no --init whose tokens could be kept")
    if args.device is not None:
        check_device(args.device)
    fetch_named(args, "model", "init")
    settings = Settings(
        lr=args.lr, anchors=args.anchors, device=args.device, dtype=args.dtype,
        patience=args.patience, seed=args.seed,
    )  # fmt: skip
    job = Job(
        Path(args.model),
        args.output,
        files=tuple(args.file),
        init=None if args.init is None else Path(args.init),
        work=args.work,
        resume=args.resume,
        cache=None if args.cache in (None, "none") else Path(args.cache),
        keeps_rows=args.cache != "none",
        export=args.export,
        export_form=args.export_form,
        budget=Budget(args.minutes, args.tokens, args.steps),
        max_tokens=args.predict,
        n_ctx=args.ctx_size,
        n_parallel=args.parallel,
        layers=_layers(args.layers),
        n_ff=args.feed_forward,
        draft_vocab=_draft_vocab(args.draft_vocab),
        keeps_vocab=args.draft_vocab == "keep",
        eagle31=args.eagle31,
        outtype=args.outtype,
        n_threads=args.n_threads,
        n_gpu_layers=args.n_gpu_layers,
        optimizer=args.optimizer,
        batch=args.batch,
        ttt_steps=args.ttt_steps,
        eval_every=args.eval_every,
        training=settings,
    )
    train(job)
    return 0
