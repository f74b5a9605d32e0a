#pragma once

#include "policy/planner.h"

#include <memory>
#include <optional>
#include <vector>

namespace eagle3 {

// What to draft for the sequences of a step: what the planner expects to pay best, or a shape that a sequence asks for,
// of the first drafter. Until it is measured what passes cost, that drafts short chains.
class policy {
  public:
    // drafters: with their costs, or all without. target: costs of a pass over n rows; null: not measured. ngram:
    // drafts by the planner alone. Throws std::invalid_argument.
    policy(std::vector<priced_drafter> drafters, std::shared_ptr<ngram_drafter> ngram,
           std::shared_ptr<cost_curve> target, const planner_params & params);

    bool is_measured() const { return planner_.has_value(); }

    // throws std::invalid_argument if nothing is measured
    planner &       plan();
    const planner & plan() const { return const_cast<policy *>(this)->plan(); }

    // Draft for these sequences, which share one pass of the target, with n_rows_extra rows besides one per sequence
    // and the drafts. One draft for each; valid until the next call. Throws std::invalid_argument.
    const std::vector<draft_tree> & propose(const std::vector<draft_request> & requests, int32_t n_rows_extra);

  private:
    draft_shape shape_of(const draft_request & request) const;
    void        draft_fixed(const std::vector<draft_request> & requests);

    draft_session *         first_; // null: none drafts with weights
    planner_params          params_;
    candidates              fixed_;
    std::optional<planner>  planner_;
    std::vector<draft_tree> drafts_;
};

} // namespace eagle3
