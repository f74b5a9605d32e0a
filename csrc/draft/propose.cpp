#include "draft/propose.h"

#include "error.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace eagle3 {

namespace {

constexpr int32_t n_top_llama = 10; // llama.cpp's drafter samples from the ten best logits
constexpr int32_t none        = -1;
constexpr int32_t unknown     = -2;

struct chain {
    size_t       i      = 0; // in the arguments
    llama_seq_id seq_id = 0;
    int32_t      n_left = 0;       // tokens that it may still get
    int32_t      node   = none;    // its last one; none: id_last
    int32_t      first  = unknown; // the node after id_last
    bool         asked  = false;   // for what follows its node
};

// The best node after each one, and the first ones of the chains, as far as they are new; none: it is less likely than
// p_min. next: by node.
void find_best(const drafter & draft, float p_min, std::vector<chain> & chains, std::vector<int32_t> & next) {
    const auto & nodes = draft.nodes();
    auto         i     = static_cast<int32_t>(next.size());
    const auto   n     = static_cast<int32_t>(nodes.size());
    next.resize(nodes.size(), unknown);
    while (i < n) {
        const int32_t      i_best = i;
        const draft_node & best   = nodes[i];
        float              sum    = 0.0f;
        for (; i < n && nodes[i].parent == best.parent && nodes[i].seq_id == best.seq_id; ++i) {
            sum += nodes[i].p;
        }
        const float   p     = best.p / (draft.has_confidence() ? 1.0f : sum);
        const int32_t found = p_min > 0.0f && !(p >= p_min) ? none : i_best;
        if (best.parent >= 0) {
            next[best.parent] = found;
            continue;
        }
        std::find_if(chains.begin(), chains.end(), [&](const chain & c) { return c.seq_id == best.seq_id; })->first =
            found;
    }
}

} // namespace

std::vector<std::vector<llama_token>> propose_chains(drafter & draft, const std::vector<llama_seq_id> & seq_ids,
                                                     const std::vector<llama_token> & ids_last,
                                                     const std::vector<int32_t> & n_max, float p_min) {
    if (n_max.size() != seq_ids.size() || ids_last.size() != seq_ids.size()) {
        throw std::invalid_argument(format("expected an id_last and an n_max per sequence, found %zu and %zu for %zu",
                                           ids_last.size(), n_max.size(), seq_ids.size()));
    }
    std::vector<std::vector<llama_token>> drafted(seq_ids.size());
    std::vector<chain>                    chains;
    std::vector<llama_seq_id>             seq_ids_begin;
    std::vector<llama_token>              ids_begin;
    int32_t                               n_most = 1;
    for (size_t i = 0; i < seq_ids.size(); ++i) {
        if (n_max[i] > 0) {
            chains.push_back({ i, seq_ids[i], n_max[i] });
            seq_ids_begin.push_back(seq_ids[i]);
            ids_begin.push_back(ids_last[i]);
            n_most = std::max(n_most, n_max[i]);
        }
    }
    const int32_t top_k = p_min > 0.0f ? n_top_llama : 1;
    draft.begin(seq_ids_begin, ids_begin, top_k, std::min(n_most, draft.n_unroll()));

    std::vector<int32_t> next, ends;
    while (true) {
        find_best(draft, p_min, chains, next);
        ends.clear();
        for (chain & c : chains) {
            int32_t node = c.node < 0 ? c.first : next[c.node];
            for (; c.n_left > 0 && node >= 0; node = next[node]) {
                drafted[c.i].push_back(draft.nodes()[node].token);
                c.n_left--;
                c.node  = node;
                c.asked = false;
            }
            const bool can_go_on =
                node == unknown && c.node >= 0 && !c.asked && draft.nodes()[c.node].depth <= draft.n_expand();
            if (c.n_left > 0 && can_go_on) {
                ends.push_back(c.node);
                c.asked = true;
            } else {
                c.n_left = 0;
            }
        }
        if (ends.empty()) {
            return drafted;
        }
        draft.expand(ends, top_k);
    }
}

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
