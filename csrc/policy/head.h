#pragma once

#include "drafter/draft_session.h"
#include "policy/acceptance.h"
#include "policy/cost_curve.h"
#include "policy/draft_costs.h"
#include "policy/gate.h"
#include "policy/outlook.h"
#include "policy/payoff.h"
#include "policy/request.h"

#include <memory>
#include <vector>

namespace eagle3 {

// One that the planner may ask, which must be there whenever it drafts, and what its graphs cost: see draft_costs.
struct priced_drafter {
    draft_session *             drafter = nullptr;
    std::shared_ptr<cost_curve> begin, step;
};

// One that drafts with weights, and what is known of it.
struct head {
    // trees, uniform: see outlook
    head(priced_drafter source, size_t index, const payoff & value, int32_t n_seq_max, bool trees, bool uniform);

    draft_session * const      drafter;
    const size_t               index; // among all
    draft_costs                costs;
    acceptance                 accepted;
    outlook                    ahead;
    std::vector<gate>          gates;            // [number of sequences]
    bool                       asks_all = false; // its last draft found that rows that wait are worth evaluating
    int64_t                    i_asked  = -1;    // the last step in which it was asked
    std::vector<draft_request> asked;            // what it drafts for in this step, if it is asked
    // [seq_id]: microseconds that its drafts would have saved in this text, had it read what waits
    std::vector<float>         saved_us;
    // Microseconds that reading prompts may cost: what its drafts have really saved in this process, a few tokens' time
    // and a small share of all. So one that is not known to be good is bought late, and a bad one never costs more.
    float                      account_us;

    const gate & gate_of(int32_t n_seqs) const { return gates[static_cast<size_t>(n_seqs)]; }
    gate &       gate_of(int32_t n_seqs) { return gates[static_cast<size_t>(n_seqs)]; }

    int32_t n_max() const;     // tokens that may follow each other
    int32_t n_waiting() const; // rows that the first graph evaluates

    // A probe evaluates few rows that wait, until one has found that all are worth it: leave out sequences with more
    void leave_waiting();

    // Microseconds that a row takes which waits, of many; and those of a sequence, but for the few that the first graph
    // of any draft evaluates.
    float row_us() const { return row_us_ > 0.0f ? row_us_ : costs.begin->at(n_waiting_max) / n_waiting_max; }
    float debt_us(llama_seq_id seq_id) const;

    // Does reading a prompt take as long as many tokens? Then it is read once it would have been worth it.
    bool is_dear(const cost_curve & target) const;

    // a step has taken so long, of which its drafts saved some
    void earn(double t_us, double t_saved_us);

    // the first graph has evaluated so many rows more than it usually does, in so long
    void observe_rows(int32_t n_rows, double t_us);

    static constexpr int32_t n_waiting_max = 16; // more rows than this are not left to the first graph of a draft

  private:
    float row_us_ = 0.0f; // 0: nothing was seen yet
};

} // namespace eagle3
