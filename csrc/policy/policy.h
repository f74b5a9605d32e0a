#pragma once

#include "policy/planner.h"

#include <memory>
#include <optional>
#include <vector>

namespace eagle3 {

// Drafts for the sequences of a step: what the planner expects to pay best, or the shape that a request asks for, by
// the first drafter. Until the costs of passes are measured, the first drafter drafts short chains. Where a grammar
// forces as many tokens as a fixed shape has levels, these are the draft.
class policy {
  public:
    // target: the cost of a pass over n rows; null: costs are not measured, and drafters have none. ngram: n-grams are
    // used by the planner alone. Throws std::invalid_argument.
    policy(std::vector<priced_drafter> drafters, std::shared_ptr<ngram_drafter> ngram,
           std::shared_ptr<cost_curve> target, const planner_params & params);

    bool is_measured() const { return planner_.has_value(); }

    // Throws std::invalid_argument if costs are not measured.
    planner &       plan();
    const planner & plan() const { return const_cast<policy *>(this)->plan(); }

    // Drafts for these sequences, see planner::propose.
    const std::vector<draft_tree> & propose(const std::vector<draft_request> & requests, int32_t n_rows_extra);

  private:
    draft_shape shape_of(const draft_request & request) const;
    draft_tree  forced_chain(const draft_request & request, const draft_shape & shape) const;
    void        draft_fixed(const std::vector<draft_request> & requests);

    draft_session *                first_; // the first drafter; null: there is none with weights
    std::shared_ptr<ngram_drafter> ngram_;
    planner_params                 params_;
    candidates                     fixed_;
    std::optional<planner>         planner_;
    std::vector<draft_tree>        drafts_;
};

} // namespace eagle3
