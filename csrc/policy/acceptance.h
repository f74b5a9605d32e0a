#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace eagle3 {

// How likely the target accepts a drafted token: the drafter's own probability p of it, calibrated.
//
// logit(q) = slope * logit(p) + bias + depth[d]. Only the most probable of a node's siblings gets the bias: a drafter
// may give all siblings the same p and still order them rightly. At first q is p. Each weight has a mean and a
// variance, which a diagonal, linearized Kalman filter updates with every judgement, so that the first few cause no
// jumps. Variances grow a little with each judgement, so that old judgements are forgotten.
class acceptance {
  public:
    static constexpr float q_max = 0.995f; // nothing is certain: a child is always less likely than its parent

    static constexpr int32_t n_depth = 16; // deeper nodes count as this deep

    struct weight {
        float mean, variance;
    };

    using weights = std::array<weight, 2 + n_depth>; // slope, bias, then those by depth

    acceptance();

    // What was learned so far.
    const weights & learned() const { return weights_; }

    // Begins with what other texts have taught. Each variance is at least a share of that at the start, as these texts
    // may differ.
    void begin_with(const weights & others);

    // The probability that a node is accepted once its parent is. p: the drafter's probability; depth: 1, 2, ...
    float at(float p, int32_t depth, bool is_best) const;

    // Tells whether a node was accepted whose parent was.
    void observe(float p, int32_t depth, bool is_best, bool accepted);

  private:
    // A node's logit is the sum of weight * x over its terms.
    struct term {
        size_t index;
        float  x;
    };

    static std::array<term, 3> terms(float p, int32_t depth, bool is_best);

    weights weights_;
};

} // namespace eagle3
