"""Plan a training before it starts: divide one budget by measured speeds, and estimate time, memory and disk."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from llama_cpp_eagle3.files.whole_file import write_whole

from .work_file import reading

MINUTES = 60.0
"""The default budget."""

_PLAN = "plan.json"
_REPEATS = 15.4
"""Muennighoff et al., arXiv 2305.16264: a text that is read R times again is worth R* (1 - e^(-R / R*)) new ones."""
_N_EPOCHS_MAX = 20
_N_EPOCHS_OF_STEPS = 3
"""Epochs, if only --steps is given."""
_N_PROMPT = 64
"""Estimated tokens of a prompt."""
_N_WRITTEN = 100
"""Estimated tokens that the target writes for each usable prompt of its own."""
_EVALUATION_SHARE = 0.15
"""The largest share of the budget that the evaluation at the end takes."""
_N_STEPS_MIN = 20
N_CUT_MIN = 16
"""Tokens of an answer that is cut, at least."""
_N_TEXTS_MIN, _N_SHORT = 4, 64
"""Texts of the shortest trial; and the tokens that a text has before a plan with few tokens takes more texts."""
_N_EVALUATED_MIN = 16
_LOAD_SECONDS = 5.0
_N_TOKENS_FEW = 50_000


@dataclass(frozen=True)
class Speeds:
    """Speeds and memory that were measured on this machine with this target and head; tokens and rows are answers'."""

    prefill: float
    """Rows a second of prompts, several at once."""
    answers: float
    """Tokens a second of answers, several at once, with their rows and probabilities."""
    alone: float
    """Tokens a second of one answer alone."""
    training: float
    """Rows a second that the head trains on."""
    n_parameters: int
    """The head's parameters that learn."""
    memory: int
    """Peak memory of the process until then, in bytes."""


@dataclass(frozen=True)
class Work:
    """The sizes of the work, as far as they are known beforehand."""

    max_tokens: int
    """Tokens of an answer, at most."""
    batch: int
    n_parallel: int
    n_prompts: int | None
    """The prompts of files; None = the target writes them."""
    n_measured: int
    """Held-out prompts of the evaluation at the end, at most."""
    n_sides: int
    """Ways of generation that the evaluation compares."""
    n_evaluated: int
    """Tokens of each of its answers."""
    row_bytes: int
    """Bytes of a token's rows on disk; 0 = they are not kept."""


@dataclass(frozen=True)
class Budget:
    """The budget that the user gave."""

    minutes: float | None = None
    """Minutes of the whole run; None = as long as the other two take."""
    tokens: int | None = None
    """Tokens of answers; None = as many as there is time for."""
    steps: int = 0
    """Steps of training; 0 = as many as there is time for, or as pay if no minutes are given."""


