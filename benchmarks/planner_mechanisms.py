"""The planner's mechanisms, for `planner.py`: how each is switched off."""

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
    ("gate.open", "source.h", "bool open() const { return open_; }", "bool open() const { return open_ || !on; }"),
    ("gate.ask", "source.h", "return open_ || wait_-- <= 0;", "return !on || open_ || wait_-- <= 0;"),
    (
        "gate.deviation",
        "source.cpp",
        "const float gain = more / std::sqrt(std::max(variance_, variance_min));",
        "const float gain = more / (on ? std::sqrt(std::max(variance_, variance_min)) : 1.0f);",
    ),
    ("gate.expected", "source.cpp", "(expected <= rival && !surprise)", "(on && expected <= rival && !surprise)"),
    (
        "rent_or_buy",
        "planner.cpp",
        "    if (!s.is_dear()) {\n        return;",
        "    if (!on || !s.is_dear()) {\n        return;",
    ),
    (
        "account",
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
        "found |= !is_asked ||",
        "found |= on && !is_asked ||",
    ),
    ("one_in_four", "planner.cpp", "return n * 0x9E3779B9u < 1u << 30;", "return on && n * 0x9E3779B9u < 1u << 30;"),
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
"""(name, file, source, source with a condition `on`), for what no constant can switch off."""

WEIGHTS = ("slope", "depth", "best", "other", "sequence")

MECHANISMS: dict[str, dict[str, float]] = {
    name: {name: 0.0} for name, *_ in SWITCHES if name not in ("gate.open", "gate.ask")
}
for name in WEIGHTS:
    MECHANISMS[f"acceptance.{name}"] = {f"acceptance.prior_{name}": 1e-9}
MECHANISMS["acceptance"] = {k: v for name in WEIGHTS for k, v in MECHANISMS[f"acceptance.{name}"].items()}
MECHANISMS |= {
    "gate": {"gate.open": 0.0, "gate.ask": 0.0},
    "acceptance.forgetting": {"acceptance.step_common": 0.0, "acceptance.step_sequence": 0.0},
    "cost_curve.refined": {"cost_curve.drift": 0.0, "cost_curve.per_n": 0.0},
    "cost_curve.growth": {"cost_curve.prior_per_pass": 1e-9, "cost_curve.prior_per_row": 1e-9},
    "cost_curve.surprise_max": {"cost_curve.surprise_max": 100.0},
    "gate.hopeless": {"source.hopeless": 1.0},
    "gate.longer waits": {"source.n_wait_max": 8.0},
    "gate.budget": {"source.share_probe": 1e6},
    "gate.surprise": {"planner.q_surprise": 0.0},
    "payoff.other time": {"payoff.rate_other": 0.0},
    "payoff.replay_share": {"payoff.replay_share": 0.0},
    "payoff.share_unseen": {"payoff.share_unseen": 1.0},
    "leave_waiting": {"source.n_ready_max": 1e6},
    "p_mean": {"source.rate_p": 0.0},
    "look ahead: one level": {"planner.n_look_ahead": 1.0},
    "look ahead: no levels": {"planner.n_look_ahead": 0.0},
}
"""Name -> what to set to switch it off."""
