#include "policy/policy.h"

#include "error.h"

#include <algorithm>
#include <utility>

namespace eagle3 {

namespace {

constexpr int32_t n_max_unmeasured = 3;

} // namespace

policy::policy(std::vector<priced_drafter> drafters, std::shared_ptr<ngram_drafter> ngram,
               std::shared_ptr<cost_curve> target, const planner_params & params) :
    first_(drafters.empty() ? nullptr : drafters.front().drafter), params_(params) {
    if (target) {
        planner_.emplace(std::move(drafters), std::move(ngram), std::move(target), params);
    }
}

planner & policy::plan() {
    if (!planner_) {
        throw std::invalid_argument("policy: nothing was measured yet: expected costs");
    }
    return *planner_;
}

fixed_request policy::fixed(const draft_request & request) const {
    draft_shape   shape;
    const int32_t n_max = std::min(request.n_max, n_max_unmeasured);
    shape.depth = shape.n_tokens = n_max;
    shape                        = request.shape.value_or(shape);
    if (params_.n_leaves_max == 1 && shape.top_k > 1) {
        shape.top_k    = 1;
        shape.n_tokens = shape.depth;
    }
    shape.n_tokens = std::min(shape.n_tokens, request.n_max > 0 ? std::max(request.n_room, 0) : 0);
    shape.depth    = std::min(shape.depth, shape.n_tokens);
    if (shape.depth < shape.n_min) {
        shape.depth = 0;
    }
    return { request.seq_id, request.id_last, shape };
}

const std::vector<draft_tree> & policy::propose(const std::vector<draft_request> & requests, int32_t n_rows_extra) {
    std::vector<fixed_request> fixed_ones;
    std::vector<draft_request> planned;
    for (const draft_request & request : requests) {
        if (request.shape || !planner_) {
            fixed_ones.push_back(fixed(request));
        } else {
            planned.push_back(request);
        }
    }
    if (fixed_ones.empty()) {
        return plan().propose(requests, n_rows_extra);
    }
    if (first_) {
        drafts_ = draft_fixed(*first_, fixed_ones, params_.n_leaves_max);
    } else {
        drafts_.assign(fixed_ones.size(), {});
    }
    if (planned.empty()) {
        return drafts_;
    }
    for (const draft_tree & draft : drafts_) {
        n_rows_extra += 1 + static_cast<int32_t>(draft.tokens.size());
    }
    const std::vector<draft_tree> & plans = planner_->propose(planned, n_rows_extra);
    for (size_t i = 0, k = 0; i < requests.size(); ++i) {
        if (!requests[i].shape) {
            drafts_.insert(drafts_.begin() + static_cast<std::ptrdiff_t>(i), plans[k++]);
        }
    }
    return drafts_;
}

} // namespace eagle3
