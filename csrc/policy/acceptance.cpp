#include "policy/acceptance.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

// Variances of the weights at the start: the larger, the more the first judgements change it.
constexpr float prior_curve    = 0.5f;
constexpr float prior_depth    = 0.25f;
constexpr float prior_best     = 2.0f; // heads trained with another loss give their best tokens 0.02
constexpr float prior_other    = 0.3f;
constexpr float prior_sequence = 0.1f; // texts differ less than heads

// What each judgement adds to the variances: the less, the longer it is remembered.
constexpr float step_common   = 2e-5f;
constexpr float step_sequence = 1e-4f;

// A run of judgements that is this improbable says that the text has changed
constexpr float change_score    = 12.0f; // squared standard score: 1 of 2,000 by chance
constexpr float change_keep     = 0.9f;  // per judgement: about ten count
constexpr float change_variance = 0.5f;  // of the sequence's weight then

// logits of p where the curve has a weight; outside of them it is flat
constexpr std::array<float, 8> knots = { -5.0f, -3.0f, -1.5f, 0.0f, 1.5f, 3.0f, 5.0f, 7.0f };

float sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

// rounding may leave p above 1, and a broken drafter gives none
float bounded_logit(float p) {
    if (!(p > 0.0f)) {
        return knots.front();
    }
    return p >= 1.0f ? knots.back() : std::clamp(std::log(p / (1.0f - p)), knots.front(), knots.back());
}

} // namespace

acceptance::acceptance(int32_t n_seq_max) : sequences_(static_cast<size_t>(n_seq_max)) {
    for (int32_t kind = 0; kind < 3; ++kind) {
        for (const float knot : knots) {
            weights_.push_back({ knot, prior_curve, step_common });
        }
        weights_.push_back({ 0.0f, prior_best, step_common });
        weights_.push_back({ 0.0f, prior_other, step_common });
        weights_.insert(weights_.end(), n_depth, { 0.0f, prior_depth, step_common });
    }
    weights_.insert(weights_.end(), sequences_.size(), { 0.0f, prior_sequence, step_sequence });
}

void acceptance::reset(int32_t seq_id) {
    weights_[3 * n_common + static_cast<size_t>(seq_id)] = { 0.0f, prior_sequence, step_sequence };
    sequence & seq                                       = sequences_[static_cast<size_t>(seq_id)];
    seq.error = seq.expected = 0.0f;
}

std::array<acceptance::term, 5> acceptance::terms(float p, int32_t depth, int32_t seq_id, rank r) const {
    const float x = bounded_logit(p);
    size_t      i = 0; // x lies between this knot and the next one
    while (i + 2 < n_knots && x >= knots[i + 1]) {
        ++i;
    }
    const float  share = (x - knots[i]) / (knots[i + 1] - knots[i]);
    const size_t curve = n_common * static_cast<size_t>(sequences_[static_cast<size_t>(seq_id)].draw),
                 bias  = curve + n_knots;
    return { { { curve + i, 1.0f - share },
               { curve + i + 1, share },
               { bias + static_cast<size_t>(r), 1.0f },
               { bias + 1 + static_cast<size_t>(std::min(depth, n_depth)), 1.0f },
               { 3 * n_common + static_cast<size_t>(seq_id), 1.0f } } };
}

float acceptance::at(float p, int32_t depth, int32_t seq_id, rank r) const {
    float logit = 0.0f;
    for (const term & t : terms(p, depth, seq_id, r)) {
        logit += t.x * weights_[t.index].mean;
    }
    return std::min(sigmoid(logit), q_max);
}

void acceptance::observe(float p, int32_t depth, int32_t seq_id, rank r, bool accepted) {
    const auto all      = terms(p, depth, seq_id, r);
    float      logit    = 0.0f;
    float      variance = 0.0f; // of the logit
    for (const term & t : all) {
        weight & w = weights_[t.index];
        w.variance += t.x * w.step;
        logit += t.x * w.mean;
        variance += t.x * t.x * w.variance;
    }
    const float q     = sigmoid(logit);
    const float info  = std::max(q * (1.0f - q), 1e-3f);
    const float error = (accepted ? 1.0f : 0.0f) - q;
    for (const term & t : all) {
        weight &    w = weights_[t.index];
        const float k = w.variance * t.x / (1.0f + info * variance);
        w.mean += k * error;
        w.variance -= k * w.variance * t.x * info;
    }
    sequence & seq = sequences_[static_cast<size_t>(seq_id)];
    seq.error      = change_keep * seq.error + error;
    seq.expected   = change_keep * change_keep * seq.expected + info;
    if (seq.error * seq.error > change_score * seq.expected) {
        weight & own = weights_[all.back().index];
        own.variance = std::max(own.variance, change_variance);
        seq.error    = 0.0f;
    }
}

} // namespace eagle3
