"""Make the plan of a training, and its texts by that plan."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from llama_cpp_eagle3._core import read_target
from llama_cpp_eagle3.errors import Eagle3Error
from llama_cpp_eagle3.files.fingerprint import fingerprint
from llama_cpp_eagle3.files.whole_file import write_whole

from .data import Prompt, SelfPrompts, Store, Text, file_prompts
from .first_head import random_head
from .job import Job, log
from .plan import N_CUT_MIN, Plan, Work, describe, make_plan
from .probe import measure_speeds
from .rows import AnswerGenerator, cache_bytes, cache_path
from .trainer import STATE

_N_SELF = 128
"""Prompts that the target writes at once, at most."""
_N_SELF_MIN = 4
_N_IN_VAIN_MAX = 256
"""Prompts of the target's own in a row without a usable one, after which the run fails."""
_FREE_SHARE = 0.5
"""The largest share of the disk's free room that rows take without --cache DIR."""


def texts_by_plan(job: Job, boundaries: Sequence[int], store: Store) -> Plan:
    """Plan the run, or go on with its plan, and make the prompts and answers that it asks for.

    Raises:
        ValueError: the budget is too short for the shortest trial, or the disk has too little room.
    """
    plan = Plan.load(job.folder)
    if plan is not None and plan.budget == job.budget and plan.has_texts:
        return plan
    start = time.monotonic()
    generator = AnswerGenerator(
        job.target, boundaries, job.n_ctx, job.n_parallel, job.n_prompt_max, job.answer_device, **job.loading
    )
    try:
        prompts: list[Prompt] = []
        if job.files and not store.prompts:
            prompts = file_prompts(generator.llm, job.files, job.n_prompt_max, log)
        if plan is None or plan.budget != job.budget:
            n_prompts = len(prompts or store.prompts) if job.files else None
            plan = _new_plan(job, generator, boundaries, n_prompts, store, plan, start)
            plan.save(job.folder)
            start = time.monotonic()
        if prompts:
            store.add_prompts(prompts)
        if not plan.has_texts:
            spent = plan.spent
            try:
                _make_texts(job, plan, generator, store, start)
                plan.has_texts = True
            finally:
                plan.spent = spent + time.monotonic() - start
                plan.save(job.folder)
    finally:
        generator.close()
    return plan


def _new_plan(
    job: Job,
    generator: AnswerGenerator,
    boundaries: Sequence[int],
    n_prompts: int | None,
    store: Store,
    known: Plan | None,
    start: float,
) -> Plan:
    """Measure this machine's speeds, divide the budget by them, and log the plan.

    n_prompts: prompts of files, None = the target writes them; known: the plan of the same training for another budget;
    start: the time.monotonic() at which the planning began.
    """
    cache = job.rows if job.keeps_rows else None
    if known is not None:
        speeds = known.speeds
    else:
        log("measuring how fast this machine generates and trains")
        speeds = measure_speeds(generator, random_head(job), job.training, job.max_tokens)
    n_values = len(boundaries) * read_target(str(job.target)).n_embd
    work = Work(
        job.max_tokens, job.training.batch, job.n_parallel, n_prompts,
        job.n_measured, len(job.sides), min(job.n_evaluated, job.max_tokens),
        cache_bytes(1, n_values) if cache is not None else 0,
    )  # fmt: skip
    setup = time.monotonic() - start
    plan = make_plan(job.budget, work, speeds, setup + (0.0 if known is None else known.setup))
    if cache is not None and not _has_room(job, cache, boundaries, plan.n_tokens_expected, store):
        work = replace(work, row_bytes=0)
        plan = make_plan(job.budget, work, speeds, plan.setup)
    plan.spent = setup
    if known is not None:
        plan.spent += known.spent
    else:
        plan.has_texts = (job.folder / STATE).exists()  # begun by a version without plans
    log(describe(plan, work, job.folder))
    return plan


