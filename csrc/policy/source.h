#pragma once

#include "drafter/draft_session.h"
#include "policy/acceptance.h"
#include "policy/payoff.h"
#include "policy/prior.h"
#include "policy/request.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace eagle3 {

// A drafter that the planner may ask, and what its graphs cost. It must outlive the planner. begin: its first graph of
// one level, over n waiting rows. step: a level of n nodes; of a parallel drafter (P-EAGLE), which drafts all levels at
// once, its first graph over one waiting row and n nodes after it.
struct priced_drafter {
    draft_session *             drafter = nullptr;
    std::shared_ptr<cost_curve> begin, step;
};

// A drafter with weights, and what is known of it: its price, how often it is right and whether it pays.
//
// The gate is an account in microseconds. It begins with the time of a few tokens. A small share of all time and the
// time that drafts really saved are added, up to a limit; the time that drafts lost is taken off. The source is asked
// while the account covers its next draft: a good one in each step, a useless one so rarely that its probes cost less
// than the share.
//
// A prompt that is dear to read is rented before it is bought: the source is not asked until its drafts are expected to
// have saved, in this text, as much time as reading takes; a text begins with a small sum if
// drafts have saved as much in earlier ones, or if the source was never asked. As these are expectations, reading is
// paid from a second account without a limit, to which the time is added that the source's drafts have really saved in
// this process.
class source {
  public:
    static constexpr int32_t n_waiting_max = 16; // waiting rows that any draft's first graph reads

    // The end of a path that may go on.
    struct tail {
        double  cum;      // probability that the path to it is accepted
        int32_t n_levels; // the greatest depth of the path
    };

    // The time that a draft was expected to take, that it took on the drafter's clock, the part of that for reading a
    // prompt, and the time on our own clock.
    struct spent {
        float  expected_us = 0.0f;
        double draft_us = 0.0, read_us = 0.0, own_us = 0.0;
    };

    source(priced_drafter priced, size_t index, const payoff & value);

    // What other processes may begin with, if it was ever asked; and beginning with it, before anything is drafted.
    // Throws std::invalid_argument for numbers that cannot be.
    std::optional<prior> known() const;
    void                 begin_with(const prior & p);

    // Begins a new text in a sequence.
    void reset(llama_seq_id seq_id);

    // The microseconds of a chain for each sequence if n_rows rows wait, and of one more level of n_nodes nodes.
    float chain_us(int32_t n_rows, int32_t n_levels, int32_t n_seqs) const;
    float level_us(int32_t n_nodes) const { return is_parallel ? 0.0f : step->at(n_nodes); }

    // Draft for the sequences in `asked`, see draft_session.
    void begin(int32_t top_k, int32_t n_steps);
    void expand(const std::vector<int32_t> & nodes, int32_t top_k);

    // The most that a step is expected to be worth if the source's best tokens are appended to these paths, for 1, 2,
    // ... n_ahead levels after `depth`, beside candidates with these gains. cost: the price of n levels; goes_on: see
    // payoff; n_best: the number of levels that is worth most.
    float best_ahead(std::vector<tail> tails, std::vector<float> gains, int32_t depth, int32_t n_ahead, bool goes_on,
                     const std::function<float(int32_t)> & cost, int32_t & n_best) const;

    // Could the source save time if it were always right?
    bool can_pay(int32_t n_seqs, int32_t n_rows_extra, int32_t n_max) const;

    int32_t n_waiting() const; // rows that the first graph evaluates for `asked`

    // Does reading n_rows_dear rows take longer than a token of the target?
    bool is_dear() const { return row_us() * n_rows_dear > value_.target->at(1); }

    bool is_bought(llama_seq_id seq_id) const {
        return debt_us(seq_id) <= std::min(saved_us[static_cast<size_t>(seq_id)], account_us);
    }

    // The microseconds for reading the waiting rows beyond those that the first graph of any draft evaluates.
    float debt_us(llama_seq_id seq_id) const;

    // Did its last draft for n_seqs sequences leave something in the account? If not, it is only probed.
    bool is_open(int32_t n_seqs) const { return gates_[static_cast<size_t>(n_seqs)].is_open; }

    // Does the account cover the next draft?
    bool can_ask(int32_t n_seqs) const;

    // The tokens that its steps give beyond plain ones, 0 while the gate is closed.
    float worth(int32_t n_seqs) const { return is_open(n_seqs) ? worth_ : 0.0f; }

    // Adds the share of a step's time to the accounts.
    void earn(int32_t n_seqs, double t_us);

    // Tells what its draft gave. value: tokens beyond plain decoding; t_saved: microseconds saved beyond what the best
    // other source would have; charge: how often the gate's account counts them.
    void gain(int32_t n_seqs, float value, double t_saved, float charge);

    draft_session * const             drafter;
    const std::shared_ptr<cost_curve> first, step; // see priced_drafter
    const size_t                      index;       // among all sources
    const bool                        is_parallel;

    acceptance                 accepted;
    std::vector<draft_request> asked;            // the sequences that it drafts for in this step, if it is asked
    spent                      took;             // in this step
    int64_t                    i_asked = -1;     // the last step in which it was asked
    std::vector<float>         saved_us;         // [seq_id]: expected savings of its drafts in this text
    float                      account_us;       // what reading prompts may cost
    double                     t_saved_us = 0.0; // what its drafts have really saved; negative: lost

  private:
    static constexpr int32_t n_rows_dear = 32; // see is_dear

    struct gate {
        float account_us;
        bool  is_open;
    };

    template <typename F>
    double timed(F && call); // calls the drafter; returns the microseconds on its clock

    float row_us() const { return row_us_ > 0.0f ? row_us_ : first->at(n_waiting_max) / n_waiting_max; }

    const payoff & value_;
    // What the drafts of a sequence's text have really saved, if there were any.
    struct text {
        double saved_us = 0.0;
        bool   drafted  = false;
    };

    // The mean of what texts saved, once this one has ended too.
    float mean_with(const text & t) const;

    // What a text begins with: that its drafts will save so much is expected of it.
    float credit_us() const;

    std::vector<gate> gates_;            // [number of sequences]
    std::vector<text> texts_;            // [seq_id]
    float             text_us_ = 0.0f;   // mean of what texts saved
    bool              is_new_  = true;   // nothing is known of it: it was never asked
    float             log_p_   = -0.36f; // mean log probability of its best tokens
    float             n_seen_  = 4.0f;   // tokens in that mean; the initial value counts as four
    float             worth_   = 0.0f;
    float             row_us_  = 0.0f; // time per row of reading many; 0: not seen yet
};

} // namespace eagle3
