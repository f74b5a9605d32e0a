"""Measure how fast this machine generates answers and trains a head, before a training is planned."""

# mypy: disable-error-code="misc, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from .data import Prompt, Text
from .eagle import Head
from .plan import Speeds
from .rows import TOP_K, AnswerGenerator, Sample, Source
from .trainer import Settings, Trainer

_N_PROMPT, _N_TOKENS = 8, 16
_N_PASSES_MIN = 4
_N_OF_TEXT = 64
_SHORT = 2.0
"""Seconds: a measurement that takes longer is not repeated more often than needed."""


class _RandomSamples(Source):
    """Random texts with random rows, to measure the speed of training."""

    def __init__(self, head: Head, n_answer: int) -> None:
        super().__init__(None, None)
        self.head = head
        self.n = min(head.cfg.n_ctx, _N_OF_TEXT + n_answer)
        self.n_prompt = min(_N_OF_TEXT, self.n // 2)

    def texts(self, n: int) -> list[Text]:
        """Make n texts, whose tokens :meth:`get` draws."""
        return [Text(i, [0] * self.n, self.n_prompt, 1.0, "model") for i in range(n)]

    def get(self, text: Text) -> Sample:
        """Draw the tokens, rows and most probable tokens of a text."""
        rng = np.random.default_rng(text.id)
        n_known = self.n - text.n_first
        d2t = self.head.d2t.cpu().numpy()
        top_p = np.full((n_known, TOP_K), 1 / TOP_K, np.float16)
        tokens = rng.integers(0, self.head.cfg.n_vocab, self.n).astype(np.int32)
        rows = rng.standard_normal((self.n, self.head.cfg.n_feat), np.float32).astype(np.float16)
        top_ids = d2t[rng.integers(0, len(d2t), (n_known, TOP_K))].astype(np.int32)
        return Sample(text.id, text.n_prompt, text.temperature, tokens, rows, top_ids, top_p)


def measure_speeds(generator: AnswerGenerator, head: Head, settings: Settings, max_tokens: int) -> Speeds:
    """Measure some passes of the target and some steps of training, which leave the head of no use."""
    prefill, answers = _generate(generator, generator.llm.engine.target.n_seq)
    _, alone = _generate(generator, 1)
    training = _train(head, settings, max_tokens)
    unit = 1 if sys.platform == "darwin" else 1024
    return Speeds(
        prefill=prefill,
        answers=answers,
        alone=alone,
        training=training,
        n_parameters=sum(p.numel() for p in head.parameters() if p.requires_grad),
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    )


def _generate(generator: AnswerGenerator, n_prompts: int) -> tuple[float, float]:
    """Return the rows of prompts a second in the first pass, and the tokens of answers a second in the others."""
    rng = np.random.default_rng(0)
    n_vocab = generator.llm.engine.vocab.n_tokens
    n_prompt = max(1, min(_N_PROMPT, generator.n_prompt_max // n_prompts))
    prompts = [Prompt(i, rng.integers(0, n_vocab, n_prompt).tolist(), "model") for i in range(n_prompts)]
    times = [time.perf_counter()]

    def is_over() -> bool:
        times.append(time.perf_counter())
        return len(times) > _N_PASSES_MIN and times[-1] - times[1] > _SHORT

    samples = list(generator(prompts, _N_TOKENS, 0, is_over))
    n_rows = sum(len(sample.tokens) - sample.n_prompt for sample in samples)
    prefill = n_prompts * n_prompt / (times[1] - times[0])
    if len(times) < 3 or n_rows < 1:  # all answers ended at once
        return prefill, n_prompts / (times[1] - times[0])
    return prefill, n_rows / (times[-1] - times[1])


def _train(head: Head, settings: Settings, max_tokens: int) -> float:
    """Return the rows a second of training: in steps with one text if those take long, else in whole steps."""
    source = _RandomSamples(head, max_tokens)
    texts = source.texts(settings.batch + 2)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(head, source, texts, Path(folder), settings)

        def rate(n_texts: int) -> tuple[float, float]:
            samples = [source.get(text) for text in texts[:n_texts]]
            start = time.perf_counter()
            trainer.train_step(samples)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            return seconds, sum(len(sample.tokens) - sample.n_prompt for sample in samples) / seconds

        seconds, best = rate(1)  # torch is slower at first
        for n_texts in (1, settings.batch, settings.batch):
            if seconds * n_texts > _SHORT:
                break
            seconds, speed = rate(n_texts)
            best = max(best, speed)
    return best
