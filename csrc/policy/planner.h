#pragma once

#include "policy/candidates.h"
#include "policy/payoff.h"
#include "policy/request.h"
#include "policy/source.h"

#include <deque>
#include <memory>
#include <vector>

namespace eagle3 {

// A prompt that a drafter has not read: microseconds that reading takes, what its drafts would have saved in this text,
// and what reading may cost by what its drafts have really saved.
struct unread {
    float debt = 0.0f, saved = 0.0f, account = 0.0f;
};

struct planner_stats {
    int64_t              n_steps   = 0;
    int64_t              n_drafted = 0; // steps in which a drafter was asked
    int64_t              n_probes  = 0; // of these: although it had not been worth it lately
    int64_t              n_trials  = 0; // of these: although the costs say that nothing can pay
    int64_t              n_ngram   = 0; // steps in which something was verified that the n-gram drafter suggested
    int64_t              n_levels  = 0; // drafted after the first
    std::vector<int64_t> n_asked;       // [source]: steps in which it was asked
    std::vector<int64_t> n_chosen;      // [i]: steps in which i drafted tokens were verified
    std::vector<unread>  unread_prompt; // [source]: of the last step that left it out
    double               t_ngram_saved_us = 0.0; // what steps with n-grams alone saved; negative: cost
    double               t_draft_us       = 0.0;
    double               t_plan_us        = 0.0; // own time
};

// Chooses what to draft, step by step, so that tokens come fastest: of all sources, lengths and widths the one with the
// most expected tokens of all sequences for the time of drafting, of the pass and our own (payoff).
//
//   n-grams    are free: the best of them is the least that a step is worth
//   a source   is asked if it is expected to add more to them than its time is worth, and if its account covers that
//   a level    is drafted as long as the best outcome of the next ones exceeds what is there by more than they cost
//   a node     is verified if it is among the best n by the calibrated probability that the whole path to it is
//              accepted, where n is the best step of the target's cost curve: so confidence decides which sequence
//              gets the rows
//
// Of several sources one is asked in a step. Those that may be asked take turns, and each has to give more than the
// others do: so one stays, and the others are probed like one that is worth nothing. What was drafted but not verified
// is compared with the text just as well: a probe costs a draft and nothing more.
class planner {
  public:
    static constexpr size_t n_sources_max = 16;

    // drafters: at most n_sources_max. target: a pass over n rows. Throws std::invalid_argument.
    planner(std::vector<priced_drafter> drafters, std::shared_ptr<ngram_drafter> ngram,
            std::shared_ptr<cost_curve> target, const planner_params & params);

    // Draft for these sequences, which share one pass of the target, with n_rows_extra rows besides one per sequence
    // and the drafts. One draft for each; valid until the next call. Throws std::invalid_argument.
    const std::vector<draft_tree> & propose(const std::vector<draft_request> & requests, int32_t n_rows_extra);

    // The step is over: these tokens were sampled in this sequence, the last of them without a draft after it.
    void judge(llama_seq_id seq_id, const std::vector<llama_token> & tokens);

    // Its pass had n_rows rows; t_other_us: all that is neither drafting nor the pass.
    void finish(int32_t n_rows, double t_verify_us, double t_other_us);

    // A new text begins in this sequence.
    void reset(llama_seq_id seq_id);

    // Could a drafter that is always right save time, with so many sequences at once? If none could, one is asked in a
    // trial now and then that says whether the costs are still what they are believed to be.
    bool can_pay(int32_t n_seqs) const;

    // whether a source is asked each step at the moment, with so many sequences at once
    bool is_worth(size_t i_source, int32_t n_seqs) const;

    // Sources that need not evaluate prompts now, a bit for each: those that are dear, and those that are not asked
    // with so many sequences.
    int32_t may_wait(int32_t n_seqs) const;

    // How likely a node is accepted once its parent is, if the n-gram drafter (or else a source) gives it p. Throws
    // std::invalid_argument.
    float accepted(float p, int32_t depth, bool by_ngram, size_t i_source) const;

    // microseconds of a chain for one sequence, one row waiting, of the source that drafts it fastest; 0 without any
    float draft_us(int32_t n_tokens) const;

    const payoff &             value() const { return payoff_; }
    const std::deque<source> & sources() const { return sources_; }

    // of the target, then of each source those of its first graphs and of its levels
    std::vector<std::shared_ptr<cost_curve>> costs() const;

    planner_stats stats;

  private:
    static constexpr int32_t n_ngram_first = 32;

    struct sequence {
        int32_t     n_ngram = n_ngram_first; // tokens of its n-grams: twice as many once so many were right
        llama_token id_last = -1;
        int32_t     at      = -1;    // the text has come this far along the candidates
        bool        open    = false; // and may go on along them
    };

    struct step {
        source * by          = nullptr; // who is asked
        int32_t  n_best      = 0;       // candidates that are verified
        int32_t  n_drafted   = 0;       // tokens of them
        int32_t  n_emitted   = 0;
        int32_t  n_right     = 0;    // sequences of which the source knew the next token, less the others
        float    value_ngram = 0.0f; // expected of the best drafts without a source
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
    std::vector<candidates::node>  judged_;              // what the texts are compared with
    source *                       judged_by_ = nullptr; // who drafted it
    int64_t                        n_idle_    = 0;       // steps in which no source could pay
    step                           step_;
    std::vector<ngram_node>        suggested_;
    std::vector<draft_tree>        drafts_;
};

} // namespace eagle3
