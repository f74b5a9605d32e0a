"""Train a head on the texts of a `--learn` folder: ``python -m llama_cpp_eagle3_heads.train.learn DIR --minutes N``.

`llama-cpp-eagle3 serve --learn` runs it while nobody waits, and `llama-cpp-eagle3 learn DIR --now` at once. It only
reads the folder, except for DIR/round: there it leaves a head if the gate lets one through, and last of all its result.
Killed at any time, it goes on there.
"""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llama_cpp_eagle3._core import read_target
from llama_cpp_eagle3.draft.learn.folder import Folder, write_json
from llama_cpp_eagle3.draft.learn.heads import HEAD, Heads
from llama_cpp_eagle3.draft.learn.rounds import PLAN, divide, write_result
from llama_cpp_eagle3.draft.learn.texts import TextEntry, Texts

from .build import boundaries_of
from .data import Text
from .eagle import Head
from .first_head import choose_tokens, init_head, make_head
from .gate import compare, judge, simulate
from .job import Job, decided, log
from .mean import mean_head
from .plan import Budget
from .rows import TOP_K, Extractor, LazyExtractor, Sample, Source, cache_bytes
from .session import write_head
from .trainer import Trainer

N_BEFORE = 512
"""Tokens of a prompt that an answer is learned with, its last ones."""
_N_CTX = 2048
_N_TEXTS_MIN = 4
_HELD_OUT_EVERY = 8
"""One of so many texts tells which head of a training is the best: there are few, which are read often."""
_SAVE_SECONDS = 30.0
_SHARE_BEFORE = 0.25
"""Of the head before in the mean of both that is tried: of 0.25 to 0.75 the best on two folders
(docs/training-notes.md, "The mean of two heads")."""
_ROWS_BYTES_MAX = 4 << 30
"""Bytes of rows that a training keeps of texts that have none, at most."""
_PR_SET_PDEATHSIG = 1


class KeptTexts(Source):
    """The samples of kept texts: rows as they passed by, or else the target evaluates the text."""

    def __init__(self, texts: Texts, extractor: Any, cache: Path | None = None) -> None:
        """Read a folder's texts. cache: where samples go that the target evaluated; None: it does so each time."""
        super().__init__(extractor, cache)
        self._texts = texts

    def text(self, number: int) -> Text:
        """A text as the trainer takes it: a part of the prompt, and as much of the answer as there is room for.

        Its temperature is 0, so that drafts are simulated on all.
        """
        entry = self._texts.by_id[number]
        first = self._first(entry)
        tokens = self._texts.tokens(entry)[first : first + _N_CTX]
        return Text(number, tokens, max(1, entry.n_prompt - first), 0.0, "user")

    def _first(self, entry: TextEntry) -> int:
        first, rows = self._texts.rows(entry, N_BEFORE)
        return first if len(rows) else max(0, entry.n_prompt - N_BEFORE)

    def get(self, text: Text) -> Sample:
        """The sample of a text. What a row predicts is the token that followed."""
        _, rows = self._texts.rows(self._texts.by_id[text.id], N_BEFORE)
        n = min(len(rows), len(text.tokens))
        if n <= text.n_prompt:
            return super().get(text)
        tokens = np.array(text.tokens[:n], dtype=np.int32)
        n_known = n - text.n_first
        top_ids, top_p = np.zeros((n_known, TOP_K), np.int32), np.zeros((n_known, TOP_K), np.float16)
        top_ids[:-1, 0], top_p[:-1, 0] = tokens[text.n_first + 1 :], 1.0
        return Sample(text.id, text.n_prompt, text.temperature, tokens, np.array(rows[:n]), top_ids, top_p)