@dataclass
class Plan:
    """How a budget is divided. It lies in the work folder, so that a run that goes on keeps to it."""

    budget: Budget
    speeds: Speeds
    """The speeds that it was divided by."""
    tokens: int | None
    """Tokens of answers, at most; None = as many as there is time for."""
    steps: int
    """Steps of training; 0 = as many as there is time for."""
    epochs: float
    """Expected times that each text is read."""
    seconds_texts: float | None
    """Seconds after which no more texts are made, `setup` included; None = texts are made until `tokens` is reached."""
    seconds_evaluation: float
    n_measured: int
    """Held-out prompts of the evaluation at the end."""
    n_evaluated: int
    """Tokens of each of its answers."""
    n_tokens_expected: int
    n_steps_expected: int
    keeps_rows: bool
    setup: float
    """Seconds that loading, reading prompts and measuring took."""
    spent: float = 0.0
    """Seconds that `setup` and the prompts and answers took so far."""
    has_texts: bool = False
    """Whether all prompts and answers are there."""

    @property
    def minutes_of_training(self) -> float:
        """The budget's minutes that the texts and the evaluation at the end leave."""
        whole = 60 * (self.budget.minutes or 0.0)
        return max(whole - self.spent - self.seconds_evaluation, 0.05 * whole, 1.0) / 60

    def save(self, folder: Path) -> None:
        """Write the plan into a work folder."""
        write_whole(folder / _PLAN, json.dumps(asdict(self), indent=1) + "\n")

    @property
    def eval_every(self) -> int:
        """Steps between evaluations, unless --eval-every gives them."""
        return min(100, max(25, self.n_steps_expected // 8))

    @classmethod
    def load(cls, folder: Path) -> Plan | None:
        """Read the plan of a work folder; None = it has none."""
        path = folder / _PLAN
        if not path.exists():
            return None
        with reading(path):
            fields = json.loads(path.read_text())
            return cls(**{**fields, "budget": Budget(**fields["budget"]), "speeds": Speeds(**fields["speeds"])})


def best_epochs(seconds_new: float, seconds_again: float) -> float:
    """Return how often to read each text for the best head in a given time.

    Args:
        seconds_new: Seconds to generate a token of an answer.
        seconds_again: Seconds to train on it once.
    """

    def value(epochs: int) -> float:
        worth = 1 + _REPEATS * (1 - math.exp(-(epochs - 1) / _REPEATS))
        return worth / (seconds_new + epochs * seconds_again)

    return float(max(range(1, _N_EPOCHS_MAX + 1), key=value))


def make_plan(budget: Budget, work: Work, speeds: Speeds, setup: float = 0.0) -> Plan:
    """Divide the budget, of which `setup` seconds are spent.

    Raises:
        ValueError: the budget is too short for the shortest trial; the message names the least that suffices.
    """
    per_prompt = _N_PROMPT / speeds.prefill + (_N_WRITTEN / speeds.answers if work.n_prompts is None else 0.0)
    new = 1 / speeds.answers + per_prompt / work.max_tokens
    again = 1 / speeds.training
    if not work.row_bytes:  # the target evaluates each text again, while the head learns
        again += (1 + _N_PROMPT / work.max_tokens) / speeds.prefill
    epochs = best_epochs(new, again)
    n_most = None if work.n_prompts is None else work.n_prompts * work.max_tokens
    rows_of_step = work.batch * work.max_tokens
    n_measured, n_evaluated, n_steps_fixed, tokens = work.n_measured, work.n_evaluated, budget.steps, budget.tokens

    def evaluation() -> float:
        per_answer = n_evaluated / speeds.alone + _N_PROMPT / speeds.prefill
        return work.n_sides * (n_measured * per_answer + _LOAD_SECONDS)

    if budget.minutes is None:
        if tokens is None:
            tokens = max(work.n_parallel, math.ceil(budget.steps * work.batch / _N_EPOCHS_OF_STEPS)) * work.max_tokens
        n_tokens = tokens if n_most is None else min(tokens, n_most)
        n_steps_fixed = n_steps = budget.steps or max(_N_STEPS_MIN, math.ceil(epochs * n_tokens / rows_of_step))
        seconds_texts = None
    else:
        seconds = 60 * budget.minutes
        while n_measured > 2 and evaluation() > _EVALUATION_SHARE * seconds:
            n_measured -= 1
        while n_evaluated > _N_EVALUATED_MIN and evaluation() > _EVALUATION_SHARE * seconds:
            n_evaluated //= 2
        left = seconds - setup - evaluation()
        least = _N_TEXTS_MIN * (per_prompt + N_CUT_MIN * (1 / speeds.answers + _N_EPOCHS_OF_STEPS * again))
        if left < least:
            whole = (least + seconds - left) / 60
            raise ValueError(
                f"--minutes {budget.minutes:g}: this machine generates {speeds.answers:.1f} tokens of answers a second "
                f"and trains on {speeds.training:.0f}, and what has to be done before and after takes "
                f"{(seconds - left) / 60:.1f} minutes. The shortest trial takes about {math.ceil(10 * whole) / 10:g} "
                "minutes; a useful head takes hours"
            )
        of_steps = budget.steps * rows_of_step * again
        n_tokens = round((left - of_steps) / new if budget.steps else left / (new + epochs * again))
        n_first = work.n_parallel if work.n_prompts is None else min(work.n_parallel, work.n_prompts)
        if n_tokens < n_first * work.max_tokens:  # the first answers are cut: there is a prompt for fewer tokens
            n_first = max(_N_TEXTS_MIN, min(n_first, n_tokens // _N_SHORT))
            rest = left - of_steps - n_first * per_prompt
            n_tokens = round(rest / (1 / speeds.answers + (0 if budget.steps else epochs * again)))
            n_tokens = max(n_tokens, _N_TEXTS_MIN * N_CUT_MIN)
            new = 1 / speeds.answers + n_first * per_prompt / n_tokens
        n_tokens = min(n for n in (n_tokens, tokens, n_most) if n is not None)
        n_steps = budget.steps or max(1, int((left - n_tokens * new) / again / rows_of_step))
        seconds_texts = setup + n_tokens * new
    return Plan(
        budget, speeds, tokens, n_steps_fixed, n_steps * rows_of_step / n_tokens, seconds_texts, evaluation(),
        n_measured, n_evaluated, n_tokens, n_steps, bool(work.row_bytes), setup,
    )  # fmt: skip


def describe(plan: Plan, work: Work, folder: Path) -> str:
    """Describe what the plan will take, in lines for the log."""
    speeds = plan.speeds
    of_texts = plan.seconds_texts
    if of_texts is None:
        own = _N_WRITTEN / work.max_tokens if work.n_prompts is None else 0.0
        of_texts = plan.n_tokens_expected * (1 + own) / speeds.answers
    rows = plan.n_steps_expected * work.batch * work.max_tokens
    again = 0.0 if plan.keeps_rows else (1 + _N_PROMPT / work.max_tokens) / speeds.prefill
    training = rows * (1 / speeds.training + again)
    whole = 60 * (plan.budget.minutes or 0) or of_texts + training + plan.seconds_evaluation
    on_disk = work.row_bytes * plan.n_tokens_expected * (1 + _N_PROMPT / work.max_tokens)
    kept = f", {_size(on_disk)} of it rows (--cache none keeps none)" if plan.keeps_rows else ""
    lines = [
        f"measured here: {speeds.answers:.4g} tokens of answers a second, {work.n_parallel} at once; training on "
        f"{speeds.training:.4g} rows a second",
        f"estimate: {_time(whole)} in all",
        f"  prompts and answers {_time(of_texts)}: about {plan.n_tokens_expected:,} tokens of answers",
        f"  training            {_time(training)}: about {rows:,} rows, each text {plan.epochs:.1f} times",
        f"  evaluation          {_time(plan.seconds_evaluation)}: {plan.n_measured} held-out prompts, "
        f"{plan.n_evaluated} tokens each",
        f"  memory              about {_size(speeds.memory)}",
        f"  disk                about {_size(24 * speeds.n_parameters + on_disk)} in '{folder}'{kept}",
    ]
    if work.n_prompts is not None and plan.n_tokens_expected >= work.n_prompts * work.max_tokens:
        lines.append(f"  the {work.n_prompts} prompts are the limit: more of them would make a better head")
    if plan.n_tokens_expected < _N_TOKENS_FEW:
        lines.append(
            f"  fewer than {_N_TOKENS_FEW:,} tokens are a trial: SmolLM2's head had 1.6 tokens a step after 52,000 of "
            "them and 2.4 after 900,000"
        )
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.1f} min"


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
