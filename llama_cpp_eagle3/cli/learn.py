"""What `serve --learn DIR` and `chat --learn DIR` have kept in a folder, and what was learned from it.

Without a flag it is a table. docs/learn.md says what is kept, what it costs, and what to expect.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from ..draft.learn import Folder, Heads, Texts, Training, forget
from ..draft.learn.rounds import minutes_of, new_tokens, read_result
from ..draft.learn.training import check_installed
from ..errors import Eagle3Error
from ..files.whole_file import output_path, whole_file
from ..machine import default_threads
from .parser import Parser

_N_BAR = 40
_DAY_SECONDS = 86400


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of --learn")
    parser.add_argument("--now", action="store_true", help="learn now, in the foreground; no server may use the folder")
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="of training (default: one for 500 new tokens, 5 to 60)"
    )
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="(default: the processor's cores)")
    parser.add_argument("--export", type=Path, metavar="FNAME", help="write the newest head as a GGUF file")
    parser.add_argument("--forget", action="store_true", help="remove all that is kept and learned, and the folder")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        ValueError: flags contradict each other.
        Eagle3Error: the folder is none of `--learn`'s, or a server uses it; nothing is there to learn or to export.
        OSError: the system's.
    """
    if args.now + args.forget + (args.export is not None) > 1:
        raise ValueError("--now, --export and --forget exclude each other")
    if args.minutes is not None and not 0.0 < args.minutes < 1e6:
        raise ValueError(f"--minutes: expected more than 0, found {args.minutes:g}")
    if args.forget:
        print(f"forgot {forget(args.folder) / 2**20:.1f} MiB")
        return 0
    folder = Folder(args.folder)
    if not folder.about():
        raise ValueError(f"'{folder.path}' is no folder of --learn: `serve --learn DIR` makes one")
    if args.now:
        return _learn(folder, args.minutes, args.threads or default_threads())
    if args.export is not None:
        return _export(folder, args.export)
    for line in table(folder):
        print(line)
    return 0


def _learn(folder: Folder, minutes: float | None, n_threads: int) -> int:
    check_installed()
    if not folder.hold():
        raise Eagle3Error(f"'{folder.path}': a server uses this folder, and learns by itself while nobody waits")
    try:
        heads, texts = Heads(folder), Texts(folder)
        if (left := read_result(folder)) is not None:  # a process was killed before it took this in
            heads.take_in(left)
        training = Training(folder.path, minutes or minutes_of(texts, heads), n_threads, is_shown=True)
        try:
            code = training.wait()
        finally:
            training.close()
            heads.add_seconds(training.seconds)
            heads.save()
        result = read_result(folder)
        if code or result is None:
            return code or 2
        entry = heads.take_in(result)
    finally:
        folder.release()
    figures = f"{entry.before:.2f} to {entry.after:.2f} tokens a step (+-{entry.error:.2f}) on texts kept out"
    if entry.state == "used":
        print(f"head {entry.version} drafts from the next start on: {figures}")
    else:
        print(f"head {entry.version} is dropped: {entry.why}")
    return 0


def _export(folder: Folder, output: Path) -> int:
    heads = Heads(folder)
    path = heads.path(heads.version)
    if path is None:
        raise ValueError(f"'{folder.path}' has no head yet")
    with whole_file(output_path(output, path)) as part:
        shutil.copyfile(path, part)
    print(f"wrote head {heads.version} to '{output}' ({output.stat().st_size / 1e6:.1f} MB): -md '{output}'")
    return 0


def table(folder: Folder) -> list[str]:
    """What is kept and learned, as lines."""
    texts, heads, about = Texts(folder), Heads(folder), folder.about()
    n_rows = sum(entry.n_rows for entry in texts)
    lines = [
        f"'{folder.path}', for '{about['target']}'",
        f"kept      {len(texts)} texts of {len(texts.conversations())} conversations, {texts.n_answer:,} tokens of "
        f"answers ({new_tokens(texts, heads):,} not learned yet), hidden states of {n_rows:,} tokens, "
        f"{folder.n_bytes / 2**20:.1f} MiB",
        f"learned   {sum(heads.seconds.values()) / 60:.0f} minutes, {heads.seconds_today / 60:.0f} of them today",
    ]
    rows = [
        (
            str(e.version) if e.version else "given",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(e.time)) if e.time else "",
            f"{e.n_answer:,}" if e.n_answer else "",
            f"{e.before:.2f} -> {e.after:.2f} +-{e.error:.2f}" if e.version else "",
            f"{e.live:.2f} ({e.live_tokens:,})" if e.live_tokens else "",
            e.state,
        )
        for e in heads.entries.values()
    ]
    head = ("head", "made", "learned from", "tokens a step, in its gate", "since (tokens)", "")
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines += [
        "",
        *("  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)),
    ]
    by_day: dict[int, list[int]] = {}
    for entry in texts:
        counts = by_day.setdefault(entry.time // _DAY_SECONDS, [0, 0])
        counts[0] += entry.n_tokens
        counts[1] += entry.n_steps
    lines += ["", "tokens a step by day"] if by_day else []
    for day, (n_tokens, n_steps) in sorted(by_day.items())[-30:]:
        length = n_tokens / max(1, n_steps)
        date = time.strftime("%Y-%m-%d", time.gmtime(day * _DAY_SECONDS))
        lines.append(f"{date}  {length:.2f}  {'#' * min(_N_BAR, round(10 * (length - 1)))}")
    return lines
