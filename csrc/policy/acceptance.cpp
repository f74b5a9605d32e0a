#include "policy/acceptance.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

// Variances of the weights at the start: the larger, the more the first judgements change it.
constexpr float prior_slope    = 0.02f;
constexpr float prior_best     = 2.0f; // heads trained with another loss give their best tokens 0.02
constexpr float prior_other    = 0.3f;
constexpr float prior_depth    = 0.25f;
constexpr float prior_sequence = 0.1f; // texts differ less than drafters

// What each judgement adds to the variances: the less, the longer it is remembered.
constexpr float step_common   = 2e-5f;
constexpr float step_sequence = 1e-4f;

constexpr float p_least = 0.005f; // and 1 minus that

} // namespace

float acceptance::sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

// rounding may leave p above 1, and a broken drafter gives none
float acceptance::logit(float p) {
    p = p > p_least ? std::min(p, 1.0f - p_least) : p_least;
    return std::log(p / (1.0f - p));
}

acceptance::acceptance(int32_t n_seq_max) {
    weights_ = { { 1.0f, prior_slope, step_common },
                 { 0.0f, prior_best, step_common },
                 { 0.0f, prior_other, step_common } };
    weights_.insert(weights_.end(), n_depth, { 0.0f, prior_depth, step_common });
    weights_.insert(weights_.end(), static_cast<size_t>(n_seq_max), { 0.0f, prior_sequence, step_sequence });
}

void acceptance::reset(int32_t seq_id) {
    weights_[3 + n_depth + static_cast<size_t>(seq_id)] = { 0.0f, prior_sequence, step_sequence };
}

std::array<acceptance::term, 4> acceptance::terms(float p, int32_t depth, int32_t seq_id, rank r) {
    return { { { 0, logit(p) },
               { 1 + static_cast<size_t>(r), 1.0f },
               { 2 + static_cast<size_t>(std::min(depth, n_depth)), 1.0f },
               { 3 + n_depth + static_cast<size_t>(seq_id), 1.0f } } };
}

float acceptance::at(float p, int32_t depth, int32_t seq_id, rank r) const {
    float sum = 0.0f;
    for (const term & t : terms(p, depth, seq_id, r)) {
        sum += t.x * weights_[t.index].mean;
    }
    return std::min(sigmoid(sum), q_max);
}

void acceptance::observe(float p, int32_t depth, int32_t seq_id, rank r, bool accepted) {
    const auto all      = terms(p, depth, seq_id, r);
    float      sum      = 0.0f;
    float      variance = 0.0f; // of the sum
    for (const term & t : all) {
        weight & w = weights_[t.index];
        w.variance += w.step;
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
