#include "drafter/draft_nodes.h"

#include "error.h"

#include <algorithm>
#include <stdexcept>

namespace eagle3 {

void draft_nodes::check_begin(int32_t top_k, int32_t n_steps, int32_t n_unroll) {
    if (top_k < 1 || n_steps < 1 || n_steps > n_unroll) {
        throw std::invalid_argument(
            format("expected top_k >= 1 and n_steps in 1..%d (n_unroll), found %d and %d", n_unroll, top_k, n_steps));
    }
}

void draft_nodes::clear() {
    nodes_.clear();
}

int32_t draft_nodes::append(llama_seq_id seq_id, int32_t parent, const std::vector<draft_candidate> & found) {
    const int32_t first = n();
    if (parent >= 0 && !found.empty()) {
        nodes_[static_cast<size_t>(parent)].is_expanded = true;
    }
    const int32_t depth = parent < 0 ? 1 : (*this)[parent].depth + 1;
    for (const draft_candidate & c : found) {
        nodes_.push_back({ parent, c.id, c.p, depth, seq_id });
    }
    return first < n() ? first : -1;
}

std::vector<llama_token> draft_nodes::path(int32_t node) const {
    std::vector<llama_token> tokens;
    for (; node >= 0; node = (*this)[node].parent) {
        tokens.push_back((*this)[node].token);
    }
    std::reverse(tokens.begin(), tokens.end());
    return tokens;
}

void draft_nodes::mark_expanded(const std::vector<int32_t> & nodes, int32_t top_k) {
    if (top_k < 1) {
        throw std::invalid_argument(format("expected top_k >= 1, found %d", top_k));
    }
    for (auto it = nodes.begin(); it != nodes.end(); ++it) {
        if (*it < 0 || *it >= n()) {
            throw std::invalid_argument(format("node %d: this draft has %d nodes", *it, n()));
        }
        if ((*this)[*it].is_expanded || std::find(nodes.begin(), it, *it) != it) {
            throw std::invalid_argument(format("node %d was expanded already", *it));
        }
    }
    for (const int32_t node : nodes) {
        nodes_[static_cast<size_t>(node)].is_expanded = true;
    }
}

} // namespace eagle3
