#include "policy/draft_costs.h"

#include <algorithm>
#include <utility>

namespace eagle3 {

namespace {

constexpr float share_chain = 0.5f; // of a level: one more of a chain in the first graph needs no graph of its own

} // namespace

draft_costs::draft_costs(std::shared_ptr<cost_curve> begin_, std::shared_ptr<cost_curve> step_, first_graph first) :
    begin(std::move(begin_)), step(std::move(step_)), first_(first) {}

float draft_costs::chain_us(int32_t n_rows, int32_t n_levels, int32_t n_seqs) const {
    const float t_begin = begin->at(n_rows);
    const auto  n_more  = n_levels - 1;
    if (first_ == first_graph::all_levels) {
        return t_begin + std::max(0.0f, step->at(n_more * n_seqs) - (n_more > 0 ? begin->at(1) : 0.0f));
    }
    return t_begin +
           (first_ == first_graph::chain ? share_chain : 1.0f) * static_cast<float>(n_more) * step->at(n_seqs);
}

void draft_costs::observe_chain(int32_t n_rows, int32_t n_levels, int32_t n_seqs, double t_us) {
    if (n_levels == 1) {
        begin->observe(n_rows, t_us);
    } else if (first_ == first_graph::all_levels) {
        const float t_more_rows = begin->at(n_rows) - begin->at(1);
        step->observe((n_levels - 1) * n_seqs, t_us - static_cast<double>(t_more_rows));
    }
}

void draft_costs::observe_level(int32_t n_nodes, double t_us) {
    if (first_ != first_graph::all_levels) {
        step->observe(n_nodes, t_us);
    }
}

} // namespace eagle3
