"""Describe for `planner.py` how each of the planner's mechanisms is switched off."""

from __future__ import annotations

SWITCHES: list[tuple[str, str, str, str]] = [
    (
        "cost_curve.drift",
        "cost_curve.cpp",
        "drift_ *= std::exp(update(of_base, drift_variance_));",
        "if (on) { drift_ *= std::exp(update(of_base, drift_variance_)); }",
    ),
    (
        "cost_curve.per_n",
        "cost_curve.cpp",
        "now_[n] *= std::exp(update(of_base, variance_[n]));",
        "if (on) { now_[n] *= std::exp(update(of_base, variance_[n])); }",
    ),
    (
        "cost_curve.faster_at_once",
        "cost_curve.cpp",
        "if (static_cast<float>(t_us) < far_below * t)",
        "if (on && static_cast<float>(t_us) < far_below * t)",
    ),
    (
        "cost_curve.extrapolate",
        "cost_curve.cpp",
        "if (n >= n_last_) {\n        set_last(n);",
        "if (on && n >= n_last_) {\n        set_last(n);",
    ),
    (
        "gate.is_open",
        "source.h",
        "return gates_[static_cast<size_t>(n_seqs)].is_open;",
        "return !on || gates_[static_cast<size_t>(n_seqs)].is_open;",
    ),
    (
        "gate.can_ask",
        "source.cpp",
        "gates_[static_cast<size_t>(n_seqs)].account_us >= t_us;",
        "(!on || gates_[static_cast<size_t>(n_seqs)].account_us >= t_us);",
    ),
    ("rent_or_buy", "planner.cpp", "if (!s.is_dear() || std::all_of", "if (!on || !s.is_dear() || std::all_of"),
    (
        "account_of_prompts",
        "source.h",
        "std::min(saved_us[static_cast<size_t>(seq_id)], account_us);",
        "std::min(saved_us[static_cast<size_t>(seq_id)], on ? account_us : 1e30f);",
    ),
    (
        "payoff.price",
        "payoff.cpp",
        "* std::max(1.0f, speedup_tokens_ / speedup_time_);",
        "* (on ? std::max(1.0f, speedup_tokens_ / speedup_time_) : 1.0f);",
    ),
    (
        "payoff.other_time",
        "payoff.cpp",
        "t_other_us_ += rate *",
        "t_other_us_ += (on ? rate : 0.0f) *",
    ),
    (
        "gate.right",
        "planner.cpp",
        "step_.n_right > 0 ? 0.0f : unverified",
        "step_.n_right > 0 && on ? 0.0f : unverified",
    ),
    ("payoff.goes_on", "payoff.cpp", "if (goes_on) {", "if (on && goes_on) {"),
    (
        "trials",
        "planner.cpp",
        "if (!pays && step_.value_ngram <= 0.0f &&",
        "if (on && !pays && step_.value_ngram <= 0.0f &&",
    ),
    (
        "can_pay",
        "planner.cpp",
        "if (s.can_pay(n_seqs, n_rows_extra, n_max)) {",
        "if (!on || s.can_pay(n_seqs, n_rows_extra, n_max)) {",
    ),
    (
        "may_wait",
        "planner.cpp",
        "s.is_dear() || !is_worth(s.index, n_seqs) ?",
        "s.is_dear() || (on && !is_worth(s.index, n_seqs)) ?",
    ),
    ("first_graph_steps", "planner.cpp", "if (n_most > 1 &&", "if (on && n_most > 1 &&"),
    (
        "narrow_levels",
        "planner.cpp",
        "for (const size_t width : { params_.uniform ?",
        "for (const size_t width : { !on || params_.uniform ?",
    ),
    (
        "adds",
        "planner.cpp",
        "(step_.value_ngram <= 0.0f || adds(s, s.n_waiting()) > 0.0f)",
        "(!on || step_.value_ngram <= 0.0f || adds(s, s.n_waiting()) > 0.0f)",
    ),
    (
        "candidates.both",
        "candidates.cpp",
        "1.0f - (1.0f - q_source) * (1.0f - q_ngram)",
        "(!on ? std::max(q_source, q_ngram) : 1.0f - (1.0f - q_source) * (1.0f - q_ngram))",
    ),
]
"""(name, file, source, source with a condition `on`), for mechanisms that no constant switches off."""

WEIGHTS = ("slope", "depth", "best")

MECHANISMS: dict[str, dict[str, float]] = {
    name: {name: 0.0} for name, *_ in SWITCHES if name not in ("gate.is_open", "gate.can_ask")
}
for name in WEIGHTS:
    MECHANISMS[f"acceptance.{name}"] = {f"acceptance.prior_{name}": 1e-9}
MECHANISMS["acceptance"] = {k: v for name in WEIGHTS for k, v in MECHANISMS[f"acceptance.{name}"].items()}
MECHANISMS |= {
    "gate": {"gate.is_open": 0.0, "gate.can_ask": 0.0},
    "gate.unverified": {"planner.unverified": 1.0},
    "gate.debt": {"source.n_debt": 1e6},
    "acceptance.forgetting": {"acceptance.step": 0.0},
    "cost_curve.refined": {"cost_curve.drift": 0.0, "cost_curve.per_n": 0.0},
    "cost_curve.growth": {"cost_curve.prior_per_pass": 1e-9, "cost_curve.prior_per_row": 1e-9},
    "cost_curve.surprise_max": {"cost_curve.surprise_max": 100.0},
    "payoff.replay_share": {"payoff.replay_share": 0.0},
    "payoff.share_unseen": {"payoff.share_unseen": 1.0},
    "look ahead: one level": {"planner.n_look_ahead": 1.0},
    "look ahead: no levels": {"planner.n_look_ahead": 0.0},
}
"""Name -> the setting that switches the mechanism off."""
