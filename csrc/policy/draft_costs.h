#pragma once

#include "policy/cost_curve.h"

#include <memory>

namespace eagle3 {

// What drafting with one source takes.
class draft_costs {
  public:
    // The draft's first graph: one level, several of a chain, or all levels at once (P-EAGLE).
    enum class first_graph : uint8_t { one_level, chain, all_levels };

    // begin: the first graph over n rows that wait, with one level. step: a level of n nodes, or, of all_levels, the
    // first graph over one row that waits and n nodes behind it.
    draft_costs(std::shared_ptr<cost_curve> begin, std::shared_ptr<cost_curve> step, first_graph first);

    // Microseconds of a chain of each sequence, if so many rows wait: all levels that the first graph may have.
    float chain_us(int32_t n_rows, int32_t n_levels, int32_t n_seqs) const;

    // and of a level of its own
    float level_us(int32_t n_nodes) const { return first_ == first_graph::all_levels ? 0.0f : step->at(n_nodes); }

    // they took so long
    void observe_chain(int32_t n_rows, int32_t n_levels, int32_t n_seqs, double t_us);
    void observe_level(int32_t n_nodes, double t_us);

    const std::shared_ptr<cost_curve> begin, step;

  private:
    first_graph first_;
};

} // namespace eagle3
