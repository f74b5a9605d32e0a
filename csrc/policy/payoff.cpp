#include "policy/payoff.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

constexpr float rate         = 1.0f / 48.0f; // of forgetting, per step
constexpr float share_unseen = 0.9f; // of the time of twice as many rows as were seen: likely n-grams then measure it
constexpr float replay_share = 0.5f; // of a replay's price: its rows often fit into a pass that the next draft pays for

} // namespace

payoff::payoff(std::shared_ptr<cost_curve> target_, const planner_params & params_) :
    target(std::move(target_)), params(params_), t_pass_(static_cast<size_t>(params.n_nodes_max) + 1),
    replay_(params.n_snapshots ? t_pass_.size() : 0) {
    set_step(1, 0);
}

void payoff::set_step(int32_t n_seqs, int32_t n_rows_extra) {
    n_seqs_ = n_seqs;
    n_base_ = n_seqs + n_rows_extra;
    price_  = static_cast<double>(plain(n_seqs)) * std::max(1.0f, speedup_tokens_ / speedup_time_);
    for (size_t n = 0; n < t_pass_.size(); ++n) {
        t_pass_[n] = target->at(n_base_ + static_cast<int32_t>(n));
    }
    const float t_plain = target->at(n_seqs);
    for (size_t n = 0; n < replay_.size(); ++n) { // of several sequences, one that replays needs a pass of its own
        const float t_again =
            n_seqs == 1 ? replay_share * (target->at(n_base_ + static_cast<int32_t>(n) + 1) - t_plain) : t_plain;
        replay_[n] = of_time(t_again);
    }
}

float payoff::best(const std::vector<float> & gains, bool goes_on, int32_t & n_best) const {
    const size_t unit   = params.uniform ? static_cast<size_t>(n_seqs_) : 1; // rows of each gain
    const size_t n      = std::min(gains.size(), (t_pass_.size() - 1) / unit);
    const auto   n_back = static_cast<size_t>(params.n_snapshots.value_or(0));
    const float  all    = static_cast<float>(n_seqs_);
    float        best = 0.0f, best_score = 0.0f, gain = 0.0f;
    n_best = 0;
    for (size_t i = 0; i < n; ++i) {
        gain += gains[i];
        if (!replay_.empty() && i >= n_back) {
            const size_t end     = i - n_back; // a chain of which so many tokens are accepted needs a replay
            const float  n_ended = (end == 0 ? all : gains[end - 1]) - gains[end];
            gain -= (n_seqs_ == 1 ? n_ended : 1.0f - std::exp(-n_ended)) * replay_[end];
        }
        const size_t n_draft = (i + 1) * unit;
        const float  t       = t_pass_[n_draft];
        const float  value   = gain - of_time(t - t_pass_[0]);
        float        score   = value;
        if (goes_on) {
            const bool is_new = n_base_ + static_cast<int32_t>(n_draft) == 2 * target->n_last();
            score             = (all + gain) / (t * (is_new ? share_unseen : 1.0f) + t_other_us_);
        }
        if (value > 0.0f && score > best_score) {
            best       = value;
            best_score = score;
            n_best     = static_cast<int32_t>(i) + 1;
        }
    }
    return best;
}

float payoff::of_step(int32_t n_emitted, int32_t n_drafted, float t_draft_us) const {
    // the extra rows count too: plain decoding has none
    const float t_more = target->at(n_base_ + n_drafted) - target->at(n_seqs_) + t_draft_us;
    return static_cast<float>(n_emitted - n_seqs_) - of_time(t_more);
}

void payoff::observe(int32_t n_emitted, int32_t n_rows, double t_draft_us, double t_verify_us, double t_other_us) {
    target->observe(n_rows, t_verify_us);
    t_other_us_ += rate * (static_cast<float>(t_other_us) - t_other_us_);
    const auto t_step = static_cast<float>(t_draft_us + t_verify_us + t_other_us);
    speedup_tokens_ += rate * (static_cast<float>(n_emitted) / static_cast<float>(n_seqs_) - speedup_tokens_);
    speedup_time_ += rate * (t_step * plain(n_seqs_) / static_cast<float>(n_seqs_) - speedup_time_);
}

} // namespace eagle3
