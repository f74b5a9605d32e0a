#include "policy/cost_curve.h"

#include "error.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

// variances of logarithms
constexpr float noise_timing   = 0.1f * 0.1f;
constexpr float prior_drift    = 0.1f * 0.1f;
constexpr float prior_measured = 0.05f * 0.05f;
constexpr float prior_guessed  = 0.4f * 0.4f;
constexpr float step_drift     = 0.01f * 0.01f; // per timing: the drift forgets within about ten
constexpr float step_n         = 0.003f * 0.003f;
constexpr float surprise_max   = 0.5f;  // the deviation of one timing counts as this at most: it may be an interruption
constexpr float prior_per_pass = 0.03f; // standard deviation, in times of one row per 1,000 tokens
constexpr float prior_per_row  = 0.03f; // 1.5B on two cores takes 0.1; with more, noise in short texts counts as depth
constexpr float far_below      = 0.5f;  // a pass that takes less than this share shows that the estimate is wrong

} // namespace

cost_curve::cost_curve(const std::map<int32_t, double> & measured, depth_growth growth, expert_count experts) :
    measured_(measured), drift_variance_(prior_drift), growth_(growth) {
    if (measured.empty()) {
        throw std::invalid_argument("a cost curve needs at least one measured time, found none");
    }
    if (!(growth.per_pass >= 0.0f && growth.per_row >= 0.0f) || experts.n_used > experts.n || experts.n_used < 0) {
        throw std::invalid_argument(format("cost curve: expected growth >= 0 and experts of which some are used, found "
                                           "%g, %g and %d of %d",
                                           growth.per_pass, growth.per_row, experts.n_used, experts.n));
    }
    for (int32_t n = 1; n <= n_max; ++n) {
        const double share = experts.n == 0 ? 0.0 : static_cast<double>(experts.n_used) / experts.n;
        work_[n] = static_cast<float>(share > 0.0 && share < 1.0 ? experts.n * (1.0 - std::pow(1.0 - share, n)) : n);
    }
    has_experts_ = work_[2] < 2.0f * work_[1];
    variance_.fill(prior_guessed);
    for (const auto & [n, t_us] : measured) {
        if (n < 1 || n > n_max || !std::isfinite(t_us) || t_us <= 0.0) {
            throw std::invalid_argument(
                format("cost curve: expected rows in 1..%d and times > 0, found %g us for %d rows", n_max, t_us, n));
        }
        now_[n]      = static_cast<float>(t_us);
        variance_[n] = prior_measured;
        set_last(n);
    }
    const auto square = [this](float share) {
        return share * share * now_[1] * now_[1];
    };
    growth_variance_ = { square(prior_per_pass), square(prior_per_row) };
}

// Makes n the largest that was seen, and guesses the times between the last one and n, and above n.
void cost_curve::set_last(int32_t n) {
    const float below = now_[n_last_];
    for (int32_t m = n_last_ + 1; m < n; ++m) {
        const float share = (work_[m] - work_[n_last_]) / (work_[n] - work_[n_last_]);
        now_[m]           = has_experts_ && n_last_ > 0 ? below + share * (now_[n] - below) : std::max(below, now_[n]);
    }
    n_last_ = n;
    for (int32_t m = n + 1; m <= n_max; ++m) {
        now_[m] = now_[n] * work_[m] / work_[n];
    }
}

void cost_curve::observe(int32_t n, double t_us) {
    if (n < 1 || n > n_max || !std::isfinite(t_us) || t_us <= 0.0) {
        return;
    }
    const float t = at(n), surprise = std::clamp(std::log(static_cast<float>(t_us) / t), -surprise_max, surprise_max);
    if (static_cast<float>(t_us) < far_below * t) {
        observe_faster(n, static_cast<float>(t_us));
        return;
    }
    drift_variance_ += step_drift;
    variance_[n] += step_n;
    // by what share the pass gets longer if one of these does
    const float of_base = base(n) / t, of_pass = depth_ / t, of_row = of_pass * static_cast<float>(n);
    const float total  = of_base * of_base * (drift_variance_ + variance_[n]) +
                         of_pass * of_pass * growth_variance_.per_pass + of_row * of_row * growth_variance_.per_row +
                         noise_timing;
    const auto  update = [total, surprise](float share, float & variance) {
        const float k = share * variance / total;
        variance *= 1.0f - k * share;
        return k * surprise;
    };
    drift_ *= std::exp(update(of_base, drift_variance_));
    now_[n] *= std::exp(update(of_base, variance_[n]));
    growth_.per_pass = std::max(0.0f, growth_.per_pass + update(of_pass, growth_variance_.per_pass));
    growth_.per_row  = std::max(0.0f, growth_.per_row + update(of_row, growth_variance_.per_row));
    now_[1]          = std::min(now_[1], now_[n]);
    if (n >= n_last_) {
        set_last(n);
    }
}

// The earlier time was guessed, or measured while something else ran.
void cost_curve::observe_faster(int32_t n, float t_us) {
    const float share = t_us / at(n); // the times of depth may be as wrong
    growth_.per_pass *= share;
    growth_.per_row *= share;
    if (n == 1) {
        drift_ *= share; // no pass takes less than that of one row: all are faster by this share
        return;
    }
    now_[n] *= share;
    variance_[n] = prior_measured;
    for (int32_t m = 1; m < n; ++m) { // fewer rows take no longer
        now_[m] = std::min(now_[m], now_[n]);
    }
    for (int32_t m = n + 1; m <= n_max; ++m) { // m rows take no longer than n and then m - n
        now_[m] = std::min(now_[m], now_[n] + now_[m - n]);
    }
    n_last_ = std::max(n_last_, n);
}

std::map<int32_t, double> cost_curve::corrected() const {
    std::map<int32_t, double> res = measured_;
    const auto [n_most, t_most]   = *measured_.rbegin();
    for (int32_t n = n_most + 1; n <= n_last_; ++n) {
        if (variance_[n] < prior_guessed) { // in proportion at most: the machine may have been busy
            res[n] = std::min(static_cast<double>(now_[n]), t_most * n / n_most);
        }
    }
    for (auto & [n, t_us] : res) {
        t_us = std::min(t_us, static_cast<double>(now_[n]));
    }
    return res;
}

} // namespace eagle3
