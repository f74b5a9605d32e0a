#pragma once

#include "ngram/drafter.h"
#include "planner/acceptance.h"
#include "planner/cost_curve.h"
#include "planner/draft_source.h"
#include "planner/gate.h"
#include "planner/outlook.h"

#include <algorithm>
#include <functional>
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
    bool    replays      = false; // of a partly accepted chain the next pass evaluates all accepted tokens again
};

struct planner_stats {
    int64_t              n_rounds  = 0;
    int64_t              n_drafted = 0; // steps in which the head was asked
    int64_t              n_probes  = 0; // of these: although it had not been worth it lately
    int64_t              n_trials  = 0; // of these: although the costs say that nothing can pay
    int64_t              n_ngram   = 0; // steps in which n-grams' drafts were verified
    int64_t              n_steps   = 0; // levels drafted behind the first
    std::vector<int64_t> n_chosen;      // [i]: steps in which i drafted tokens were verified
    double               t_draft_us = 0.0;
    double               t_plan_us  = 0.0; // own time
};

// Chooses what to draft, step by step, so that tokens come fastest.
//
// Time has a price: the tokens per microsecond that one gets anyway, measured lately and never less than plain decoding
// gives. A step is worth what it is expected to accept minus the price of the time by which it is longer than plain
// decoding; no draft is worth 0. Candidates are ordered by the calibrated probability that the whole path to them is
// accepted, and the best n of them are verified, where n is the best step of the target's cost curve. A level is
// drafted as long as the best outcome of the next ones, predicted from how confidence goes on along a path, exceeds
// what is there by more than the steps cost.
//
// There are two drafters: the head, and n-grams of the text, which cost nothing. What both draft is one tree, or, where
// only chains can be verified, the better one of two. The head is asked only if that is expected to add to what the
// text gives; meanwhile its rows wait. Each source is believed as far as it was right; a token of one that the other
// does not suggest is less likely, one of both more.
//
// A head that is not worth asking is asked now and then only, see gate. What was drafted but not verified is judged by
// the text just as well, so that such a probe costs a draft step and nothing more.
class planner {
  public:
    // Costs: a pass of the target over n rows, the draft's first graph over n rows that wait, a level of n nodes. Of a
    // parallel source instead of the last: the first graph over one row that waits and n nodes behind it.
    // Without a source or n-grams nothing comes from there. Throws std::invalid_argument.
    planner(std::unique_ptr<draft_source> source, std::shared_ptr<ngram_drafter> ngram,
            std::shared_ptr<cost_curve> target, std::shared_ptr<cost_curve> begin, std::shared_ptr<cost_curve> step,
            const planner_params & params);

    const planner_params & params() const { return params_; }

    // Draft for these sequences, which share one pass of the target. n_rooms: tokens that fit behind id_last, for each.
    // n_max, n_max_ngram: tokens that may follow each other, of the head's and of n-grams', for each; empty =
    // params().n_max for all. draws: how the tokens of each are chosen; empty = as before, at first greedily. The text
    // must be up to date.
    // n_rows_extra: rows of the pass besides one per sequence and the drafts, which are there
    // because of earlier drafts. The result is valid until the next call.
    const std::vector<draft_tree> &
    propose(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
            const std::vector<int32_t> & n_rooms, int32_t n_rows_extra, const std::vector<int32_t> & n_max = {},
            const std::vector<int32_t> & n_max_ngram = {}, const std::vector<draw_kind> & draws = {});

    // The step is over: the target said these tokens in this sequence, the last of them without a draft behind it.
    void judge(llama_seq_id seq_id, const std::vector<llama_token> & tokens);

    // Its pass had n_rows rows; t_other_us: all that is neither drafting nor the pass.
    void finish(int32_t n_rows, double t_verify_us, double t_other_us);

    // A new text begins in this sequence.
    void reset(llama_seq_id seq_id);

    // Could a head that is always right save time, with so many sequences at once? If not, it is not asked, but for a
    // trial now and then that says whether the costs are still what they are believed to be.
    bool can_pay(int32_t n_seqs, int32_t n_rows_extra = 0) const {
        return can_pay(n_seqs, n_rows_extra, params_.n_max);
    }

