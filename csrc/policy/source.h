#pragma once

#include "drafter/draft_session.h"
#include "policy/acceptance.h"
#include "policy/payoff.h"
#include "policy/request.h"

#include <functional>
#include <memory>
#include <vector>

namespace eagle3 {

// Is a drafter worth asking in each step?
//
// Steps with its drafts add what they gain, in standard deviations, to the credit, or take what they lose. Without
// credit the gate closes: it lets a probe through after 8 steps, then 16, up to 256. So a useless drafter costs its
// credit once, and then next to nothing. Beside another drafter a step gains what it gives beyond that one's.
class gate {
  public:
    bool open() const { return open_; }

    // what its steps give beyond plain ones, in tokens, as long as it is asked
    float worth() const { return open_ ? worth_ : 0.0f; }

    // A step begins: ask the drafter? Spends a step of the wait.
    bool ask() { return open_ || wait_-- <= 0; }

    // The step has really given `value`, in tokens, while `expected` was expected of it, and another drafter would have
    // given `rival`, 0 without one. Expectations of the best choice are too high: they only say whether to go on
    // probing, as does a surprise, something unlikely that the text agreed with. verified: something of what was
    // drafted was verified.
    void update(float value, float expected, float rival, bool verified, bool surprise);

    // a new text begins: no long waiting for it
    void new_text();

  private:
    bool    open_     = true;
    float   credit_   = 6.0f;
    float   variance_ = 1.0f; // of a step's gain
    float   worth_    = 0.0f;
    float   n_asked_  = 0.0f; // steps that worth_ is the mean of
    int32_t wait_     = 0;    // steps until the next probe
    int32_t n_wait_   = 0;    // 0: it was never closed
};

// One that the planner may ask, which must be there whenever it drafts. begin: its first graph over n rows that wait,
// with one level. step: a level of n nodes; of one that drafts all levels at once (P-EAGLE) its first graph over one
// row that waits and n nodes after it.
struct priced_drafter {
    draft_session *             drafter = nullptr;
    std::shared_ptr<cost_curve> begin, step;
};

// One that drafts with weights, and what is known of it: its price, how often it is right and whether it has paid.
class source {
  public:
    static constexpr int32_t n_waiting_max = 16; // more rows than this are not left to the first graph of a draft

    // The end of a path that may go on.
    struct tail {
        float        cum;      // probability that the path up to it is accepted
        int32_t      n_levels; // as deep as the path may be
        llama_seq_id seq_id;
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
    // level, two, ... n_ahead, each of which gets the p that its best tokens get on average. cost: of so many levels;
    // goes_on: see payoff; n_best: how many levels that are.
    float best_ahead(std::vector<tail> tails, std::vector<float> gains, int32_t depth, int32_t n_ahead, bool goes_on,
                     const std::function<float(int32_t)> & cost, int32_t & n_best) const;

    // how likely its best token after a sequence's last one is accepted
    float q_first(llama_seq_id seq_id) const { return accepted.at(p_mean(), 1, seq_id, acceptance::rank::best); }

    // Could it save time if it were always right?
    bool can_pay(int32_t n_seqs, int32_t n_rows_extra, int32_t n_max) const;

    int32_t n_waiting() const; // rows that the first graph evaluates

    // A probe evaluates few rows that wait, until one has found that all are worth it: leave out sequences with more
    void leave_waiting();

    // Does reading a prompt take as long as many tokens? Then it is rented first, and read once what its drafts would
    // have saved in this text has reached what reading takes.
    bool is_dear() const { return row_us() * n_rows_dear > value_.target->at(1); }

    bool is_bought(llama_seq_id seq_id) const {
        return debt_us(seq_id) <= std::min(saved_us[static_cast<size_t>(seq_id)], account_us);
    }

    // microseconds that reading takes what waits, but for the few rows that the first graph of any draft evaluates
    float debt_us(llama_seq_id seq_id) const;

    // A probe may be lost: probes may cost a small share of all time, so one waits until that pays for it.
    bool can_probe() const { return probe_us_ >= chain_us(n_waiting(), 1, static_cast<int32_t>(asked.size())); }

    // A step has taken so long, of which its drafts saved some. is_lost: it was a probe that the text did not agree
    // with.
    void earn(double t_us, double t_saved, bool is_lost);

    // a new text begins in this sequence
    void reset(llama_seq_id seq_id);

    gate & gate_of(int32_t n_seqs) { return gates_[static_cast<size_t>(n_seqs)]; }

    const gate & gate_of(int32_t n_seqs) const { return gates_[static_cast<size_t>(n_seqs)]; }

    draft_session * const             drafter;
    const std::shared_ptr<cost_curve> first, step; // see priced_drafter
    const size_t                      index;       // among all
    const bool                        is_parallel;

    acceptance                 accepted;
    std::vector<draft_request> asked;            // what it drafts for in this step, if it is asked
    spent                      took;             // in this step
    bool                       asks_all = false; // its last draft found that rows that wait are worth evaluating
    int64_t                    i_asked  = -1;    // the last step in which it was asked
    // [seq_id]: microseconds that its drafts would have saved in this text, had it read what waits
    std::vector<float>         saved_us;
    // Microseconds that reading prompts may cost: what its drafts have really saved in this process, a few tokens' time
    // and a small share of all. So one that is not known to be good is bought late, and a bad one never costs more.
    float                      account_us;
    double                     t_saved_us = 0.0; // what its drafts have really saved; negative: cost

  private:
    static constexpr int32_t n_rows_dear = 32; // that take longer to read than the target takes for a token

    template <typename F>
    double timed(F && call); // a call of the drafter; returns its microseconds

    float row_us() const { return row_us_ > 0.0f ? row_us_ : first->at(n_waiting_max) / n_waiting_max; }
    float p_mean() const { return acceptance::sigmoid(logit_); }
    void  observe_p();

    const payoff &    value_;
    const bool        has_trees_;        // the second best tokens are verified too, and its first graph has one level
    const float       share_level_;      // of a level's time that one more in the first graph takes
    std::vector<gate> gates_;            // [number of sequences]
    float             logit_    = 0.85f; // of the mean p of its best tokens
    float             n_seen_   = 4.0f;  // looks at p; that many stand for the first value
    float             row_us_   = 0.0f;  // that reading a row takes, of many; 0: nothing was seen yet
    float             probe_us_ = 0.0f;  // that probes may cost
};

} // namespace eagle3
