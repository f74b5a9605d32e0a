#pragma once

#include "policy/acceptance.h"
#include "policy/payoff.h"

#include "llama.h"

#include <functional>
#include <vector>

namespace eagle3 {

// What drafting further is expected to be worth, before it is done. Each further token of a path is expected to get the
// p that the drafter's best tokens get on average.
class outlook {
  public:
    // the end of a path
    struct tail {
        float        cum;      // probability that the path up to it is accepted
        int32_t      n_levels; // as deep as the path may be
        llama_seq_id seq_id;
    };

    // trees: the second best tokens are verified too. uniform: the paths are chains of one length.
    outlook(const acceptance & accepted, const payoff & value, bool trees, bool uniform) :
        accepted_(accepted), value_(value), trees_(trees), uniform_(uniform) {}

    // the head gave its best token behind a sequence's last one this p
    void observe(float p);

    // how likely the head's best token behind a sequence's last one is accepted
    float first(llama_seq_id seq_id) const { return accepted_.at(p(), 1, seq_id, acceptance::rank::best); }

    // The most that is expected of following these paths from `depth` on, beside candidates with these gains: one
    // level, two, ... n_ahead; cost: of so many. n_best: how many levels that are.
    float best(std::vector<tail> tails, std::vector<float> gains, int32_t depth, int32_t n_ahead, bool goes_on,
               const std::function<float(int32_t)> & cost, int32_t & n_best) const;

  private:
    float p() const; // that the head's best tokens get on average

    const acceptance & accepted_;
    const payoff &     value_;
    bool               trees_, uniform_;
    float              mean_   = 0.85f; // logit of the head's best tokens
    float              n_seen_ = 4.0f;  // of them; that many stand behind the first value
};

} // namespace eagle3
