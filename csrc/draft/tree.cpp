#include "draft/tree.h"

#include "error.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace eagle3 {

draft_tree propose_tree(drafter & draft, llama_token id_last, int32_t depth, int32_t top_k, int32_t n_tokens,
                        llama_seq_id seq_id) {
    const int32_t n_max = draft.n_expand();
    if (depth < 1 || top_k < 1 || n_tokens < 1) {
        throw std::invalid_argument(
            format("a tree needs positive depth, top_k and n_tokens, found %d, %d and %d", depth, top_k, n_tokens));
    }
    if (depth > n_max + 1 || top_k > n_max || (depth - 1) * top_k > n_max) {
        throw std::invalid_argument(
            format("a tree of depth %d and top_k %d expands more than %d nodes", depth, top_k, n_max));
    }
    draft.begin({ seq_id }, { id_last }, top_k, draft.is_parallel() ? std::min(depth, draft.n_unroll()) : 1);

    // logarithms of the probabilities along the path
    std::vector<double>  score;
    std::vector<int32_t> order;
    // of equally probable nodes the earlier one: a parent comes before its children
    const auto           better = [&score](int32_t a, int32_t b) {
        return score[a] > score[b] || (score[a] == score[b] && a < b);
    };
    const auto add_scores = [&] {
        const auto & nodes = draft.nodes();
        for (size_t i = score.size(); i < nodes.size(); ++i) {
            score.push_back(std::log(static_cast<double>(nodes[i].p)) +
                            (nodes[i].parent < 0 ? 0.0 : score[nodes[i].parent]));
        }
    };
    const auto keep_best = [&](int32_t n) {
        n = std::min(n, static_cast<int32_t>(order.size()));
        std::partial_sort(order.begin(), order.begin() + n, order.end(), better);
        order.resize(n);
    };

    add_scores();
    int32_t first = 0; // of the level
    for (int32_t level = 1; level < depth; ++level) {
        const int32_t end = static_cast<int32_t>(score.size());
        if (first == end) {
            break;
        }
        order.resize(end - first);
        std::iota(order.begin(), order.end(), first);
        keep_best(top_k);
        draft.expand(order, top_k);
        add_scores();
        first = end;
    }

    order.resize(score.size());
    std::iota(order.begin(), order.end(), 0);
    keep_best(n_tokens);
    std::sort(order.begin(), order.end());

    draft_tree tree;
    for (const int32_t i : order) {
        const draft_node & node   = draft.nodes()[i];
        const auto         parent = std::lower_bound(order.begin(), order.end(), node.parent) - order.begin();
        tree.tokens.push_back(node.token);
        tree.parents.push_back(node.parent < 0 ? -1 : static_cast<int32_t>(parent));
        tree.probs.push_back(node.p);
    }
    return tree;
}

} // namespace eagle3
