#pragma once

#include "policy/acceptance.h"
#include "policy/candidates.h"
#include "policy/gate.h"
#include "policy/head.h"
#include "policy/payoff.h"
#include "policy/request.h"

#include <deque>
#include <memory>
#include <vector>

namespace eagle3 {

struct planner_params {
    int32_t n_max        = 16; // longest path
    int32_t n_nodes_max  = 16; // drafted tokens of one step, all sequences together
    int32_t n_leaves_max = 1;  // of all trees of a step, but for the first one of each sequence after the first
    int32_t top_k        = 1;  // candidates behind each node; 1: chains only
    int32_t n_seq_max    = 1;
    bool    uniform      = false; // chains of several sequences have one length: other batches would be cut to pieces
    // of a chain of which more are rejected than this, the next pass evaluates all accepted tokens again; none: never
    std::optional<int32_t> n_snapshots = {};
};

// A prompt that a drafter has not read: microseconds that reading takes, what its drafts would have saved in this text,
// and what reading may cost by what its drafts have really saved.
struct unread {
    float debt = 0.0f, saved = 0.0f, account = 0.0f;
};

struct planner_stats {
    int64_t              n_steps   = 0;
    int64_t              n_drafted = 0; // steps in which a head was asked
    int64_t              n_probes  = 0; // of these: although it had not been worth it lately
    int64_t              n_trials  = 0; // of these: although the costs say that nothing can pay
    int64_t              n_ngram   = 0; // steps in which something was verified that the n-gram drafter suggested
    int64_t              n_levels  = 0; // drafted behind the first
    std::vector<int64_t> n_asked;       // [source]: steps in which it was asked
    std::vector<int64_t> n_chosen;      // [i]: steps in which i drafted tokens were verified
    std::vector<unread>  unread_prompt; // [source]: of the last step that left it out
    double               t_draft_us = 0.0;
    double               t_plan_us  = 0.0; // own time
};

// Chooses what to draft, step by step, so that tokens come fastest.
//
// Candidates are ordered by the calibrated probability that the whole path to them is accepted, and the best n are
// verified, where n is the best step of the target's cost curve. A level is drafted as long as the best outcome of the
// next ones exceeds what is there by more than they cost. N-grams are free; a head is asked only if it should add to
// them, and if it was worth it lately (gate).
//
// A prompt that is dear to read is rented before it is bought: a head is not asked until what its drafts would have
// saved in this text, by what is expected of it, has reached what reading takes.
//
// Of several heads one is asked in a step. Those whose gates are open take turns, and each has to give more than the
// others do: so one stays open, and the others are probed like one that is worth nothing.
//
// What was drafted but not verified is compared with the text just as well: a probe costs a draft and nothing more.
class planner {
  public:
    // heads: what drafts, at most n_heads_max. target: a pass over n rows. Throws std::invalid_argument.
    planner(std::vector<priced_drafter> heads, std::shared_ptr<ngram_drafter> ngram, std::shared_ptr<cost_curve> target,
            const planner_params & params);

    static constexpr size_t n_heads_max = 16;

    // Draft for these sequences, which share one pass of the target, with n_rows_extra rows besides one per sequence
    // and the drafts. One draft for each; valid until the next call. Throws std::invalid_argument.
    const std::vector<draft_tree> & propose(const std::vector<draft_request> & requests, int32_t n_rows_extra);

    // The step is over: these tokens were sampled in this sequence, the last of them without a draft behind it.
    void judge(llama_seq_id seq_id, const std::vector<llama_token> & tokens);

    // Its pass had n_rows rows; t_other_us: all that is neither drafting nor the pass.
    void finish(int32_t n_rows, double t_verify_us, double t_other_us);

    // A new text begins in this sequence.
    void reset(llama_seq_id seq_id);

    // Could a head that is always right save time, with so many sequences at once? If none could, one is asked in a
    // trial now and then that says whether the costs are still what they are believed to be.
    bool can_pay(int32_t n_seqs) const;

    // whether a head is asked each step at the moment, with so many sequences at once
    bool worth_asking(int32_t n_seqs) const;