    // what drafting so many tokens takes, one row waiting
    float draft_us(int32_t n_tokens) const { return begin_->at(1) + levels_us(n_tokens - 1, 1); }

    // Whether the head need not take in a sequence's prompt now, since with so many sequences it is not asked lately.
    // Those of some texts do not wait even then: with these it is probed.
    bool may_wait(llama_seq_id seq_id, int32_t n_seqs) const;

    // of the target's passes, of the draft's first graph and of its levels
    const std::shared_ptr<cost_curve> & target_costs() const { return target_; }
    const std::shared_ptr<cost_curve> & begin_costs() const { return begin_; }
    const std::shared_ptr<cost_curve> & step_costs() const { return step_; }

    // tokens per second: what is gained by a second at the moment, for one sequence
    double price() const { return 1e6 * price_; }

    // how likely a node is accepted once its parent is, if the head (or an n-gram) gives it p. Throws
    // std::invalid_argument.
    float accepted(float p, int32_t depth, llama_seq_id seq_id, bool by_ngram = false) const;

    // whether the head is asked each step at the moment, with so many sequences at once
    bool worth_asking(int32_t n_seqs) const { return gates_[static_cast<size_t>(n_seqs)].open() && can_pay(n_seqs); }

    planner_stats stats;

  private:
    static constexpr int32_t n_look_ahead  = 8;
    static constexpr int32_t n_trial       = 3;   // tokens of a trial: four rows are where kernels get fast
    static constexpr int32_t n_waiting_max = 16;  // more rows than this are not left to the first graph of a draft
    static constexpr int32_t n_ready_max   = 128; // rows that wait and that a probe reads at most

    // a token that may be verified
    struct node {
        int32_t          parent;
        llama_token      token;
        int32_t          depth;
        llama_seq_id     seq_id;
        float            p_head  = 0.0f;                   // what the head says of it
        float            p_ngram = 0.0f;                   // and n-grams; 0 = nothing
        int32_t          in_head = -1;                     // which of the head's nodes it is, -1 = none
        float            place   = 0.0f;                   // of p_head
        acceptance::rank rank    = acceptance::rank::best; // among what the head suggests behind its parent
        float            q       = 0.0f;                   // how likely it is accepted once its parent is
        float            cum     = 0.0f;                   // how likely the path up to it is
        bool             is_left = false;                  // out: the other path is better
    };

    struct sequence {
        std::vector<node> nodes;          // drafted last
        int32_t           at        = -1; // the text has come this far along them
        bool              open      = false;
        llama_token       id_last   = -1;
        int32_t           n_waiting = -1;   // rows that the drafter has not caught up with, -1 = not known
        bool              is_probed = true; // its prompt does not wait for the gate to open
    };

    // of a drafted node
    struct candidate {
        float   cum; // probability that the path up to it is accepted
        int32_t node;
    };

    // end of a path that is followed in thought
    struct tail {
        float  cum;
        float  place;
        size_t request;
    };

    void   check(llama_seq_id seq_id) const;
    void   check(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                 const std::vector<int32_t> & n_rooms) const;
    void   set_price(int32_t n_seqs, int32_t n_rows_extra);
    float  levels_us(int32_t n_levels, int32_t n_seqs) const;
    float  choose();
    void   order_by_depth();
    float  best_of(const std::vector<float> & cums, int32_t & n_best) const;
    size_t stride() const { return params_.uniform ? std::max<size_t>(1, n_drafting_) : 1; }
    void   publish();

    // asking.cpp: whether the head is asked, and for whom
    bool can_pay(int32_t n_seqs, int32_t n_rows_extra, int32_t n_max) const;
    bool ask(int32_t n_max);
    bool leave_waiting();

    // drafting.cpp: what the head drafts
    void    draft();
    int32_t begin();
    int32_t n_steps_ahead();
    void    add_nodes(size_t first, int32_t depth);
    int32_t next_width(float value, int32_t depth);
    void    set_outlooks(int32_t depth);

    // mix.cpp: n-grams beside the head
    void    add_ngrams();
    int32_t find_child(int32_t parent, llama_token token, llama_seq_id seq_id) const;
    void    rate();
    void    leave_paths();
    void    fill_up();
    bool    head_adds();

