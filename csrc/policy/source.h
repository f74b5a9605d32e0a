#pragma once

#include "drafter/draft_session.h"
#include "policy/acceptance.h"
#include "policy/payoff.h"
#include "policy/request.h"

#include <functional>
#include <memory>
#include <vector>

namespace eagle3 {

// One that the planner may ask, which must be there whenever it drafts. begin: its first graph over n rows that wait,
// with one level. step: a level of n nodes; of one that drafts all levels at once (P-EAGLE) its first graph over one
// row that waits and n nodes after it.
struct priced_drafter {
    draft_session *             drafter = nullptr;
    std::shared_ptr<cost_curve> begin, step;
};

// One that drafts with weights, and what is known of it: its price, how often it is right and whether it pays.
//
// The gate is an account, in microseconds. It begins with the time of a few tokens, gets a small share of all time and
// what drafts really save, up to a limit, and pays what they cost. A source is asked while that covers its next draft:
// a good one in each step, a useless one so rarely that its probes cost less than the share.
//
// A prompt that is dear to read is rented before it is bought: the source is not asked until what its drafts would have
// saved in this text, by what is expected of it, has reached what reading takes. That is an expectation, so reading is
// paid from a second account, which has no limit: by what its drafts have really saved in this process.
class source {
  public:
    static constexpr int32_t n_waiting_max = 16; // more rows than this are not left to the first graph of a draft

    // The end of a path that may go on.
    struct tail {
        double  cum;      // probability that the path up to it is accepted
        int32_t n_levels; // as deep as the path may be
    };

    // What a draft took: by what was expected, on the drafter's clock, of it reading a prompt, and on our own clock.
    struct spent {
        float  expected_us = 0.0f;
        double draft_us = 0.0, read_us = 0.0, own_us = 0.0;
    };

    source(priced_drafter priced, size_t index, const payoff & value);

    // Microseconds of a chain of each sequence, if so many rows wait, and of a level of its own.
    float chain_us(int32_t n_rows, int32_t n_levels, int32_t n_seqs) const;
    float level_us(int32_t n_nodes) const { return is_parallel ? 0.0f : step->at(n_nodes); }

    // Draft for the sequences that it is asked for, see draft_session.
    void begin(int32_t top_k, int32_t n_steps);
    void expand(const std::vector<int32_t> & nodes, int32_t top_k);

    // The most that is expected of following these paths from `depth` on, beside candidates with these gains: one
    // level, two, ... n_ahead, of its best tokens. cost: of so many levels; goes_on: see payoff; n_best: how many
    // levels that are.
    float best_ahead(std::vector<tail> tails, std::vector<float> gains, int32_t depth, int32_t n_ahead, bool goes_on,
                     const std::function<float(int32_t)> & cost, int32_t & n_best) const;

    // Could it save time if it were always right?
    bool can_pay(int32_t n_seqs, int32_t n_rows_extra, int32_t n_max) const;

    int32_t n_waiting() const; // rows that the first graph evaluates

    // Does reading a prompt take as long as many tokens?
    bool is_dear() const { return row_us() * n_rows_dear > value_.target->at(1); }

    bool is_bought(llama_seq_id seq_id) const {
        return debt_us(seq_id) <= std::min(saved_us[static_cast<size_t>(seq_id)], account_us);
    }

    // microseconds that reading takes what waits, but for the few rows that the first graph of any draft evaluates
    float debt_us(llama_seq_id seq_id) const;

    // Did its last draft for so many sequences leave something in the account? Else it is only probed.
    bool is_open(int32_t n_seqs) const { return gates_[static_cast<size_t>(n_seqs)].is_open; }

    // Does the account cover the next draft?
    bool can_ask(int32_t n_seqs) const;

    // tokens that its steps give beyond plain ones, while it is asked
    float worth(int32_t n_seqs) const { return is_open(n_seqs) ? worth_ : 0.0f; }

    // a step of so many sequences has taken so long
    void earn(int32_t n_seqs, double t_us);

    // Its draft gave so many tokens more than plain decoding, which saved so many microseconds beyond what another
    // source would have. charge: how often its account gets them, or pays.
    void gain(int32_t n_seqs, float value, double t_saved, float charge);

    draft_session * const             drafter;
    const std::shared_ptr<cost_curve> first, step; // see priced_drafter
    const size_t                      index;       // among all
    const bool                        is_parallel;

    acceptance                 accepted;
    std::vector<draft_request> asked;            // what it drafts for in this step, if it is asked
    spent                      took;             // in this step
    int64_t                    i_asked = -1;     // the last step in which it was asked
    std::vector<float>         saved_us;         // [seq_id]: that its drafts would have saved in this text
    float                      account_us;       // that reading prompts may cost
    double                     t_saved_us = 0.0; // what its drafts have really saved; negative: cost

  private:
    static constexpr int32_t n_rows_dear = 32; // that take longer to read than the target takes for a token

    struct gate {
        float account_us;
        bool  is_open;
    };

    template <typename F>
    double timed(F && call); // a call of the drafter; returns its microseconds

    float row_us() const { return row_us_ > 0.0f ? row_us_ : first->at(n_waiting_max) / n_waiting_max; }

    const payoff &    value_;
    std::vector<gate> gates_;           // [number of sequences]
    float             log_p_  = -0.36f; // of its best tokens, on average
    float             n_seen_ = 4.0f;   // such tokens; so many stand for the first value
    float             worth_  = 0.0f;
    float             row_us_ = 0.0f; // that reading a row takes, of many; 0: nothing was seen yet
};

} // namespace eagle3
