#include "policy/acceptance.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

// Variances of the weights at the start: the larger one is, the more the first judgements change that weight.
constexpr float prior_slope = 0.02f;
constexpr float prior_best  = 2.0f; // heads trained with another loss give their best tokens 0.02
constexpr float prior_depth = 0.25f;

constexpr float share_known = 0.1f; // of these variances that is left when other texts were seen

constexpr float step    = 2e-5f;  // what each judgement adds to the variances
constexpr float p_least = 0.005f; // smaller p count as this, those above 1 - p_least as 1 - p_least

float sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

// p may be above 1 by rounding, and NaN from a broken drafter
float logit(float p) {
    p = p > p_least ? std::min(p, 1.0f - p_least) : p_least;
    return std::log(p / (1.0f - p));
}

} // namespace

acceptance::acceptance() {
    weights_.fill({ 0.0f, prior_depth });
    weights_[0] = { 1.0f, prior_slope };
    weights_[1] = { 0.0f, prior_best };
}

std::array<acceptance::term, 3> acceptance::terms(float p, int32_t depth, bool is_best) {
    return {
        { { 0, logit(p) }, { 1, is_best ? 1.0f : 0.0f }, { 1 + static_cast<size_t>(std::min(depth, n_depth)), 1.0f } }
    };
}

void acceptance::begin_with(const weights & others) {
    for (size_t i = 0; i < weights_.size(); ++i) {
        const float least = share_known * weights_[i].variance;
        weights_[i]       = { others[i].mean, std::clamp(others[i].variance, least, weights_[i].variance) };
    }
}

float acceptance::at(float p, int32_t depth, bool is_best) const {
    float sum = 0.0f;
    for (const term & t : terms(p, depth, is_best)) {
        sum += t.x * weights_[t.index].mean;
    }
    return std::min(sigmoid(sum), q_max);
}

void acceptance::observe(float p, int32_t depth, bool is_best, bool accepted) {
    const auto all = terms(p, depth, is_best);
    float      sum = 0.0f, variance = 0.0f; // of the sum
    for (const term & t : all) {
        weight & w = weights_[t.index];
        w.variance += step;
        sum += t.x * w.mean;
        variance += t.x * t.x * w.variance;
    }
    const float q     = sigmoid(sum);
    const float info  = std::max(q * (1.0f - q), 1e-3f);
    const float error = (accepted ? 1.0f : 0.0f) - q;
    for (const term & t : all) {
        weight &    w = weights_[t.index];
        const float k = w.variance * t.x / (1.0f + info * variance);
        w.mean += k * error;
        w.variance -= k * w.variance * t.x * info;
    }
}

} // namespace eagle3
