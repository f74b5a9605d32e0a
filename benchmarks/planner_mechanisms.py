"""The planner's mechanisms, for `planner.py`: how each is switched off."""

from __future__ import annotations

SWITCHES: list[tuple[str, str, str, str]] = [
    (
        "cost_curve.drift",
        "cost_curve.cpp",
        "drift_ *= std::exp(k_drift * surprise);",
        "if (on) { drift_ *= std::exp(k_drift * surprise); }",
    ),
    (
        "cost_curve.per_n",
        "cost_curve.cpp",
        "now_[n] *= std::exp(k_n * surprise);",
        "if (on) { now_[n] *= std::exp(k_n * surprise); }",
    ),
    (
        "cost_curve.faster_at_once",
        "cost_curve.cpp",
        "if (t_us < far_below * at(n))",
        "if (on && t_us < far_below * at(n))",
    ),
    (
        "cost_curve.faster_more_rows",
        "cost_curve.cpp",
        "for (int32_t m = n + 1; m <= n_max; ++m) { // more",
        "for (int32_t m = n + 1; on && m <= n_max; ++m) { // more",
    ),
    (
        "cost_curve.extrapolate",
        "cost_curve.cpp",
        "if (n >= n_last_) {\n        set_last(n);",
        "if (on && n >= n_last_) {\n        set_last(n);",
    ),
    ("outlook.learn", "outlook.cpp", "const float step = share *", "const float step = (on ? 1.0f : 0.0f) * share *"),
    ("gate.open", "gate.h", "bool open() const { return open_; }", "bool open() const { return open_ || !on; }"),
    ("gate.ask", "gate.cpp", "if (open_ || wait_ <= 0)", "if (!on || open_ || wait_ <= 0)"),
    (
        "gate.deviation",
        "gate.cpp",
        "const float gain = value / std::sqrt(std::max(variance_, variance_min));",
        "const float gain = value / (on ? std::sqrt(std::max(variance_, variance_min)) : 1.0f);",
    ),
    ("gate.expected", "gate.cpp", "(expected <= 0.0f && !surprise)", "(on && expected <= 0.0f && !surprise)"),
    (
        "price",
        "planner.cpp",
        "plain * std::max(1.0f, speedup_tokens_ / speedup_time_);",
        "plain * (on ? std::max(1.0f, speedup_tokens_ / speedup_time_) : 1.0f);",
    ),
    (
        "trials",
        "asking.cpp",
        "if (value_ngrams_ > 0.0f || n_max < n_trial ||",
        "if (!on || value_ngrams_ > 0.0f || n_max < n_trial ||",
    ),
    (
        "can_pay",
        "asking.cpp",
        "if (can_pay(n_seqs_, n_base_ - n_seqs_, n_max)) {",
        "if (!on || can_pay(n_seqs_, n_base_ - n_seqs_, n_max)) {",
    ),
    ("may_wait", "asking.cpp", "return !worth_asking(n_seqs) && ", "return on && !worth_asking(n_seqs) && "),
    ("one_in_four", "planner.cpp", "return n * 0x9E3779B9u < 1u << 30;", "return on && n * 0x9E3779B9u < 1u << 30;"),
    (
        "first_graph_steps",
        "drafting.cpp",
        "if (n_max <= 1) {\n        return 1;",
        "if (!on || n_max <= 1) {\n        return 1;",
    ),
    (
        "widths",
        "drafting.cpp",
        "width = std::min(2 * width, n_level)) {",
        "width = std::min(on ? 2 * width : n_level, n_level)) {",
    ),
    (
        "widths_narrow",
        "drafting.cpp",
        "for (size_t width = stride();;",
        "for (size_t width = on ? stride() : n_level;;",
    ),
    ("text_rate", "planner.cpp", "if (has_ngrams_ && value > 0.0f) {", "if (on && has_ngrams_ && value > 0.0f) {"),
    ("mix.against", "mix.cpp", "return q * (1.0f - other) / ", "return !on ? q : q * (1.0f - other) / "),
    (
        "mix.both",
        "mix.cpp",
        "1.0f - (1.0f - q_head) * (1.0f - q_ngram)",
        "(!on ? std::max(q_head, q_ngram) : 1.0f - (1.0f - q_head) * (1.0f - q_ngram))",
    ),
    (
        "mix.head_adds",
        "mix.cpp",
        "bool planner::head_adds() {",
        "bool planner::head_adds() { if (!on) { return true; }",
    ),
    (
        "mix.fill_up",
        "mix.cpp",
        "if (params_.uniform) {\n        fill_up();",
        "if (on && params_.uniform) {\n        fill_up();",
    ),
    (
        "acceptance.draw",
        "acceptance.h",
        "sequence_[static_cast<size_t>(seq_id)].draw = draw; }",
        "sequence_[static_cast<size_t>(seq_id)].draw = on ? draw : draw_kind::greedy; }",
    ),
]
"""(name, file, source, source with a condition `on`), for what no constant can switch off."""

MECHANISMS: dict[str, dict[str, float]] = {
    name: {name: 0.0} for name, *_ in SWITCHES if name not in ("gate.open", "gate.ask")
}
for name in ("curve", "depth", "best", "other", "sequence"):
    MECHANISMS[f"acceptance.{name}"] = {f"acceptance.prior_{name}": 1e-9, f"acceptance.step_{name}": 0.0}
MECHANISMS["acceptance"] = {
    k: v
    for name in ("curve", "depth", "best", "other", "sequence")
    for k, v in MECHANISMS[f"acceptance.{name}"].items()
} | {"acceptance.change_score": 1e9}
MECHANISMS |= {
    "gate": {"gate.open": 0.0, "gate.ask": 0.0},
    "acceptance.change": {"acceptance.change_score": 1e9},
    "acceptance.forgetting": {f"acceptance.step_{n}": 0.0 for n in ("curve", "depth", "best", "other", "sequence")},
    "cost_curve.refined": {"cost_curve.drift": 0.0, "cost_curve.per_n": 0.0},
    "cost_curve.refined at all": {
        "cost_curve.drift": 0.0,
        "cost_curve.per_n": 0.0,
        "cost_curve.faster_at_once": 0.0,
        "cost_curve.extrapolate": 0.0,
    },
    "cost_curve.surprise_max": {"cost_curve.surprise_max": 100.0},
    "gate.hopeless": {"gate.hopeless": 1.0},
    "gate.longer waits": {"gate.n_wait_max": 8.0, "gate.n_wait_text": 8.0},
    "gate.n_wait_text": {"gate.n_wait_text": 256.0},
    "gate.n_lasting": {"gate.n_lasting": 0.0},
    "gate.n_lasting inf": {"gate.n_lasting": 1e9},
    "gate.surprise": {"planner.q_surprise": 0.0},
    "other time": {"planner.rate_other": 0.0},
    "replay_share": {"planner.replay_share": 0.0},
    "share_unseen": {"planner.share_unseen": 1.0},
    "leave_waiting": {"planner.n_ready_max": 1e6},
    "leave_waiting + may_wait": {"planner.n_ready_max": 1e6, "may_wait": 0.0},
    "unroll_cost": {"drafting.rate_unroll": 0.0},
    "look_ahead 1": {"planner.n_look_ahead": 1.0},
    "look_ahead 0": {"planner.n_look_ahead": 0.0},
    "n_ngram_some": {"mix.n_ngram_some": 32.0},
}
"""Name -> what to set to switch it off."""
