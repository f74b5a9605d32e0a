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
constexpr float surprise_max   = 0.5f; // one timing says no more than this, whatever interrupted it
constexpr float far_below      = 0.5f; // but nothing makes a pass faster than it is

} // namespace

cost_curve::cost_curve(const std::map<int32_t, double> & measured) : measured_(measured), drift_variance_(prior_drift) {
    if (measured.empty()) {
        throw std::invalid_argument("a cost curve needs at least one measured time, found none");
    }
    for (const auto & [n, t_us] : measured) {
        if (n < 1 || n > n_max || !std::isfinite(t_us) || t_us <= 0.0) {
            throw std::invalid_argument(
                format("cost curve: expected rows in 1..%d and times > 0, found %g us for %d rows", n_max, t_us, n));
        }
    }
    variance_.fill(prior_guessed);
    n_last_ = 0;
    for (const auto & [n, t_us] : measured) {
        now_[n]      = static_cast<float>(t_us);
        variance_[n] = prior_measured;
        set_last(n);
    }
}

void cost_curve::set_last(int32_t n) {
    for (int32_t m = n_last_ + 1; m < n; ++m) {
        now_[m] = std::max(now_[n_last_], now_[n]);
    }
    n_last_ = n;
    for (int32_t m = n + 1; m <= n_max; ++m) {
        now_[m] = now_[n] * static_cast<float>(m) / static_cast<float>(n);
    }
}

void cost_curve::observe(int32_t n, double t_us) {
    if (n < 1 || n > n_max || !std::isfinite(t_us) || t_us <= 0.0) {
        return;
    }
    if (t_us < far_below * at(n)) { // it was measured, or guessed, while something else ran
        if (n == 1) {
            drift_ *= static_cast<float>(t_us) / at(n); // nothing takes less than one row: all are that much faster
        } else {
            now_[n]      = static_cast<float>(t_us) / drift_;
            variance_[n] = prior_measured;
            for (int32_t m = n + 1; m <= n_max; ++m) { // more rows take no longer than these and the rest
                now_[m] = std::min(now_[m], now_[n] + now_[m - n]);
            }
            n_last_ = std::max(n_last_, n);
        }
        return;
    }
    drift_variance_ += step_drift;
    variance_[n] += step_n;
    const float surprise = std::clamp(std::log(static_cast<float>(t_us) / at(n)), -surprise_max, surprise_max);
    const float total    = drift_variance_ + variance_[n] + noise_timing;
    const float k_drift  = drift_variance_ / total;
    const float k_n      = variance_[n] / total;
    drift_ *= std::exp(k_drift * surprise);
    now_[n] *= std::exp(k_n * surprise);
    drift_variance_ *= 1.0f - k_drift;
    variance_[n] *= 1.0f - k_n;
    if (n >= n_last_) {
        set_last(n);
    }
}

std::map<int32_t, double> cost_curve::corrected() const {
    std::map<int32_t, double> res = measured_;
    const auto [n_most, t_most]   = *measured_.rbegin();
    for (int32_t n = n_most + 1; n <= n_last_; ++n) {
        if (variance_[n] < prior_guessed) { // what was seen on a busy machine is not kept
            res[n] = std::min(static_cast<double>(now_[n]), t_most * n / n_most);
        }
    }
    for (auto & [n, t_us] : res) {
        t_us = std::min(t_us, static_cast<double>(now_[n]));
    }
    return res;
}

} // namespace eagle3
