"""Describe the planner's constants; `planner.py --constants --publish` makes a table of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONSTANTS: dict[str, tuple[str, str, str]] = {
    "acceptance.prior_slope": ("variance", "of how far a drafter's confidence may be trusted", "chosen"),
    "acceptance.prior_depth": ("variance", "how far levels may differ", "chosen"),
    "acceptance.prior_best": ("variance", "how far a drafter's level may be off, for its best token", "chosen"),
    "acceptance.step": ("variance / judgement", "how fast judgements are forgotten", "chosen"),
    "acceptance.share_known": ("share", "of the variances that is left when other texts were seen", "chosen"),
    "acceptance.p_least": ("probability", "and 1 minus that: nothing is told apart beyond", "chosen"),
    "acceptance.q_max": ("probability", "a child is always less likely than its parent", "derived"),
    "cost_curve.noise_timing": ("variance of a logarithm", "one timing is off by 10 %", "chosen"),
    "cost_curve.prior_drift": ("variance of a logarithm", "the machine is off by 10 % from the measuring", "chosen"),
    "cost_curve.prior_measured": ("variance of a logarithm", "a measured time is off by 5 %", "chosen"),
    "cost_curve.prior_guessed": (
        "variance of a logarithm",
        "a time between them by 40 %",
        "chosen: times are staircases",
    ),
    "cost_curve.step_drift": ("variance / timing", "the drift forgets within about ten timings", "chosen"),
    "cost_curve.step_n": ("variance / timing", "a time of its own changes slowly", "chosen"),
    "cost_curve.surprise_max": ("logarithm", "one timing says no more, whatever interrupted it", "chosen"),
    "cost_curve.prior_per_pass": (
        "standard deviation",
        "of what 1,000 tokens before it add to a pass, in times of one row",
        "chosen: by replay",
    ),
    "cost_curve.prior_per_row": (
        "standard deviation",
        "the same for each row",
        "chosen: 1.5B on two cores take 0.1, and with more, noise counts as depth in short texts",
    ),
    "cost_curve.far_below": (
        "share",
        "a pass so much faster was measured wrongly",
        "derived: nothing makes passes faster",
    ),
    "source.n_grant": ("tokens' time", "that the accounts begin with", "derived: what is promised"),
    "source.n_account": ("tokens' time", "at most: what a drafter that turns bad can waste", "chosen"),
    "source.share_time": ("share of time", "that probes may cost, and unproven prompts", "derived: what is promised"),
    "source.n_debt": ("first graphs", "by which a lost draft puts off the next one at most", "chosen: bad luck"),
    "source.n_ready": ("rows", "that wait and are not paid for before they are read", "chosen"),
    "source.rate_mean": ("share / step", "forgetting of the mean confidence, and of what a drafter gives", "chosen"),
    "source.rate_row": ("share / prompt", "forgetting of what reading a row takes", "chosen"),
    "source.rate_text": ("share / text", "forgetting of what a drafter's drafts save in a text", "chosen"),
    "source.n_curious": (
        "tokens' time",
        "for the prompt of a drafter that was never asked",
        "derived: with n_probes 3 % of the first 160 tokens",
    ),
    "source.n_probes": (
        "tokens' time",
        "for the first drafts of a drafter that reads prompts slowly",
        "derived: the same",
    ),
    "source.n_credit": ("tokens' time", "for the prompt of a drafter that saved more in earlier texts", "chosen"),
    "source.n_prompts": ("tokens' time", "at most, that earlier processes have earned for prompts", "chosen"),
    "source.n_waiting_max": ("rows", "that the first graph of a draft evaluates", "derived: what drafters take"),
    "source.n_rows_dear": ("rows", "whose reading takes longer than a token: prompts are rented then", "chosen"),
    "payoff.rate": ("share / step", "forgetting of the current speed, and of the time outside passes", "chosen"),
    "payoff.share_unseen": (
        "share",
        "of a pass over twice the rows that were measured",
        "chosen: then it is measured",
    ),
    "payoff.replay_share": (
        "share",
        "of rows evaluated again that the next draft does not pay for",
        "chosen: by replay",
    ),
    "planner.n_look_ahead": ("levels", "that are predicted", "chosen: kernels are fast at 4 and 8 rows"),
    "planner.n_ngram_first": ("tokens", "of n-grams, until so many were right", "measured: 63 at once lose 12 to 21 %"),
    "planner.n_trial": ("tokens", "of a trial", "measured: kernels get fast at four rows"),
    "planner.unverified": (
        "factor",
        "of what a draft is charged of which nothing was worth verifying",
        "chosen: random heads",
    ),
    "planner.n_idle_first": ("steps", "before the first trial", "chosen"),
    "planner.n_idle_last": ("steps", "between trials at last", "derived: three rows in 1,024 passes cost 0.3 %"),
}
"""Name -> unit, meaning, reason of the value."""


def table(values: Mapping[str, float], losses: Mapping[str, Any], n_seeds: int, sources: str) -> str:
    """Return a page of the constants. losses: by the names of `planner.variants`; sources: their hash."""
    lines = [
        "# The planner's constants",
        "",
        f"`python benchmarks/planner.py --constants --seeds {n_seeds} --publish`, of sources `{sources}`: half and "
        "double are what the planner loses with them over one scenario in five, in percent (± standard error); less "
        "than twice the error is noise.",
        "",
        "| constant | value | unit | what it stands for | reason | half | double |",
        "|---|---:|---|---|---|---:|---:|",
    ]
    for name, value in values.items():
        found = [losses[title].all for title in titles(name, value)]
        half, double = (f"{loss.mean:.2f} ± {loss.error:.2f}" for loss in found)
        lines.append(f"| `{name}` | {value:g} | {' | '.join(CONSTANTS[name])} | {half} | {double} |")
    return "\n".join(lines) + "\n"


def titles(name: str, value: float) -> tuple[str, str]:
    """Return the names of a constant's half and double."""
    return f"{name} {value:g} / 2", f"{name} {value:g} * 2"
