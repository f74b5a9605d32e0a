#include "policy/policy.h"

#include "error.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace eagle3 {

namespace {

constexpr int32_t n_max_unmeasured = 3;
constexpr int32_t n_top_llama      = 10; // llama.cpp's drafter samples from the ten best logits

// Parameters for fixed shapes: any number of tokens, trees, and chains of any length.
planner_params of_fixed(planner_params params) {
    params.n_nodes_max = 1 << 16;
    params.top_k       = 2;
    params.uniform     = false;
    return params;
}

void check(const draft_shape & shape, int32_t n_expand) {
    if (shape.top_k < 1 || shape.n_tokens < 0 || shape.depth < 0) {
        throw std::invalid_argument(format("a draft needs depth, n_tokens >= 0 and top_k >= 1, found %d, %d and %d",
                                           shape.depth, shape.n_tokens, shape.top_k));
    }
    if (shape.top_k > 1 &&
        (shape.depth > n_expand + 1 || shape.top_k > n_expand || (shape.depth - 1) * shape.top_k > n_expand)) {
        throw std::invalid_argument(
            format("a tree of depth %d and top_k %d expands more than %d nodes", shape.depth, shape.top_k, n_expand));
    }
}

// Does a drafted node belong to a draft of this shape, if its parent does?
bool is_of(const draft_shape & shape, const std::vector<draft_node> & nodes, size_t i, bool has_confidence) {
    const auto is_sibling = [&nodes, i](size_t other) {
        return nodes[other].parent == nodes[i].parent && nodes[other].seq_id == nodes[i].seq_id;
    };
    size_t first = i;
    while (first > 0 && is_sibling(first - 1)) {
        --first;
    }
    float sum = 0.0f;
    for (size_t k = first; k < std::min(nodes.size(), first + n_top_llama) && is_sibling(k); ++k) {
        sum += nodes[k].p;
    }
    const float p = nodes[i].p / (has_confidence ? 1.0f : sum);
    return i - first < static_cast<size_t>(shape.top_k) && (shape.p_min <= 0.0f || p >= shape.p_min);
}

} // namespace

policy::policy(std::vector<priced_drafter> drafters, std::shared_ptr<ngram_drafter> ngram,
               std::shared_ptr<cost_curve> target, const planner_params & params) :
    first_(drafters.empty() ? nullptr : drafters.front().drafter), ngram_(std::move(ngram)), params_(params),
    fixed_(of_fixed(params)) {
    if (target) {
        planner_.emplace(std::move(drafters), ngram_, std::move(target), params);
    }
}

planner & policy::plan() {
    if (!planner_) {
        throw std::invalid_argument("policy: nothing was measured yet: expected costs");
    }
    return *planner_;
}

draft_shape policy::shape_of(const draft_request & request) const {
    const int32_t n_max = std::min(request.n_max, n_max_unmeasured);
    draft_shape   shape = request.shape.value_or(draft_shape{ n_max, 1, n_max });
    if (first_ != nullptr) {
        check(shape, first_->n_expand());
    }
    if (params_.n_leaves_max == 1 && shape.top_k > 1) {
        shape.top_k    = 1;
        shape.n_tokens = shape.depth;
    }
    shape.n_tokens = std::min(shape.n_tokens, request.n_max > 0 ? std::max(request.n_room, 0) : 0);
    shape.depth    = std::min(shape.depth, shape.n_tokens);
    shape.depth    = shape.depth < shape.n_min ? 0 : shape.depth;
    return shape;
}

// What the grammar forces, if that is as long as the shape is deep; else empty.
draft_tree policy::forced_chain(const draft_request & request, const draft_shape & shape) const {
    draft_tree    chain;
    const int32_t n_max = std::min(request.n_room, request.ngram_n_max);
    if (ngram_ == nullptr) {
        return chain;
    }
    for (const draft_candidate & c : ngram_->forced(request.seq_id)) {
        const auto n = static_cast<int32_t>(chain.tokens.size());
        if (n >= n_max || c.p < shape.p_min) {
            break;
        }
        chain.tokens.push_back(c.id);
        chain.parents.push_back(n - 1);
        chain.probs.push_back(c.p);
        chain.sources.push_back(draft_tree::by_grammar);
    }
    return static_cast<int32_t>(chain.tokens.size()) < shape.depth ? draft_tree() : chain;
}

