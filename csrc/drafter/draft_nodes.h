#pragma once

#include "drafter/draft_tree.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The nodes of one draft, for several sequences: parents before their children, those of one parent together, the best
// first. Nodes that are not there or were expanded before throw std::invalid_argument, as drafter's methods do.
class draft_nodes {
  public:
    // what arguments of begin() must be
    static void check_begin(int32_t top_k, int32_t n_steps, int32_t n_unroll);

    const std::vector<draft_node> & all() const { return nodes_; }

    const draft_node & operator[](int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

    int32_t n() const { return static_cast<int32_t>(nodes_.size()); }

    void clear();

    // Candidates, the best first, become nodes after `parent`, which counts as expanded if there are any; -1: the
    // first level. Returns the first of them, -1 if there is none
    int32_t append(llama_seq_id seq_id, int32_t parent, const std::vector<draft_candidate> & found);

    // the drafted tokens up to a node; -1: none
    std::vector<llama_token> path(int32_t node) const;

    // A call of expand() names these: each is marked as expanded
    void mark_expanded(const std::vector<int32_t> & nodes, int32_t top_k);

  private:
    std::vector<draft_node> nodes_;
};

} // namespace eagle3