def _make_texts(job: Job, plan: Plan, generator: AnswerGenerator, store: Store, start: float) -> None:
    """Have the target answer prompts until there are enough tokens, no more time, or no more prompts."""
    until = None if plan.seconds_texts is None else start + plan.seconds_texts - plan.spent

    n_passes = 0

    def has_time() -> bool:
        return until is None or time.monotonic() < until

    def is_over() -> bool:
        nonlocal n_passes
        n_passes += 1
        return not has_time() and (len(store.texts) > 1 or n_passes > N_CUT_MIN)

    def is_enough() -> bool:
        return (plan.tokens is not None and store.n_tokens >= plan.tokens) or not (has_time() or len(store.texts) < 2)

    if is_enough():
        return
    cache = job.rows if plan.keeps_rows else None
    bar = tqdm(total=max(plan.n_tokens_expected, store.n_tokens), initial=store.n_tokens, unit="token", desc="answers",
               mininterval=2.0)  # fmt: skip
    try:
        for prompts in _prompts(job, plan, store, generator):
            n_passes = 0
            for sample in generator(prompts, job.max_tokens, job.training.seed, is_over):
                tokens = sample.tokens.tolist()
                source = store.prompts[sample.id].source
                if cache is not None:
                    sample.save(cache_path(cache, sample.id))
                store.add_text(Text(sample.id, tokens, sample.n_prompt, sample.temperature, source))
                bar.update(len(tokens) - sample.n_prompt)
                if plan.tokens is not None and store.n_tokens >= plan.tokens:
                    return
            if is_enough():
                return
    finally:
        bar.close()
    if plan.tokens is not None:
        log(
            f"{len(store.texts)} prompts gave {store.n_tokens} tokens, fewer than the {plan.tokens} that were asked for"
        )


def _prompts(job: Job, plan: Plan, store: Store, generator: AnswerGenerator) -> Iterator[list[Prompt]]:
    """Yield the prompts without an answer, then new ones of the target's own, without end."""
    if left := store.unanswered():
        yield left
    if job.files:
        return
    own = SelfPrompts(generator.llm, job.n_ctx, job.training.seed, store.prompts)
    n_in_vain = 0
    while True:
        n_missing = (plan.n_tokens_expected - store.n_tokens) // job.max_tokens
        n = min(_N_SELF, max(_N_SELF_MIN, n_missing))
        log(f"the target writes {n} prompts")
        prompts = own.block(len(store.prompts), n, n_in_vain)
        n_in_vain = 0 if prompts else n_in_vain + n
        if n_in_vain >= _N_IN_VAIN_MAX:
            raise Eagle3Error(
                f"the target made up {n_in_vain} prompts of which none can be used: they are all the same, or never "
                "end. Give prompts with -f"
            )
        if prompts:
            store.add_prompts(prompts)
            yield prompts


def _has_room(job: Job, cache: Path, boundaries: Sequence[int], n_tokens: int, store: Store) -> bool:
    """Whether the disk has room for the rows of n_tokens of answers; notes in the folder which target they are of.

    Raises:
        ValueError: the folder of --cache has no room, or holds rows of another target or other boundaries.
    """
    info = read_target(str(job.target))
    n_values = len(boundaries) * info.n_embd
    about = {"target": fingerprint(str(job.target)), "boundaries": list(boundaries)}
    path = cache / "about.json"
    if path.exists() and json.loads(path.read_text()) != about:
        raise ValueError(
            f"--cache: '{cache}' holds rows of another target or of other boundaries than {list(boundaries)} of "
            f"'{job.target}': name another folder"
        )
    n_known = sum(len(text.tokens) for text in store.texts)
    per_answer = n_known / store.n_tokens if store.n_tokens else 1 + 64 / job.max_tokens  # with its prompt
    size = cache_bytes(max(n_known, round(per_answer * n_tokens)), n_values)
    cache.mkdir(parents=True, exist_ok=True)
    n_there = sum(file.stat().st_size for file in cache.glob("*.safetensors"))
    free = shutil.disk_usage(cache).free
    if size - n_there > (free if job.cache is not None else _FREE_SHARE * free):
        if job.cache is not None:
            raise ValueError(
                f"--cache: '{cache}' would need {(size - n_there) / 1e9:.2f} GB more and the disk has "
                f"{free / 1e9:.2f}: ask for less (--minutes, --tokens), or --cache none"
            )
        log(
            f"rows are not kept: they would take {(size - n_there) / 1e9:.2f} GB of the {free / 1e9:.2f} that are "
            "free. The target evaluates each text again each time that it is read (--cache DIR keeps them elsewhere)"
        )
        return False
    write_whole(path, json.dumps(about) + "\n")
    log(
        f"the cache in '{cache}' grows to about {size / 1e9:.2f} GB ({cache_bytes(1, n_values)} bytes a token); "
        f"{n_there / 1e9:.2f} GB are there, {free / 1e9:.1f} GB are free"
    )
    return True
