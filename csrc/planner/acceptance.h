#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// How a sequence's tokens are chosen, as far as a draft knows it: the most probable one; drawn with noise that is
// known, so that p is that of being drawn with it; drawn with noise that is not.
enum class draw_kind : uint8_t { greedy, known, unknown };

// How likely the target says what the head says.
//
// The head's own probability p, given that the node before it was accepted, is mapped to the frequency with which such
// nodes turned out right: logit(q) = curve(logit p) + bias[r] + depth[d] + sequence[s], where the curve is piecewise
// linear and starts as the identity (the head is believed), and r tells the best child of a node from the others: a
// head may say nearly the same of all and have their order right. Every weight has a mean and a variance that
// judgements update as a Kalman filter would (diagonal, linearized), so that few of them make no jumps, and the
// variances grow again a little with each, so that old ones are forgotten, and at once when a text behaves as if it had
// changed. A sequence starts from what all of its kind of draw have in common: what the head gives 0.5 is accepted four
// times of five in greedy text, and half the time if it is drawn.
class acceptance {
  public:
    static constexpr int32_t n_depth = 16; // deeper nodes count as this deep

    explicit acceptance(int32_t n_seq_max);

    static constexpr std::array<float, 8> knots = { -5.0f, -3.0f, -1.5f, 0.0f, 1.5f, 3.0f, 5.0f, 7.0f };

    // where logit(p) lies among the knots: the lower one's index plus the share of the upper one
    static float place_of(float p);

    // of a node among its siblings
    enum class rank : uint8_t { best, other };

    // probability that a node is accepted once its parent is. p: the head's, depth: 1, 2, ...
    float operator()(float p, int32_t depth, int32_t seq_id, rank r) const { return at(place_of(p), depth, seq_id, r); }

    // the same at a place
    float at(float place, int32_t depth, int32_t seq_id, rank r) const;

    // a node whose parent was accepted was judged
    void observe(float p, int32_t depth, int32_t seq_id, rank r, bool accepted);

    // a new text begins in this sequence
    void reset(int32_t seq_id);

    // the sequence's tokens are chosen so from now on; at first they are greedy
    void set_draw(int32_t seq_id, draw_kind draw) { sequence_[static_cast<size_t>(seq_id)].draw = draw; }

  private:
    struct weight {
        float mean     = 0.0f;
        float variance = 0.0f;
    };

    struct sequence {
        weight    own;
        float     surprise = 0.0f; // sum of the latest errors
        float     expected = 0.0f; // its variance, if nothing has changed
        draw_kind draw     = draw_kind::greedy;
    };

    // of all sequences of one kind of draw
    struct common_weights {
        std::array<weight, knots.size()> curve;
        std::array<weight, n_depth + 1>  depth; // [0] is not used
        std::array<weight, 2>            bias;  // by rank
    };

    float logit(float place, int32_t depth, int32_t seq_id, rank r) const;

    std::array<common_weights, 3> common_; // by draw_kind
    std::vector<sequence>         sequence_;
};

// of a table with one value per knot
inline float interpolate(const std::array<float, acceptance::knots.size()> & table, float place) {
    const auto  i     = static_cast<size_t>(place);
    const float share = place - static_cast<float>(i);
    return share > 0.0f ? (1.0f - share) * table[i] + share * table[i + 1] : table[i];
}

} // namespace eagle3
