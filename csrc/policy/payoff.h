#pragma once

#include "policy/cost_curve.h"
#include "policy/draft_costs.h"

#include <memory>
#include <optional>
#include <vector>

namespace eagle3 {

// What a step takes and what it is worth.
//
// A step is worth the tokens that it is expected to accept, minus the price of the time by which it is longer than a
// plain one. The price of a microsecond is the current throughput: the tokens that the latest steps gave in it, and
// never fewer than plain decoding gives. No draft is worth 0.
class payoff {
  public:
    // target: a pass over n rows. n_nodes_max: drafted tokens of a step. n_snapshots: of a chain of which more are
    // rejected the next pass evaluates all accepted tokens again; none: never.
    payoff(std::shared_ptr<cost_curve> target, int32_t n_nodes_max, std::optional<int32_t> n_snapshots);

    // A step of so many sequences, whose pass has so many rows besides one for each and the drafts.
    void set_step(int32_t n_seqs, int32_t n_rows_extra);

    // The most that verifying the best candidates is worth, and how many of them. gains: how likely each is accepted,
    // the best first; unit: rows of each. goes_on: what is drafted will be there in the next step too (n-grams), so
    // that a second is worth what this step gives.
    float best(const std::vector<float> & gains, int32_t unit, bool goes_on, int32_t & n_best) const;

    // Could a drafter that is always right save time, with chains of up to n_max?
    bool can_pay(const draft_costs & drafting, int32_t n_seqs, int32_t n_rows_extra, int32_t n_max) const;

    // what so many microseconds are worth, in tokens
    float of_time(float t_us) const { return static_cast<float>(price_) * t_us; }

    // tokens of a step beyond those of plain decoding, if drafting took what was expected
    float of_step(int32_t n_emitted, int32_t n_drafted, float t_draft_us) const;

    // the step is over
    void observe(int32_t n_emitted, int32_t n_rows, double t_draft_us, double t_verify_us, double t_other_us);

    double  price() const { return price_; }
    int32_t n_seqs() const { return n_seqs_; }
    int32_t n_nodes_max() const { return static_cast<int32_t>(cost_.size()) - 1; }

    const std::shared_ptr<cost_curve> target;

  private:
    int32_t n_snapshots_; // as many as a chain can have: nothing is evaluated again
    int32_t n_seqs_         = 1;
    int32_t n_base_         = 1; // rows of the pass without drafts
    float   t_other_us_     = 0.0f;
    float   speedup_tokens_ = 1.0f, speedup_time_ = 1.0f; // running averages, relative to plain decoding
    double  price_ = 0.0;

    std::vector<float> cost_;   // [n]: price of n more rows
    std::vector<float> t_pass_; // [n]: microseconds of a pass with n more rows
    std::vector<float>
        replay_; // [n]: price of a replay where a chain ends after n of its tokens; any of several chains
};

} // namespace eagle3
