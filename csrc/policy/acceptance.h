#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// How likely the target accepts a drafted token: the drafter's own probability p of it, calibrated.
//
// logit(q) = slope * logit(p) + bias[rank] + depth[d] + sequence[s]. At first q is p. Each weight has a mean and a
// variance, which judgements update as a Kalman filter does (diagonal, linearized): few of them make no jumps.
// Variances grow a little with each judgement, so that old ones are forgotten.
class acceptance {
  public:
    // of a node among its siblings: a drafter may give all the same p, and have their order right
    enum class rank : uint8_t { best, other };

    static constexpr float q_max = 0.995f; // nothing is certain: a child is always less likely than its parent

    explicit acceptance(int32_t n_seq_max);

    // of a probability; nothing is told apart outside of 0.005 and 0.995
    static float logit(float p);
    static float sigmoid(float x);

    // Probability that a node is accepted once its parent is. p: the drafter's; depth: 1, 2, ...
    float at(float p, int32_t depth, int32_t seq_id, rank r) const;

    // a node whose parent was accepted was accepted, or not
    void observe(float p, int32_t depth, int32_t seq_id, rank r, bool accepted);

    // a new text begins in this sequence
    void reset(int32_t seq_id);

  private:
    static constexpr int32_t n_depth = 16; // deeper nodes count as this deep

    struct weight {
        float mean, variance;
        float step; // what a judgement adds to the variance
    };

    // what a node's logit is the sum of: a weight, and what it is multiplied with
    struct term {
        size_t index;
        float  x;
    };

    static std::array<term, 4> terms(float p, int32_t depth, int32_t seq_id, rank r);

    std::vector<weight> weights_; // slope, biases by rank, by depth, then one per sequence
};

} // namespace eagle3
