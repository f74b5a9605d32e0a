"""`llama-cpp-eagle3 train` from start to end: texts, hidden states, training, the head's file, evaluation."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import llama_cpp
import torch

from llama_cpp_eagle3.errors import Eagle3Error
from llama_cpp_eagle3.files.whole_file import output_path

from ..convert import convert
from .build import boundaries_of
from .checkpoint import check_form, export
from .data import Store, Text
from .eagle import Head
from .first_head import choose_tokens, init_head, make_head
from .job import Job, check_folder, decided, is_begun, log
from .measure import measure_sides
from .plan import Plan
from .plot import plot_training
from .ranks import Ranks, process_group
from .rows import Extractor, LazyExtractor, Source
from .texts import texts_by_plan
from .trainer import Trainer, split
from .verdict import verdict

_N_ANSWER_MIN = 8


@dataclass(frozen=True)
class _Prepared:
    """The values that rank 0 makes for all ranks."""

    job: Job
    """The job, with a value for each argument that was left open."""
    plan: Plan
    head: Head
    texts: list[Text]


def run(job: Job) -> None:
    """Train a head from start to end, write its files and evaluate it.

    Raises:
        ValueError: an argument cannot work.
        Eagle3Error: the training ended early; its files are kept, so that it can be resumed.
    """
    if job.n_threads:
        torch.set_num_threads(job.n_threads)
    try:
        _run(job)
    except KeyboardInterrupt:
        kept = f"'{job.folder}' keeps what was made, and the same command with --resume goes on"
        log(f"interrupted: {kept if is_begun(job.folder) else 'nothing was made yet'}")
        raise


def _run(job: Job) -> None:
    start = time.monotonic()
    with process_group() as ranks:
        made = ranks.broadcast(lambda: _prepare(job))
        job, head, texts = made.job, made.head, made.texts
        place = _place(job, ranks)
        extractor = LazyExtractor(lambda: Extractor(job.target, head.cfg.boundaries, job.n_ctx, **job.loading, **place))
        try:
            trainer = Trainer(head, Source(extractor, job.cache), texts, job.folder, job.training, ranks)
            if ranks.is_first:
                log(trainer.describe())
            if job.init is not None and not trainer.log:  # what --init gave is kept if nothing better comes of it
                found = trainer.evaluate()
                if ranks.is_first:
                    log(json.dumps(found))
            trainer.run()
        finally:
            extractor.close()
    if ranks.is_first:
        _finish(job, made.plan, trainer, texts)
        log(f"the run took {(time.monotonic() - start) / 60:.1f} minutes")


def _prepare(job: Job) -> _Prepared:
    """Make the plan, the texts, and the head of the first step."""
    output_path(job.output, job.target, *job.files, job.init)
    job = decided(job)
    check_folder(job)
    head = init_head(job)
    if head is not None:
        check_form(head.cfg, job.export_form)
        if job.draft_vocab is not None and not head.cfg.own_output:
            raise ValueError(
                f"--draft-vocab {job.draft_vocab}: the head '{job.init}' has no lm_head of its own, it drafts with the "
                "target's: leave the flag out"
            )
    boundaries = boundaries_of(job.target, job.layers if head is None else head.cfg.boundaries)
    store = Store(job.folder)
    plan = texts_by_plan(job, boundaries, store)
    if not plan.keeps_rows:
        job = replace(job, cache=None)
    elif job.cache is None:
        job = replace(job, cache=job.rows)
    training = replace(
        job.training,
        steps=plan.steps,
        minutes=plan.minutes_of_training,
        eval_every=job.eval_every or plan.eval_every,
    )
    job = replace(job, training=training, n_measured=plan.n_measured, n_evaluated=plan.n_evaluated)
    texts = _usable(store.texts)
    split(texts, job.training.held_out_every)  # raises if there are too few
    torch.manual_seed(job.training.seed)
    head = make_head(job, texts) if head is None else choose_tokens(job, head, texts)
    return _Prepared(job, plan, head, texts)


def _usable(texts: Sequence[Text]) -> list[Text]:
    """Return the texts whose answer is long enough."""
    return [text for text in texts if len(text.tokens) - text.n_prompt >= _N_ANSWER_MIN]


def _place(job: Job, ranks: Ranks) -> dict[str, Any]:
    """Return the arguments that load the target of a rank onto the rank's own GPU, if there are several ranks."""
    if ranks.n_ranks == 1 or not job.n_gpu_layers:
        return {}
    return {"main_gpu": ranks.local_rank, "split_mode": llama_cpp.LLAMA_SPLIT_MODE_NONE}


def _finish(job: Job, plan: Plan, trainer: Trainer, texts: Sequence[Text]) -> None:
    """Write the best head's files, evaluate it and log the verdict."""
    best = trainer.load_best()
    log(f"best on held-out text: {json.dumps(best)}")
    plot(trainer.log, job.folder / "training.png")
    write_head(job, trainer.head)
    n_tokens = None if job.init is not None else sum(len(text.tokens) - text.n_prompt for text in texts)
    hours = (plan.spent + trainer.elapsed + plan.seconds_evaluation) / 3600
    log(evaluate_speculation(job, split(texts, job.training.held_out_every)[1], hours, n_tokens))


def plot(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the loss and the acceptance on held-out text over the rows that were trained on, if there is matplotlib."""
    try:
        plot_training(path, entries)
    except Eagle3Error as e:  # no matplotlib
        log(f"no plot: {e}")
        return
    log(f"drew '{path}'")


def write_head(job: Job, head: Head) -> None:
    """Write the head's checkpoint, and the GGUF that it is converted to."""
    folder = job.export or job.folder / "checkpoint"
    export(head, folder, job.export_form, job.target.stem)
    convert(
        folder,
        job.target,
        job.output,
        outtype=job.outtype,
        boundaries=head.cfg.boundaries if head.cfg.has_fc else None,
        norm_output=head.cfg.norm_output,
        norm_before_residual=head.cfg.norm_before_residual,
        name=job.output.stem,
    )
    log(f"wrote '{job.output}' ({job.output.stat().st_size / 1e6:.1f} MB)")


def evaluate_speculation(job: Job, held: Sequence[Text], hours: float, n_tokens: int | None) -> str:
    """Evaluate the heads by real speculation on prompts that were not trained on, and return the verdict.

    hours, n_tokens: see `verdict`.
    """
    prompts = [text.tokens[: text.n_prompt] for text in held[: job.n_measured]]
    found = measure_sides(
        job.target, job.sides, prompts, n_ctx=job.n_ctx, max_tokens=job.n_evaluated, n_max=job.training.n_max,
        at_once=not job.n_gpu_layers, **job.loading,
    )  # fmt: skip
    for name, figures in found.items():
        log(f"{name}: {figures}")
    alone, *others = found.values()
    plain = alone.tokens_per_second
    # a short measurement next to other programs may show a gain that so many passes cannot give
    speeds = [min(figures.tokens_per_second, plain * figures.tokens_per_step) for figures in others]
    *_, chains, _ = found.values()
    return verdict(
        plain, *speeds[-2:], length=chains.stats.mean_acceptance_length, n_max=job.training.n_max, hours=hours,
        n_tokens=n_tokens, before=max(speeds[:2]) if job.init is not None else None,
    )  # fmt: skip
