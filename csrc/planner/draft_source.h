#pragma once

#include "draft/draft_tree.h"
#include "planner/cost_curve.h"

#include <memory>

namespace eagle3 {

// What the planner needs of a drafter, and the clock that its time is taken with.
class draft_source {
  public:
    virtual ~draft_source() = default;

    // Catch up with what the target has computed and append top_k candidates at depth 1 for each sequence; with n_steps
    // > 1 follow the best of them n_steps - 1 times, in the same graph.
    virtual void begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                       int32_t top_k, int32_t n_steps) = 0;

    // append top_k candidates behind each of these nodes
    virtual void expand(const std::vector<int32_t> & nodes, int32_t top_k) = 0;

    // of this step, parents before children
    virtual const std::vector<draft_node> & nodes() const = 0;

    // begin() drafts all n_steps levels in one graph and shows the first, expand() the others at no cost (P-EAGLE)
    virtual bool is_parallel() const { return false; }

    virtual int32_t n_unroll() const                     = 0; // most steps of begin()
    virtual int32_t n_waiting(llama_seq_id seq_id) const = 0; // rows that begin() would have to evaluate first
    virtual int32_t n_expand() const                     = 0; // most nodes of a sequence that may be expanded in a step

    virtual double time_us() const = 0;
};

// one that the planner may ask, and what its graphs cost: see draft_costs
struct priced_source {
    std::unique_ptr<draft_source> drafter;
    std::shared_ptr<cost_curve>   begin, step;
};

} // namespace eagle3
