#pragma once

#include "drafter/draft_tree.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace eagle3 {

// The nodes of one draft, for several sequences: parents before their children, the children of a node together and the
// best first. Methods throw std::invalid_argument for a node that does not exist or was expanded before.
class draft_nodes {
  public:
    // Checks the arguments of drafter::begin().
    static void check_begin(int32_t top_k, int32_t n_steps, int32_t n_unroll);

    const std::vector<draft_node> & all() const { return nodes_; }

    const draft_node & operator[](int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

    int32_t n() const { return static_cast<int32_t>(nodes_.size()); }

    void clear();

    // Appends candidates, the best first, as nodes after `parent` (-1: as the first level), which counts as expanded if
    // there are any. Returns the first new node, -1 if there is none.
    int32_t append(llama_seq_id seq_id, int32_t parent, const std::vector<draft_candidate> & found);

    // The drafted tokens up to a node; none for -1.
    std::vector<llama_token> path(int32_t node) const;

    // Checks and marks the nodes that a call of expand() names.
    void mark_expanded(const std::vector<int32_t> & nodes, int32_t top_k);

  private:
    std::vector<draft_node> nodes_;
};

} // namespace eagle3
