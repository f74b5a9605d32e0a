#pragma once

#include "policy/candidates.h"
#include "policy/payoff.h"
#include "policy/request.h"
#include "policy/source.h"

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace eagle3 {

// A prompt that a drafter has not read, in microseconds: the time that reading takes, the time that the drafter would
// have saved in this text, and the time that its account allows for reading.
struct unread {
    float debt = 0.0f, saved = 0.0f, account = 0.0f;
};

struct planner_stats {
    int64_t              n_steps   = 0;
    int64_t              n_drafted = 0;            // steps in which a drafter was asked
    int64_t              n_probes  = 0;            // those of n_drafted whose drafter had not paid lately
    int64_t              n_trials  = 0;            // those of n_drafted in which the costs said that no drafter can pay
    int64_t              n_ngram   = 0;            // steps in which tokens of the n-gram drafter were verified
    int64_t              n_grammar = 0;            // the same of tokens that a grammar forces
    int64_t              n_levels  = 0;            // levels drafted after the first one of a step
    std::vector<int64_t> n_asked;                  // [source]: steps in which it was asked
    std::vector<int64_t> n_chosen;                 // [n]: steps in which n drafted tokens were verified
    std::vector<unread>  unread_prompt;            // [source]: the prompt for which it was left out last
    double               t_ngram_saved_us   = 0.0; // saved by steps with n-grams alone; negative: lost
    double               t_grammar_saved_us = 0.0; // by steps with nothing but what a grammar forces
    double               t_draft_us         = 0.0;
    double               t_plan_us          = 0.0; // the planner's own time
};

// Chooses what to draft in each step so that tokens come fastest: of all sources, lengths and widths the draft with the
// most expected tokens of all sequences for the time of drafting, of the pass and our own (payoff).
//
//   n-grams    are free: a step is worth at least what the best of them are
//   a source   is asked if it is expected to add more to them than its time is worth, and its account covers that time
//   a level    is drafted as long as the next levels are expected to add more than they cost
//   a node     is verified if it is among the best n by the calibrated probability that the whole path to it is
//              accepted, where n is the best step of the target's cost curve: so confidence decides which sequence
//              gets the rows
//
// Of several sources one is asked in a step. Those that may be asked take turns, and each is credited only with what it
// gives beyond the others: so the best one stays, and the others are probed as rarely as one that is useless. Tokens
// that were drafted and not verified are compared with the text too, so a probe costs no more than its draft.
class planner {
  public:
    static constexpr size_t n_sources_max = 16;

    // drafters: at most n_sources_max. target: the cost of a pass over n rows. Throws std::invalid_argument.
    planner(std::vector<priced_drafter> drafters, std::shared_ptr<ngram_drafter> ngram,
            std::shared_ptr<cost_curve> target, const planner_params & params);

    // What is known of each source, for another process, and beginning with it; none: nothing is. Throws
    // std::invalid_argument.
    std::vector<std::optional<prior>> known() const;
    void                              begin_with(const std::vector<std::optional<prior>> & priors);

    // Drafts for these sequences, which share one pass of the target that has n_rows_extra rows besides one per
    // sequence and the drafts. Returns a draft for each, valid until the next call. Throws std::invalid_argument.
    const std::vector<draft_tree> & propose(const std::vector<draft_request> & requests, int32_t n_rows_extra);

    // Tells the tokens that the step sampled in this sequence: the accepted ones, and the last one.
    void judge(llama_seq_id seq_id, const std::vector<llama_token> & tokens);

    // Ends the step. n_rows: rows of its pass; t_other_us: its time that was neither drafting nor the pass.
    void finish(int32_t n_rows, double t_verify_us, double t_other_us);

    // Tells that a new text begins in this sequence.
    void reset(llama_seq_id seq_id);

    // Could a drafter that is always right save time, with n_seqs sequences at once? While none could, a trial now and
    // then shows whether the costs are still right.
    bool can_pay(int32_t n_seqs) const;

    // Is this source asked in each step at present, with n_seqs sequences at once?
    bool is_worth(size_t i_source, int32_t n_seqs) const;

    // The sources that need not read prompts now, a bit for each: those for which reading is dear, and those that are
    // not asked with n_seqs sequences.
    int32_t may_wait(int32_t n_seqs) const;

    // The probability that a node is accepted once its parent is, if the n-gram drafter, or this source, gives it p.
    // Throws std::invalid_argument.
    float accepted(float p, int32_t depth, bool by_ngram, size_t i_source) const;

    // The microseconds that the fastest source takes to draft a chain for one sequence with one waiting row; 0 if there
    // is none.
    float draft_us(int32_t n_tokens) const;

    const payoff &             value() const { return payoff_; }
    const std::deque<source> & sources() const { return sources_; }

    // The target's curve, then each source's two: of its first graph and of its levels.
    std::vector<std::shared_ptr<cost_curve>> costs() const;

    planner_stats stats;

  private:
    static constexpr int32_t n_ngram_first = 32;

    struct sequence {
        int32_t     n_ngram = n_ngram_first; // n-gram tokens per draft: twice as many once all of them were right
        llama_token id_last = -1;
        int32_t     at      = -1;    // index in judged_ of the last node that the text agreed with
        bool        open    = false; // the text may go on along judged_
    };

    struct step {
        source * by          = nullptr; // the one that is asked
        int32_t  n_best      = 0;       // candidates to verify; of uniform chains their length
        int32_t  n_drafted   = 0;       // tokens that are verified
        int32_t  n_emitted   = 0;
        int32_t  n_right     = 0;     // sequences whose next token the source predicted, minus the others
        float    value_ngram = 0.0f;  // what the best drafts without a source are worth
        bool     has_ngrams  = false; // some of these are the n-gram drafter's
        bool     is_trial    = false;
    };

    sequence & of(llama_seq_id seq_id); // throws std::invalid_argument
    void       check(const std::vector<draft_request> & requests);
    void       begin_step(const std::vector<draft_request> & requests, int32_t n_rows_extra);
    void       leave_unread(source & s);
    void       choose_source(int32_t n_rows_extra);
    float      chains_ahead(const source & s, int32_t n_rows, int32_t n_levels, bool is_asked, int32_t & n_best) const;
    float      adds(const source & s, int32_t n_rows) const;
    void       draft();
    size_t     next_width(const std::vector<int32_t> & level, int32_t depth, int32_t n_levels) const;
    float      best(int32_t & n_best) const;
    float      rival() const;
    void       publish();

    std::shared_ptr<ngram_drafter> ngram_;
    planner_params                 params_;
    payoff                         payoff_;
    std::deque<source>             sources_;
    candidates                     candidates_;
    std::vector<sequence>          sequences_;
    std::vector<candidates::node>  judged_;              // the nodes that the texts are compared with
    source *                       judged_by_ = nullptr; // the source that drafted them
    int64_t                        n_idle_    = 0;       // steps in which no source could pay
    step                           step_;
    std::vector<ngram_node>        suggested_;
    std::vector<draft_tree>        drafts_;
};

} // namespace eagle3
