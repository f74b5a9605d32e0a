#pragma once

#include "policy/cost_curve.h"
#include "policy/request.h"

#include <memory>
#include <vector>

namespace eagle3 {

// What a step takes and what it is worth.
//
// A step is worth the tokens that it is expected to accept, minus the price of the time by which it is longer than a
// plain one. The price of a microsecond is the current throughput: the tokens that the latest steps gave in it, and
// never fewer than plain decoding gives. So the most valuable step is the one with which tokens come fastest; no draft
// is worth 0.
class payoff {
  public:
    // target: a pass over n rows.
    payoff(std::shared_ptr<cost_curve> target, const planner_params & params);

    // A step of so many sequences, whose pass has so many rows besides one for each and the drafts.
    void set_step(int32_t n_seqs, int32_t n_rows_extra);

    // The most that verifying the best candidates is worth, and how many of them. gains: how likely each is accepted,
    // the best first; of uniform chains those of one depth together. goes_on: what is drafted will be there in the next
    // step too (n-grams), so that a second is worth what this step gives.
    float best(const std::vector<float> & gains, bool goes_on, int32_t & n_best) const;

    // what so many microseconds are worth, in tokens
    float of_time(float t_us) const { return static_cast<float>(price_) * t_us; }

    // tokens of a step beyond those of plain decoding, if drafting took what was expected
    float of_step(int32_t n_emitted, int32_t n_drafted, float t_draft_us) const;

    // tokens that plain decoding of so many sequences gives in a microsecond
    float plain(int32_t n_seqs) const { return static_cast<float>(n_seqs) / (target->at(n_seqs) + t_other_us_); }

    // the step is over
    void observe(int32_t n_emitted, int32_t n_rows, double t_draft_us, double t_verify_us, double t_other_us);

    double  price() const { return price_; }
    int32_t n_seqs() const { return n_seqs_; }

    const std::shared_ptr<cost_curve> target;
    const planner_params              params;

  private:
    int32_t n_seqs_         = 1;
    int32_t n_base_         = 1; // rows of the pass without drafts
    float   t_other_us_     = 0.0f;
    float   speedup_tokens_ = 1.0f, speedup_time_ = 1.0f; // running averages, relative to plain decoding
    double  price_ = 0.0;

    std::vector<float> t_pass_; // [n]: microseconds of a pass with n more rows
    std::vector<float> replay_; // [n]: price of a replay where a chain ends after n of its tokens; any of several
};

} // namespace eagle3
