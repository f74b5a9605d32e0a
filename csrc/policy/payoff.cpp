#include "policy/payoff.h"

#include "policy/acceptance.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

constexpr float rate_price   = 1.0f / 48.0f; // of forgetting, per step
constexpr float rate_other   = 1.0f / 16.0f; // the same
constexpr float share_unseen = 0.9f;         // of twice as many rows as were seen: tried where n-grams are likely
constexpr float replay_share = 0.5f; // rows that are evaluated again often fill a step that the next draft pays for

} // namespace

payoff::payoff(std::shared_ptr<cost_curve> target_, int32_t n_nodes_max, std::optional<int32_t> n_snapshots) :
    target(std::move(target_)), n_snapshots_(n_snapshots.value_or(n_nodes_max)),
    cost_(static_cast<size_t>(n_nodes_max) + 1), t_pass_(cost_.size()), replay_(cost_.size()) {
    set_step(1, 0);
}

void payoff::set_step(int32_t n_seqs, int32_t n_rows_extra) {
    n_seqs_              = n_seqs;
    n_base_              = n_seqs + n_rows_extra;
    const float  t_plain = target->at(n_seqs), t_base = target->at(n_base_);
    const double plain = n_seqs / (static_cast<double>(t_plain) + t_other_us_);
    price_             = plain * std::max(1.0f, speedup_tokens_ / speedup_time_);
    for (size_t n = 0; n < cost_.size(); ++n) {
        const auto  n_rows = n_base_ + static_cast<int32_t>(n);
        const float t      = target->at(n_rows);
        cost_[n]           = of_time(t - t_base);
        t_pass_[n]         = t * (n_rows == 2 * target->n_last() ? share_unseen : 1.0f);
        // sequences with other numbers of rows are a pass of their own (recurrent states)
        replay_[n]         = of_time(n_seqs == 1 ? replay_share * (target->at(n_rows + 1) - t_plain) : t_plain);
    }
}

float payoff::best(const std::vector<float> & gains, int32_t unit, bool goes_on, int32_t & n_best) const {
    const size_t n    = std::min(gains.size(), (cost_.size() - 1) / static_cast<size_t>(unit));
    float        best = 0.0f, best_score = 0.0f, gain = 0.0f;
    const auto   n_snapshots = static_cast<size_t>(n_snapshots_);
    n_best                   = 0;
    for (size_t i = 0; i < n; ++i) {
        gain += gains[i];
        if (i >= n_snapshots) {
            const size_t end     = i - n_snapshots; // chains that end there can no longer go back without a replay
            const float  n_ended = (end == 0 ? static_cast<float>(n_seqs_) : gains[end - 1]) - gains[end];
            gain -= (n_seqs_ == 1 ? n_ended : 1.0f - std::exp(-n_ended)) * replay_[end];
        }
        const size_t n_draft = (i + 1) * static_cast<size_t>(unit);
        const float  value   = gain - cost_[n_draft];
        const float  score = goes_on ? (static_cast<float>(n_seqs_) + gain) / (t_pass_[n_draft] + t_other_us_) : value;
        if (value > 0.0f && score > best_score) {
            best       = value;
            best_score = score;
            n_best     = static_cast<int32_t>(i) + 1;
        }
    }
    return best;
}

bool payoff::can_pay(const draft_costs & drafting, int32_t n_seqs, int32_t n_rows_extra, int32_t n_max) const {
    const int32_t n_base  = n_seqs + n_rows_extra;
    const float   t_plain = target->at(n_base);
    const float   plain   = static_cast<float>(n_seqs) / (t_plain + t_other_us_);
    float         gain = 0.0f, cum = 1.0f;
    for (int32_t depth = 1; depth <= n_max && n_seqs * depth < static_cast<int32_t>(cost_.size()); ++depth) {
        cum *= acceptance::q_max;
        gain += static_cast<float>(n_seqs) * cum;
        const float t_verify = target->at(n_base + n_seqs * depth) - t_plain;
        if (gain > plain * (t_verify + drafting.chain_us(n_seqs * depth, depth, n_seqs))) {
            return true;
        }
    }
    return false;
}

float payoff::of_step(int32_t n_emitted, int32_t n_drafted, float t_draft_us) const {
    // the extra rows too: plain decoding has none
    const float t_more = target->at(n_base_ + n_drafted) - target->at(n_seqs_) + t_draft_us;
    return static_cast<float>(n_emitted - n_seqs_) - of_time(t_more);
}

void payoff::observe(int32_t n_emitted, int32_t n_rows, double t_draft_us, double t_verify_us, double t_other_us) {
    target->observe(n_rows, t_verify_us);
    t_other_us_ += rate_other * (static_cast<float>(t_other_us) - t_other_us_);
    const float t_plain = target->at(n_seqs_) + t_other_us_;
    const auto  t_step  = static_cast<float>(t_draft_us + t_verify_us + t_other_us);
    speedup_tokens_ += rate_price * (static_cast<float>(n_emitted) / static_cast<float>(n_seqs_) - speedup_tokens_);
    speedup_time_ += rate_price * (t_step / t_plain - speedup_time_);
}

} // namespace eagle3
