"""The head that a training begins with, and the tokens that it drafts."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from llama_cpp_eagle3.files.whole_file import whole_file

from .build import fresh_head, head_from_gguf, replace_draft_vocab, target_config
from .checkpoint import draft_vocabulary
from .data import Text
from .eagle import Head
from .job import Job, log
from .trainer import STATE, split
from .work_file import reading

N_DRAFT_VOCAB = 8192
"""Tokens that a fresh head can draft."""
_COVERAGE_GAIN = 0.01
"""Share of held-out answers that another draft vocabulary must cover beyond that of --init to be used."""


def init_head(job: Job) -> Head | None:
    """The head of --init as it is."""
    return None if job.init is None else head_from_gguf(job.init_gguf(), job.target, job.n_ctx, job.n_steps)


def random_head(job: Job) -> Head:
    """A head of the size of the one to train, with random weights."""
    if (head := init_head(job)) is not None:
        return head
    cfg = target_config(job.target, job.n_ctx, job.layers, n_ff=job.n_ff, eagle31=job.eagle31)
    d2t = torch.arange(min(cfg.n_vocab, job.draft_vocab or N_DRAFT_VOCAB))
    return Head(cfg, torch.zeros(cfg.n_vocab, cfg.n_embd), d2t, job.n_steps)


def make_head(job: Job, texts: Sequence[Text]) -> Head:
    """A fresh head; the first run decides which tokens it drafts."""
    cfg = target_config(job.target, job.n_ctx, job.layers, n_ff=job.n_ff, eagle31=job.eagle31)
    d2t = _draft_vocabulary(job, count_answers(texts, cfg.n_vocab), job.draft_vocab or N_DRAFT_VOCAB)
    return fresh_head(job.target, cfg, d2t, job.n_steps)


def choose_tokens(job: Job, head: Head, texts: Sequence[Text]) -> Head:
    """The head of --init with the tokens that answers need most, if requested or if that covers clearly more."""
    counts = count_answers(texts, head.cfg.n_vocab)
    known = head.d2t.numpy()

    def replaced(n_draft: int) -> Head:
        return replace_draft_vocab(head, job.target, _draft_vocabulary(job, counts, n_draft, known), job.n_steps)

    if job.keeps_vocab:
        return head
    if job.draft_vocab is not None:
        log(f"draft vocabulary of --init: {_coverage(counts, known)}")
        return replaced(job.draft_vocab)
    if not head.cfg.own_output or len(known) >= head.cfg.n_vocab:
        return head
    if job.d2t_path.exists():
        return replaced(len(known))
    train, held = split(texts, job.training.held_out_every)
    best = draft_vocabulary(_wanted(count_answers(train, head.cfg.n_vocab), known), len(known)).numpy()
    asked = count_answers(held, head.cfg.n_vocab)
    gain = _share(asked, best) - _share(asked, known)
    told = f"draft vocabulary of --init: {_coverage(counts, known)}; of held-out answers the best {len(known)} cover "
    told += f"{100 * gain:+.2f} points"
    if gain < _COVERAGE_GAIN or (job.folder / STATE).exists():
        log(f"{told}: it is kept")
        return head
    log(f"{told}: it is replaced by these (--draft-vocab keep prevents that)")
    return replaced(len(known))


def count_answers(texts: Sequence[Text], n_vocab: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How often the answers have each token."""
    counts = np.zeros(n_vocab, dtype=np.int64)
    for text in texts:
        np.add.at(counts, text.tokens[text.n_prompt :], 1)
    return counts


def _share(counts: np.ndarray[Any, Any], d2t: np.ndarray[Any, Any]) -> float:
    return float(counts[d2t].sum() / max(1, counts.sum()))


def _coverage(counts: np.ndarray[Any, Any], d2t: np.ndarray[Any, Any]) -> str:
    return f"{len(d2t)} tokens, {_share(counts, d2t):.2%} of the answers"


def _wanted(counts: np.ndarray[Any, Any], known: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How much tokens are wanted: twice their count in answers, and 3 more if a head drafted them.

    So these go before one that answers have once, which is chance.
    """
    wanted = 2 * counts
    wanted[known] += 3
    return wanted


def _draft_vocabulary(
    job: Job, counts: np.ndarray[Any, Any], n_draft: int, known: Sequence[int] | np.ndarray[Any, Any] = ()
) -> torch.Tensor:
    """The n_draft tokens that are wanted most; the first run writes them into the work folder, where later ones read.

    known: the tokens of the head of --init.
    """
    path = job.d2t_path
    if not path.exists():
        d2t = draft_vocabulary(_wanted(counts, np.asarray(known, np.int64)), min(n_draft, len(counts))).numpy()
        log(f"draft vocabulary: {_coverage(counts, d2t)}")
        with whole_file(path) as part, part.open("wb") as f:
            np.save(f, d2t)
    with reading(path):
        d2t = np.load(path)
        if d2t.ndim != 1 or not 0 <= d2t.min() <= d2t.max() < len(counts):
            raise ValueError(f"expected tokens below {len(counts)}")
    return torch.from_numpy(d2t)
