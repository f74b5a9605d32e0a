#pragma once

#include "draft/draft_tree.h"
#include "planner/acceptance.h"

#include <array>
#include <vector>

namespace eagle3 {

// How confidence goes on along a path: the head's mean probability of the best two children of a node, by the node's
// own. With it one can say what drafting further may give before doing so.
class outlook {
  public:
    static constexpr size_t n_knots = acceptance::knots.size();

    // By the place of a node's p: the place of its best child's, and how likely the best two are accepted. Computed
    // once for a level, since it is asked for many nodes.
    struct table {
        std::array<float, n_knots> place;
        std::array<float, n_knots> q_first;
        std::array<float, n_knots> q_second;
    };

    outlook();

    // of nodes at this depth
    table at(const acceptance & accepted, int32_t depth, llama_seq_id seq_id) const;

    // of the first node of a path
    float place_first() const { return acceptance::place_of(p_root_); }

    // nodes from `first` on are new; places: of the p of all nodes
    void observe(const std::vector<draft_node> & nodes, size_t first, const std::vector<float> & places);

  private:
    std::array<float, n_knots> p_first_, p_second_, n_seen_;

    float p_root_ = 0.7f; // behind id_last
};

} // namespace eagle3
