#include "planner/acceptance.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

// Variances of the weights at the start, and what each judgement adds: the less, the longer it is remembered.
constexpr float prior_curve    = 0.5f;
constexpr float step_curve     = 2e-5f;
constexpr float prior_depth    = 0.25f;
constexpr float step_depth     = 2e-5f;
constexpr float prior_best     = 2.0f;
constexpr float step_best      = 5e-5f;
constexpr float prior_other    = 0.3f;
constexpr float step_other     = 2e-5f;
constexpr float prior_sequence = 0.1f;
constexpr float step_sequence  = 1e-4f;

// A run of judgements that is this improbable (squared standard score) says that the text has changed: the sequence's
// weight is open again.
constexpr float change_score    = 12.0f;
constexpr float change_keep     = 0.9f; // per judgement
constexpr float change_variance = 0.5f;

constexpr float q_max = 0.995f; // nothing is certain: a child is always less likely than its parent

float sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

} // namespace

acceptance::acceptance(int32_t n_seq_max) : sequence_(static_cast<size_t>(n_seq_max)) {
    common_weights & common = common_.front();
    for (size_t i = 0; i < knots.size(); ++i) {
        common.curve[i] = { knots[i], prior_curve };
    }
    common.depth.fill({ 0.0f, prior_depth });
    common.bias = { { { 0.0f, prior_best }, { 0.0f, prior_other } } };
    common_.fill(common);
    for (size_t i = 0; i < sequence_.size(); ++i) {
        reset(static_cast<int32_t>(i));
    }
}

void acceptance::reset(int32_t seq_id) {
    sequence & seq = sequence_[static_cast<size_t>(seq_id)];
    seq            = { { 0.0f, prior_sequence }, 0.0f, 0.0f, seq.draw };
}

float acceptance::place_of(float p) {
    if (!(p > 0.0f)) {
        return 0.0f;
    }
    if (p >= 1.0f) { // rounding may leave it above
        return static_cast<float>(knots.size() - 1);
    }
    const float x = std::log(p / (1.0f - p));
    size_t      i = 0;
    while (i + 1 < knots.size() && x >= knots[i + 1]) {
        ++i;
    }
    if (i + 1 == knots.size() || x <= knots[i]) {
        return static_cast<float>(i);
    }
    return static_cast<float>(i) + (x - knots[i]) / (knots[i + 1] - knots[i]);
}

float acceptance::logit(float place, int32_t depth, int32_t seq_id, rank r) const {
    const auto  i     = std::min(static_cast<size_t>(place), knots.size() - 2);
    const float share = place - static_cast<float>(i);

    const sequence &       seq    = sequence_[static_cast<size_t>(seq_id)];
    const common_weights & common = common_[static_cast<size_t>(seq.draw)];
    return (1.0f - share) * common.curve[i].mean + share * common.curve[i + 1].mean +
           common.bias[static_cast<size_t>(r)].mean + common.depth[static_cast<size_t>(std::min(depth, n_depth))].mean +
           seq.own.mean;
}

float acceptance::at(float place, int32_t depth, int32_t seq_id, rank r) const {
    return std::min(sigmoid(logit(place, depth, seq_id, r)), q_max);
}

void acceptance::observe(float p, int32_t depth, int32_t seq_id, rank r, bool accepted) {
    const float place = place_of(p);
    const auto  i     = std::min(static_cast<size_t>(place), knots.size() - 2);
    const float share = place - static_cast<float>(i);

    sequence &       seq    = sequence_[static_cast<size_t>(seq_id)];
    common_weights & common = common_[static_cast<size_t>(seq.draw)];

    struct term {
        weight & w;
        float    x;
        float    step;
    };

    const std::array<term, 5> terms = { {
        { common.curve[i], 1.0f - share, step_curve },
        { common.curve[i + 1], share, step_curve },
        { common.bias[static_cast<size_t>(r)], 1.0f, r == rank::best ? step_best : step_other },
        { common.depth[static_cast<size_t>(std::min(depth, n_depth))], 1.0f, step_depth },
        { seq.own, 1.0f, step_sequence },
    } };

    const float q        = sigmoid(logit(place, depth, seq_id, r));
    const float info     = std::max(q * (1.0f - q), 1e-3f);
    float       variance = 0.0f; // of the logit
    for (const term & t : terms) {
        t.w.variance = t.w.variance + t.x * t.step;
        variance += t.x * t.x * t.w.variance;
    }
    const float error = (accepted ? 1.0f : 0.0f) - q;
    for (const term & t : terms) {
        const float k = t.w.variance * t.x / (1.0f + info * variance);
        t.w.mean += k * error;
        t.w.variance -= k * t.w.variance * t.x * info;
    }

    seq.surprise = change_keep * seq.surprise + error;
    seq.expected = change_keep * change_keep * seq.expected + info;
    if (seq.surprise * seq.surprise > change_score * seq.expected) {
        seq.own.variance = std::max(seq.own.variance, change_variance);
        seq.surprise     = 0.0f;
    }
}

} // namespace eagle3
