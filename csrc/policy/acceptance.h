#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace eagle3 {

// How likely the target accepts a drafted token: the drafter's own probability p of it, calibrated.
//
// logit(q) = slope * logit(p) + bias + depth[d], the bias for the best of a node's siblings alone: a drafter may give
// all the same p, and have their order right. At first q is p. Each weight has a mean and a variance, which judgements
// update as a Kalman filter does (diagonal, linearized): few of them make no jumps. Variances grow a little with each
// judgement, so that old ones are forgotten.
class acceptance {
  public:
    static constexpr float q_max = 0.995f; // nothing is certain: a child is always less likely than its parent

    acceptance();

    // Probability that a node is accepted once its parent is. p: the drafter's; depth: 1, 2, ...
    float at(float p, int32_t depth, bool is_best) const;

    // a node whose parent was accepted was accepted, or not
    void observe(float p, int32_t depth, bool is_best, bool accepted);

  private:
    static constexpr int32_t n_depth = 16; // deeper nodes count as this deep

    struct weight {
        float mean, variance;
    };

    // what a node's logit is the sum of: a weight, and what it is multiplied with
    struct term {
        size_t index;
        float  x;
    };

    static std::array<term, 3> terms(float p, int32_t depth, bool is_best);

    std::array<weight, 2 + n_depth> weights_; // slope, bias, then those by depth
};

} // namespace eagle3
