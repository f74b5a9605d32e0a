"""Checks that a pair fits and can be loaded, and how fast drafting with it would be here."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._core import CostCurve, local_accelerators, read_target
from ..draft.costs import Costs, DraftCosts, best_chain
from ..draft.kinds.mtp import why_no_block
from ..draft.siblings import advice, find_sibling
from ..engine.stats import Stats
from ..errors import Eagle3Error
from ..ggml_types import type_name
from ..llama import Eagle3Llama
from ..machine import free_memory
from ..model.batch_invariance import Loss
from ..model.pair import Pair, check_loadable
from .finding import Finding

_ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
_WORTH = 1.05  # times as fast
_FREE = DraftCosts({1: 1e-3}, {1: 1e-3})  # n-grams


@dataclass(frozen=True, slots=True)
class Prospect:
    """The speed of drafting if this share of drafted tokens is accepted."""

    acceptance: float
    n_draft: int
    speedup: float


def check_files(target: str, drafts: Sequence[str | None]) -> list[Finding]:
    """The checks with which loading begins: each header, a child process that loads it, and whether they fit.

    drafts: the drafters' files; None for the target's own block.
    """
    try:
        pair = check_loadable(target, drafts)
        sizes = [size_of(path) for path in (target, *drafts) if path is not None]
    except (Eagle3Error, OSError) as e:
        return [Finding("error", str(e))]
    info = pair.target
    text = f"target '{target}': {info.arch}, {info.n_layer} layers of width {info.n_embd}, {sizes[0] / 2**20:.0f} MiB"
    found = [Finding("ok", text)]
    if not drafts:
        why_not = why_no_block(info)
        if not why_not:
            return [*found, Finding("ok", "no head: the block for multi-token prediction in the target's file drafts")]
        if info.n_layer_nextn > 0:
            found.append(Finding("note", f"the block for multi-token prediction in the file is not used: {why_not}"))
        if info.why_no_text:
            return [*found, Finding("note", f"nothing is drafted: {info.why_no_text}")]
        no_head = f" (no head can: {info.why_no_target})" if info.why_no_target else ""
        return [*found, Finding("note", f"n-grams alone draft here{no_head}", advice(info, sizes[0]))]
    text = f"{_describe(pair)}, {sum(sizes[1:]) / 2**20:.0f} MiB"
    gpus = [device.memory[0] for device in local_accelerators()]
    memory = judge_memory(sum(sizes), free_memory(), sum(gpus) if gpus else None)
    warned = [Finding("warning", d.vocabulary.warning) for d in pair.drafts if d.vocabulary.warning]
    return [*found, Finding("ok", text), Finding("ok", "they fit"), *warned, *memory]


def _describe(pair: Pair) -> str:
    """The drafters' names."""
    reads = f", reads {list(pair.boundaries)}" if pair.boundaries else ""
    return " and ".join(f"{d.describe()}{f' ({d.note})' if d.note else ''}" for d in pair.drafts) + reads


def size_of(path: str) -> int:
    """Bytes of a model, all shards together if it is the first one."""
    found = re.fullmatch(r"(.+)-00001-of-(\d{5})\.gguf", Path(path).name)
    shards = (
        [Path(path)] if found is None else Path(path).parent.glob(f"{glob.escape(found[1])}-?????-of-{found[2]}.gguf")
    )
    return sum(shard.stat().st_size for shard in shards)


def judge_memory(n_bytes: int, n_free: int | None, n_free_on_gpus: int | None) -> list[Finding]:
    """Whether the weights fit into memory.

    n_free: free bytes of host memory, None if not known. n_free_on_gpus: of all GPUs, None if there are none.
    """
    if n_free_on_gpus is not None:
        if n_bytes <= n_free_on_gpus:
            return []
        text = f"{n_free_on_gpus / 2**30:.1f} GiB on the GPU are free: they do not have room there"
        advice = "-ngl N puts a part of the layers there, -ngld 0 leaves the head on the CPU; or take a smaller type"
    elif n_free is None or n_bytes <= n_free:
        return []
    else:
        text = f"{n_free / 2**30:.1f} GiB of memory are free: every pass would read them from the disk"
        advice = "take a smaller type, such as Q4_K_M, or a smaller model"
    return [Finding("warning", f"the weights take {n_bytes / 2**30:.1f} GiB, {text}", advice)]


def check_loaded(llm: Eagle3Llama, costs: Costs | None) -> list[Finding]:
    """Describe a loaded pair, and whether its drafter pays.

    costs: measured here; None if they were not measured.
    """
    converted = "" if llm.draft_type is None else f"; head converted to {type_name(llm.draft_type)}"
    kind = llm.target.rollback_kind
    found = [Finding("ok", f"loaded: {llm.loaded.where}{converted}; rejected tokens go by {kind}")]
    if kind == "checkpoint":
        text = "after a rejected draft this target evaluates accepted tokens once more: drafts pay less than elsewhere"
        found.append(Finding("note", text))
    if costs is None:
        remedy = "doctor --measure, or llama-cpp-eagle3 calibrate; the first generation does it too"
        return [*found, Finding("note", "what passes cost here was not measured yet", remedy)]
    if costs.doubt:
        text = f"something else ran while costs were measured: {costs.doubt}"
        return [*found, Finding("warning", text, "doctor --measure again, when the machine is idle")]
    if costs.was_busy:
        text = f"other programs had {costs.contention:.0%} of the processors' time while costs were measured"
        found.append(Finding("note", text, "doctor --measure again, when the machine is idle"))
    best = prospects(costs, [d.is_parallel for d in llm.drafters])[-1]
    if best.speedup < _WORTH:
        text, one = "drafting does not pay here, even with a drafter that is nearly always right", min(costs.target)
        if four := costs.target.get(4):
            ratio = four / costs.target[one]
            text += f": a pass over 4 rows takes {ratio:.1f} times as long as one over a single row"
        remedy = "other types of the target (Q4_0, Q8_0) and -t may have cheaper passes over several rows"
        found.append(Finding("warning", text, f"{remedy}; small models gain least"))
    return found if llm.drafters else [*found, *_of_sibling(llm, costs)]


