#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// How a sequence's tokens are chosen, as far as a draft knows it: the most probable one; drawn with noise that is
// known, so that p is that of being drawn with it; drawn with noise that is not.
enum class draw_kind : uint8_t { greedy, known, unknown };

// How likely the target accepts a drafted token: the drafter's own probability p of it, calibrated.
//
// logit(q) = curve(logit p) + bias[rank] + depth[d] + sequence[s], where the curve is piecewise linear. At first q is
// p. Each weight has a mean and a variance, which judgements update as a Kalman filter does (diagonal, linearized): few
// of them make no jumps. Variances grow a little with each judgement, so that old ones are forgotten, and a sequence's
// at once when its text behaves as if it had changed. Weights are shared by all sequences whose tokens are chosen
// alike: a token of p 0.5 is accepted four times of five in greedy text, and half the time if it is drawn.
class acceptance {
  public:
    // of a node among its siblings: a drafter may give all the same p, and have their order right
    enum class rank : uint8_t { best, other };

    static constexpr float q_max = 0.995f; // nothing is certain: a child is always less likely than its parent

    explicit acceptance(int32_t n_seq_max);

    // Probability that a node is accepted once its parent is. p: the drafter's; depth: 1, 2, ...
    float at(float p, int32_t depth, int32_t seq_id, rank r) const;

    // a node whose parent was accepted was accepted, or not
    void observe(float p, int32_t depth, int32_t seq_id, rank r, bool accepted);

    // a new text begins in this sequence
    void reset(int32_t seq_id);

    // the sequence's tokens are chosen so from now on; at first they are greedy
    void set_draw(int32_t seq_id, draw_kind draw) { sequences_[static_cast<size_t>(seq_id)].draw = draw; }

  private:
    static constexpr size_t  n_knots  = 8;
    static constexpr int32_t n_depth  = 16; // deeper nodes count as this deep
    static constexpr size_t  n_common = n_knots + 2 + n_depth;

    struct weight {
        float mean;
        float variance;
        float step; // what a judgement adds to the variance
    };

    // what a node's logit is the sum of: a weight, and what it is multiplied with
    struct term {
        size_t index;
        float  x;
    };

    struct sequence {
        draw_kind draw     = draw_kind::greedy;
        float     error    = 0.0f; // sum of the latest errors
        float     expected = 0.0f; // its variance, if nothing has changed
    };

    std::array<term, 5> terms(float p, int32_t depth, int32_t seq_id, rank r) const;

    std::vector<weight>   weights_; // for each draw_kind curve, bias by rank and depth; then one per sequence
    std::vector<sequence> sequences_;
};

} // namespace eagle3