def learn(folder: Folder, minutes: float, n_threads: int | None) -> dict[str, Any]:
    """Train, judge, and leave the result.

    Raises:
        ValueError: there are too few texts, or the head cannot be trained.
    """
    about, heads, texts = folder.about(), Heads(folder), Texts(folder)
    if not about or not len(texts):
        raise ValueError(f"'{folder.path}' has no texts: serve with --learn first")
    plan = _plan(folder, texts, heads, minutes)
    init = heads.path(heads.version) or (Path(about["head"]) if about["head"] else None)
    if n_threads:
        torch.set_num_threads(n_threads)
    job = decided(
        Job(
            Path(about["target"]), folder.round / HEAD, init=init, work=folder.round,
            budget=Budget(plan["minutes"]), n_ctx=_N_CTX, n_threads=n_threads,
        )
    )  # fmt: skip
    training = replace(
        job.training, minutes=plan["minutes"], save_every=_SAVE_SECONDS, eval_every=50, held_out_every=_HELD_OUT_EVERY
    )
    job = replace(job, training=training)
    first = init_head(job)
    boundaries = boundaries_of(job.target, () if first is None else first.cfg.boundaries)
    extractor = LazyExtractor(lambda: Extractor(job.target, boundaries, _N_CTX, **job.loading))
    try:
        source = KeptTexts(texts, extractor, folder.round / "rows")
        known = [source.text(number) for number in plan["learned"] if number in texts.by_id]
        n_tokens = sum(len(text.tokens) for text in known)
        size = cache_bytes(n_tokens, len(boundaries) * read_target(str(job.target)).n_embd)
        if size > min(_ROWS_BYTES_MAX, shutil.disk_usage(folder.path).free / 2):
            log(f"rows of {n_tokens} tokens would take {size / 1e9:.1f} GB: texts without rows are evaluated each time")
            source.cache = None
        torch.manual_seed(job.training.seed)
        head = make_head(job, known) if first is None else choose_tokens(job, first, known)
        trainer = Trainer(head, source, known, folder.round, job.training)
        log(trainer.describe())
        if not trainer.log:
            trainer.evaluate()
        trainer.run()
        trainer.load_best()
        before = init_head(job)  # as its file has it: the one above learns, if it keeps its tokens
        head = trainer.head if before is None else _better(before, trainer, source)
        return _finish(folder, job, plan, before, head, source, texts)
    finally:
        extractor.close()


def _plan(folder: Folder, texts: Texts, heads: Heads, minutes: float) -> dict[str, Any]:
    """The plan of this training, or of the one to go on with."""
    path = folder.round / PLAN
    with suppress(OSError, ValueError):
        plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        log(f"going on with a training of {plan['minutes']:g} minutes")
        return plan
    found = divide(texts, heads)
    if len(found.learned) < _N_TEXTS_MIN:
        raise ValueError(
            f"'{folder.path}' has {len(found.learned)} texts to learn from, and {len(found.gate)} that judge the head: "
            f"at least {_N_TEXTS_MIN} are needed, some hundred are a start"
        )
    plan = {"minutes": minutes, "until": max(texts.by_id), **asdict(found)}
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_json(path, plan)
    return plan


def _better(before: Head, trainer: Trainer, source: Source) -> Head:
    """The mean of the head before and the one that learned, unless it drafts worse on the training's held-out texts."""
    mean = mean_head(before, trainer.head, _SHARE_BEFORE)
    n_max = trainer.settings.n_max
    found = compare([simulate(trainer.head, mean, sample, n_max) for sample in source.stream(trainer.held_out)])
    is_worse = found.after < found.before
    log(f"the head that learned {found.before:.2f} tokens a step, its mean with the one before {found.after:.2f}: "
        f"the {'first' if is_worse else 'second'} is judged")  # fmt: skip
    return trainer.head if is_worse else mean


def _finish(
    folder: Folder,
    job: Job,
    plan: dict[str, Any],
    before: Head | None,
    head: Head,
    source: KeptTexts,
    texts: Texts,
) -> dict[str, Any]:
    """Judge the head, write it if it is let through, and leave the result."""

    def samples(name: str) -> Iterator[Sample]:
        return (source.get(source.text(number)) for number in plan[name] if number in texts.by_id)

    verdict = judge(before, head, samples("gate"), samples("last_gate"), job.training.n_max)
    if not verdict.why:
        write_head(job, head)
        os.chmod(job.output, 0o600)
    result = {
        "state": "refused" if verdict.why else "used",
        "why": verdict.why,
        "n_texts": len(plan["learned"]),
        "n_answer": sum(texts.by_id[number].n_answer for number in plan["learned"] if number in texts.by_id),
        "before": verdict.before,
        "after": verdict.after,
        "error": verdict.error,
        "gate": plan["gate"],
        "until": plan["until"],
    }
    write_result(folder, result)
    return result


def run_behind() -> None:
    """Take only time of the processor that nothing else wants, and end when the process that began this one ends."""
    if hasattr(os, "sched_setscheduler") and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif hasattr(os, "nice"):
        os.nice(19)
    if sys.platform == "linux":
        with suppress(OSError):  # sessions share first, if the kernel groups them, whatever their processes
            Path("/proc/self/autogroup").write_text("19", encoding="ascii")
        # a process that stands still would not notice the end of its input
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_end, name="parent", daemon=True).start()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--background", action="store_true")
    args = parser.parse_args()
    os.umask(0o077)
    if args.background:
        run_behind()
    try:
        learn(Folder(args.folder), args.minutes, args.threads)
    except (RuntimeError, ValueError, OSError) as e:
        log(f"error: {e}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