def _of_sibling(llm: Eagle3Llama, costs: Costs) -> list[Finding]:
    """What the small model of its family would bring to a target without a drafter, by measured costs."""
    sibling, curve = find_sibling(read_target(llm.model_path)), CostCurve(costs.target)
    if sibling is None:
        return []
    found = sibling.brings(size_of(llm.model_path), lambda n: curve.at(n) / curve.at(1))
    text = f"{found.speedup:.1f} times plain decoding by these costs, with drafts of {found.n_draft}"
    if found.speedup < _WORTH:
        text = "nothing by these costs"
    return [Finding("note", f"{sibling.title} (-hfd auto) would bring {text} (computed)")]


def judge_losses(found: Sequence[Loss]) -> list[Finding]:
    """Operations that ggml computes, so that text may depend on drafts and on other sequences."""
    lost = "rows then depend on others, so that texts part where two tokens are nearly as likely"
    return [
        Finding(
            "note",
            f"ggml computes {'in prompts ' if loss.in_prompts else ''}{loss.what}, since {loss.why}: {lost}",
            loss.remedy,
        )
        for loss in found
    ]


def prospects(costs: Costs, are_parallel: Sequence[bool] = (False,)) -> list[Prospect]:
    """The speed of drafting at several acceptances, by measured costs. are_parallel: whether each drafter is.

    Without a drafter n-grams draft, which costs nothing.
    """
    drafts = list(zip(costs.drafts, are_parallel, strict=True)) if costs.drafts else [(_FREE, False)]
    found = [(a, max((best_chain(costs, d, a, p) for d, p in drafts), key=lambda o: o.speed)) for a in _ACCEPTANCES]
    return [Prospect(a, o.n_draft, o.speedup) for a, o in found]


@dataclass(frozen=True, slots=True)
class Trial:
    """One text, greedy, with and without drafts."""

    n_tokens: int
    plain: float | None
    """Tokens per second."""
    drafted: float | None
    acceptance: float
    mean_length: float
    why_not: str


def try_text(llm: Eagle3Llama, prompt: str, n_tokens: int, n_times: int = 2) -> Trial:
    """Complete a prompt, as a chat if the model has a template, in turn with its usual drafts and without drafts.

    The fastest of `n_times` runs each counts.
    """
    settings = llm.draft, llm.draft_n_max
    drafted: list[Stats] = []
    plain: list[Stats] = []
    for _ in range(n_times):
        drafted.append(_generate(llm, prompt, n_tokens))
        llm.draft, llm.draft_n_max = "chain", 0
        try:
            with _quiet():  # which would log that nothing is drafted
                plain.append(_generate(llm, prompt, n_tokens))
        finally:
            llm.draft, llm.draft_n_max = settings
    best = max(drafted, key=lambda stats: stats.tokens_per_second or 0.0)
    return Trial(
        best.tokens,
        max(stats.tokens_per_second or 0.0 for stats in plain) or None,
        best.tokens_per_second,
        best.draft_acceptance_rate,
        best.mean_acceptance_length,
        best.why_not_drafted,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("llama_cpp_eagle3")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _generate(llm: Eagle3Llama, prompt: str, n_tokens: int) -> Stats:
    llm.reset()
    options: dict[str, Any] = {"max_tokens": n_tokens, "temperature": 0.0}
    if "tokenizer.chat_template" in llm.metadata:
        llm.create_chat_completion([{"role": "user", "content": prompt}], **options)
    else:
        llm.create_completion(prompt, **options)
    return llm.last_stats


def judge_trial(trial: Trial) -> list[Finding]:
    """Whether generation was faster with drafts."""
    if not trial.plain or not trial.drafted:
        return [Finding("note", "the text ended at once: nothing was measured", "give another one with -p")]
    speedup = trial.drafted / trial.plain
    text = (
        f"{trial.n_tokens} tokens: {trial.plain:.1f} tokens/s without drafts, {trial.drafted:.1f} with, {speedup:.2f} "
        f"times as fast; {100 * trial.acceptance:.0f} % accepted, {trial.mean_length:.2f} tokens a pass"
    )
    if trial.why_not:
        return [Finding("note", f"{text} (nothing was drafted: {trial.why_not})")]
    if speedup < 1.0:
        return [Finding("note", text, "one text is a small sample: `bench` takes several, interleaved")]
    return [Finding("ok", text)]