// Drafts the requested shapes with the first drafter, one graph per level for all sequences. A draft is empty if its
// sequence has no waiting row or its shape no tokens.
void policy::draft_fixed(const std::vector<draft_request> & requests) {
    std::unordered_map<llama_seq_id, draft_shape> shapes;
    std::unordered_map<llama_seq_id, draft_tree>  forced;
    std::vector<llama_seq_id>                     seq_ids;
    std::vector<llama_token>                      ids_last;
    int32_t                                       n_top = 1, n_steps = 1;
    bool                                          has_trees = false;
    fixed_.clear();
    for (const draft_request & r : requests) {
        draft_shape & shape = shapes[r.seq_id] = shape_of(r);
        forced[r.seq_id]                       = forced_chain(r, shape);
        if (!forced[r.seq_id].tokens.empty()) {
            shape.n_tokens = shape.depth = 0;
        }
        fixed_.add_sequence(r.seq_id, shape.n_tokens, shape.depth);
        if (first_ != nullptr && shape.depth > 0) {
            seq_ids.push_back(r.seq_id);
            ids_last.push_back(r.id_last);
            n_top     = std::max(n_top, shape.p_min > 0.0f ? std::max(n_top_llama, shape.top_k) : shape.top_k);
            n_steps   = std::max(n_steps, shape.depth);
            has_trees = has_trees || shape.top_k > 1;
        }
    }
    if (!seq_ids.empty()) {
        // except for a parallel drafter, a graph of several levels follows only the best token
        n_steps = has_trees && !first_->is_parallel() ? 1 : std::min(n_steps, first_->n_unroll());
        first_->begin(seq_ids, ids_last, n_top, n_steps);
        const std::vector<draft_node> & nodes = first_->nodes();
        const auto                      keeps = [&](size_t i) {
            return is_of(shapes[nodes[i].seq_id], nodes, i, first_->has_confidence());
        };
        int32_t                                   depth   = first_->is_parallel() ? 1 : n_steps;
        const int32_t                             n_begun = depth - 1; // nodes that begin() expanded in a chain
        std::unordered_map<llama_seq_id, int32_t> n_expanded;
        for (size_t n_old = 0;; ++depth) {
            fixed_.add(nodes, n_old, nullptr, draft_tree::by_drafter(0), keeps);
            std::unordered_map<llama_seq_id, int32_t> n_level;
            std::vector<int32_t>                      ends;
            for (const int32_t i : fixed_.level(depth)) {
                const llama_seq_id id = fixed_.at(i).seq_id;
                if (n_level[id]++ < shapes[id].top_k && n_begun + ++n_expanded[id] <= first_->n_expand()) {
                    ends.push_back(fixed_.at(i).in_source);
                }
            }
            if (ends.empty()) {
                break;
            }
            n_old = nodes.size();
            first_->expand(ends, n_top);
        }
    }
    fixed_.publish(fixed_.gains().size(), drafts_);
    drafts_.resize(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
        if (!forced[requests[i].seq_id].tokens.empty()) {
            drafts_[i] = std::move(forced[requests[i].seq_id]);
        }
        if (static_cast<int32_t>(drafts_[i].tokens.size()) < shapes[requests[i].seq_id].n_min) {
            drafts_[i] = {};
        }
    }
}

const std::vector<draft_tree> & policy::propose(const std::vector<draft_request> & requests, int32_t n_rows_extra) {
    const auto is_planned = [this](const draft_request & r) {
        return planner_ && !r.shape;
    };
    std::vector<draft_request> planned, fixed;
    std::partition_copy(requests.begin(), requests.end(), std::back_inserter(planned), std::back_inserter(fixed),
                        is_planned);
    if (fixed.empty()) {
        return plan().propose(requests, n_rows_extra);
    }
    draft_fixed(fixed);
    if (planned.empty()) {
        return drafts_;
    }
    for (const draft_tree & draft : drafts_) {
        n_rows_extra += 1 + static_cast<int32_t>(draft.tokens.size());
    }
    const std::vector<draft_tree> & plans = planner_->propose(planned, n_rows_extra);
    for (size_t i = 0, k = 0; i < requests.size(); ++i) {
        if (is_planned(requests[i])) {
            drafts_.insert(drafts_.begin() + static_cast<std::ptrdiff_t>(i), plans[k++]);
        }
    }
    return drafts_;
}

} // namespace eagle3