    // Heads that need not evaluate a sequence's prompt now, a bit for each: those that are dear, and those that with so
    // many sequences are not asked lately. Of these one text in four does not wait: with it they are probed.
    int32_t may_wait(llama_seq_id seq_id, int32_t n_seqs) const;

    // How likely a node is accepted once its parent is, if the n-gram drafter (or else a head) gives it p. Throws
    // std::invalid_argument.
    float accepted(float p, int32_t depth, llama_seq_id seq_id, bool by_ngram, size_t i_head) const;

    // microseconds of a chain for one sequence, one row waiting, of the head that drafts it fastest; 0 without heads
    float draft_us(int32_t n_tokens) const;

    const planner_params & params() const { return params_; }
    const payoff &         value() const { return payoff_; }

    // of the target, then of each head those of its first graphs and of its levels
    std::vector<std::shared_ptr<cost_curve>> costs() const;

    planner_stats stats;

  private:
    struct sequence {
        llama_token id_last   = -1;
        int32_t     at        = -1;    // the text has come this far along judged_
        bool        open      = false; // and may go on along them
        bool        is_probed = true;  // its prompt does not wait for the gate to open
    };

    struct step {
        head *  by          = nullptr; // who is asked
        int32_t n_best      = 0;       // candidates that are verified
        int32_t n_drafted   = 0;       // tokens of them
        int32_t n_emitted   = 0;
        int32_t n_levels    = 0;    // that can be drafted
        int32_t n_expand    = 0;    // nodes that may still be expanded
        float   value_ngram = 0.0f; // expected of the best drafts without a head
        float   value       = 0.0f; // and with one
        float   t_expected  = 0.0f; // of drafting
        double  t_draft_us  = 0.0;
        double  t_source_us = 0.0; // the same on our own clock
        double  t_read_us   = 0.0; // of it, reading a prompt
        bool    is_trial    = false;
        bool    is_surprise = false; // something unlikely was accepted
    };

    bool    has_trees() const { return params_.top_k > 1; }
    void    check(llama_seq_id seq_id) const;
    void    check(const std::vector<draft_request> & requests) const;
    void    begin_step(const std::vector<draft_request> & requests, int32_t n_rows_extra);
    void    leave_unread(head & h);
    void    choose_head(int32_t n_rows_extra);
    bool    ask_gate(head & h); // spends its wait: it may be asked of each head once a step
    float   head_adds(const head & h, int32_t n_rows) const;
    void    draft();
    int32_t begin();
    size_t  next_width(const std::vector<int32_t> & level, int32_t depth) const;
    float   best(int32_t & n_best) const;
    float   rival() const;
    void    publish(const std::vector<draft_request> & requests);

    // whether one that is always right could save time, and whether it is asked each step
    bool can_pay(const head & h, int32_t n_seqs) const { return payoff_.can_pay(h.costs, n_seqs, 0, params_.n_max); }

    bool is_worth(const head & h, int32_t n_seqs) const { return h.gate_of(n_seqs).open() && can_pay(h, n_seqs); }

    // what chains of a head are expected to be worth before anything is drafted, if so many rows wait, and how long
    // they are then
    float chains_ahead(const head & h, int32_t n_rows, std::vector<float> gains, int32_t n_levels, bool beside_ngrams,
                       int32_t & n_best) const;

    template <typename F>
    double timed(F && call); // a call of the source; returns its microseconds

    std::shared_ptr<ngram_drafter> ngram_;
    planner_params                 params_;
    payoff                         payoff_;
    acceptance                     ngram_acceptance_;
    std::deque<head>               heads_;
    candidates                     candidates_;
    trials                         trials_;
    std::vector<sequence>          sequences_;
    std::vector<candidates::node>  judged_;              // what the texts are compared with
    head *                         judged_by_ = nullptr; // who drafted it
    uint32_t                       n_texts_   = 0;       // that have begun
    step                           step_;
    std::vector<ngram_node>        suggested_;
    std::vector<draft_tree>        drafts_;
};

} // namespace eagle3