    static void insert_candidate(std::vector<candidate> & list, const candidate & c, size_t n_max);

    // keeps what is expected to come in order
    void insert_cum(float cum) {
        cums_ahead_.insert(std::upper_bound(cums_ahead_.begin(), cums_ahead_.end(), cum, std::greater<float>()), cum);
    }

    static double now_us();

    // run a call of the source; returns its microseconds
    template <typename F>
    double timed(F && call);

    std::unique_ptr<draft_source>  source_;
    std::shared_ptr<cost_curve>    target_, begin_, step_;
    planner_params                 params_;
    std::shared_ptr<ngram_drafter> ngram_;
    acceptance                     acceptance_, ngram_acceptance_;
    std::vector<gate>              gates_; // [number of sequences]
    std::vector<sequence>          sequences_;

    // what a second is worth
    float  speedup_tokens_ = 1.0f, speedup_time_ = 1.0f; // running averages, relative to plain decoding
    float  t_other_us_ = 0.0f;
    double price_      = 0.0;

    outlook outlook_;
    float   unroll_cost_ = 0.5f; // of one more step in the first graph, in steps of their own
    int32_t n_ahead_     = 0;    // levels that a parallel source has drafted in this step

    // this step
    struct request {
        llama_seq_id   seq_id;
        int32_t        n_room;       // tokens that fit
        int32_t        n_levels;     // that fit, 0 = not drafted for by the head
        int32_t        n_ngram;      // the same of n-grams
        int32_t        n_chosen = 0; // nodes
        int32_t        n_first  = 0; // of them, without a parent
        outlook::table ahead    = {};
    };

    std::vector<request>      requests_;
    std::vector<llama_seq_id> seq_ids_; // those that the head drafts for, and their last tokens
    std::vector<llama_token>  ids_last_;
    size_t                    n_drafting_ = 0; // sequences that are drafted for
    std::vector<node>         nodes_;
    size_t                    n_real_ = 0; // of them, without those that only fill up
    std::vector<int32_t>      of_head_;    // [the head's node]: which of nodes_ it is
    bool                      has_ngrams_ = false;
    std::vector<ngram_node>   suggested_;
    float                     value_ngrams_ = 0.0f; // of the best plan without the head, as expected
    int32_t                   n_candidates_ = 1;    // behind each node
    int32_t                   n_expand_     = 0;    // nodes that may still be expanded
    std::vector<size_t>       request_of_;          // [seq_id]
    int32_t                   n_seqs_      = 1;
    int32_t                   n_base_      = 1; // rows of the pass without drafts
    uint32_t                  n_texts_     = 0; // that have begun
    int32_t                   n_nodes_     = 0; // that may be chosen
    int32_t                   n_best_      = 0; // that were
    int32_t                   n_emitted_   = 0;
    double                    t_draft_us_  = 0.0;
    double                    t_source_us_ = 0.0;   // the same on our own clock
    bool                      drafted_     = false; // the head was asked
    bool                      is_trial_    = false;
    bool                      is_partial_  = false; // a probe without the sequences whose prompts wait
    bool                      asks_all_    = false; // the last one found that these are worth reading
    int32_t                   trial_wait_  = 128;   // steps until the next trial
    int32_t                   trial_waits_ = 128;
    bool                      surprised_   = false; // something unlikely was accepted
    float                     value_       = 0.0f;  // that is expected
    float                     t_expected_  = 0.0f;  // of drafting
    std::vector<float>        cost_;                // [n]: price of n more rows
    std::vector<float>        replay_;              // [n]: price of a chain that ends after n of its tokens
    std::vector<float>        node_place_;          // of each of the head's nodes
    std::vector<int32_t>      node_index_;          // of each drafted node: scratch
    std::vector<candidate>    candidates_;          // best first
    std::vector<candidate>    level_;               // of the last level, best first
    std::vector<int32_t>      chosen_;              // nodes that may be verified together, best first
    std::vector<float>        cums_, cums_ahead_;   // of the chosen, and of what is expected to come
    std::vector<tail>         tails_;
    std::vector<int32_t>      expanded_;
    std::vector<draft_tree>   plans_;
};

} // namespace eagle3
