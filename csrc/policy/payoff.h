#pragma once

#include "policy/cost_curve.h"
#include "policy/request.h"

#include <memory>
#include <vector>

namespace eagle3 {

// What a step costs and what it is worth.
//
// A step is worth the tokens that it is expected to accept, minus the price of the time by which it is longer than a
// step without a draft, which is worth 0. The price of a microsecond is the current throughput: the tokens per
// microsecond of the latest steps, or those of plain decoding if these are more. So the most valuable step is the one
// with which tokens come fastest.
class payoff {
  public:
    // target: the cost of a pass over n rows.
    payoff(std::shared_ptr<cost_curve> target, const planner_params & params);

    // Begins a step of n_seqs sequences, whose pass has n_rows_extra rows besides one per sequence and the drafts.
    void set_step(int32_t n_seqs, int32_t n_rows_extra);

    // The most that verifying the best candidates is worth, and n_best, the number of them. gains: see
    // candidates::gains. goes_on: the next step can draft the same (n-grams), so throughput itself is compared.
    float best(const std::vector<float> & gains, bool goes_on, int32_t & n_best) const;

    // The price of a time, in tokens.
    float of_time(float t_us) const { return static_cast<float>(price_) * t_us; }

    // What a step was worth, in tokens, if drafting took t_draft_us.
    float of_step(int32_t n_emitted, int32_t n_drafted, float t_draft_us) const;

    // The tokens per microsecond of plain decoding.
    float plain(int32_t n_seqs) const { return static_cast<float>(n_seqs) / (target->at(n_seqs) + t_other_us_); }

    // Tells what the step gave and took.
    void observe(int32_t n_emitted, int32_t n_rows, double t_draft_us, double t_verify_us, double t_other_us);

    double  price() const { return price_; }
    int32_t n_seqs() const { return n_seqs_; }

    const std::shared_ptr<cost_curve> target;
    const planner_params              params;

  private:
    int32_t n_seqs_         = 1;
    int32_t n_base_         = 1; // rows of the pass besides the drafts
    float   t_other_us_     = 0.0f;
    float   speedup_tokens_ = 1.0f, speedup_time_ = 1.0f; // running averages, relative to plain decoding
    double  price_ = 0.0;

    std::vector<float> t_pass_; // [n]: microseconds of a pass with n drafted rows
    std::vector<float> replay_; // [n]: price of the replay if n tokens of a chain are accepted; empty: none is needed
};

} // namespace eagle3
