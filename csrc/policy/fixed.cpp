#include "policy/fixed.h"

#include "error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace eagle3 {

namespace {

constexpr int32_t n_top_llama = 10; // llama.cpp's drafter samples from the ten best logits
constexpr int32_t none        = -1;

// The draft of one request. Its nodes are those of the session that belong to the shape.
struct growing {
    const fixed_request * request;
    draft_tree *          result;
    int32_t               first      = none; // of the session's nodes after id_last
    int32_t               n_followed = 0;
    std::vector<int32_t>  followed   = {}; // nodes of the last level whose children belong to it; at first id_last
    std::vector<int32_t>  kept       = {}; // all nodes
};

class fixed_drafts {
  public:
    explicit fixed_drafts(draft_session & draft) : draft_(draft), nodes_(draft.nodes()) {}

    // one more level; `ends` gets its nodes that have to be expanded first
    void grow(growing & g, int32_t depth, std::vector<int32_t> & ends) {
        const draft_shape & shape = g.request->shape;
        const size_t        first = g.kept.size();
        if (depth == 1) {
            keep_children(g, none, g.first);
        }
        for (const int32_t node : g.followed) {
            keep_children(g, node, children_[node]);
        }
        g.followed.assign(g.kept.begin() + static_cast<std::ptrdiff_t>(first), g.kept.end());
        keep_best(g.followed, shape.top_k);
        g.n_followed += static_cast<int32_t>(g.followed.size());
        if (depth >= shape.depth || g.n_followed > draft_.n_expand()) {
            g.followed.clear();
        }
        std::copy_if(g.followed.begin(), g.followed.end(), std::back_inserter(ends),
                     [this](int32_t node) { return children_[node] == none && !nodes_[node].is_expanded; });
    }

    // nodes that the session has appended
    void see(std::vector<growing> & all) {
        const int32_t n = static_cast<int32_t>(nodes_.size());
        for (int32_t i = static_cast<int32_t>(children_.size()); i < n; ++i) {
            const draft_node & node = nodes_[i];
            children_.push_back(none);
            score_.push_back(0.0);
            int32_t & first = node.parent >= 0 ? children_[node.parent] : of(all, node.seq_id).first;
            first           = first == none ? i : first;
        }
    }

    // the n_tokens best nodes, with as many leaves as are left
    void publish(growing & g, int32_t & n_leaves) {
        const draft_shape & shape = g.request->shape;
        keep_best(g.kept, shape.top_k > 1 ? std::min(shape.n_tokens, n_leaves) : shape.n_tokens);
        if (static_cast<int32_t>(g.kept.size()) < shape.n_min) {
            return;
        }
        std::sort(g.kept.begin(), g.kept.end());
        draft_tree & tree     = *g.result;
        int32_t      n_inner  = 0; // nodes that others follow
        int32_t      last_one = none;
        for (const int32_t i : g.kept) {
            const draft_node & node   = nodes_[i];
            const auto         parent = std::lower_bound(g.kept.begin(), g.kept.end(), node.parent) - g.kept.begin();
            tree.tokens.push_back(node.token);
            tree.parents.push_back(node.parent < 0 ? none : static_cast<int32_t>(parent));
            tree.probs.push_back(node.p);
            n_inner += node.parent != last_one; // children of one node lie together
            last_one = node.parent;
        }
        n_leaves -= std::max(0, static_cast<int32_t>(tree.tokens.size()) - n_inner - 1);
    }

  private:
    static growing & of(std::vector<growing> & all, llama_seq_id seq_id) {
        return *std::find_if(all.begin(), all.end(),
                             [seq_id](const growing & g) { return g.request->seq_id == seq_id; });
    }

    // those after `parent` that belong to the shape
    void keep_children(growing & g, int32_t parent, int32_t first) {
        const draft_shape & shape = g.request->shape;
        const auto          ends  = [&](int32_t i) {
            return i >= static_cast<int32_t>(nodes_.size()) || nodes_[i].parent != parent ||
                   nodes_[i].seq_id != g.request->seq_id;
        };
        float sum = 0.0f;
        for (int32_t i = first; first >= 0 && !ends(i) && i < first + n_top_llama; ++i) {
            sum += nodes_[i].p;
        }
        for (int32_t i = first; first >= 0 && !ends(i) && i < first + shape.top_k; ++i) {
            const float p = nodes_[i].p / (draft_.has_confidence() ? 1.0f : sum);
            if (shape.p_min > 0.0f && !(p >= shape.p_min)) {
                return;
            }
            score_[i] =
                (parent < 0 ? 0.0 : score_[parent]) + (nodes_[i].p > 0.0f ? std::log(static_cast<double>(nodes_[i].p))
                                                                          : -std::numeric_limits<double>::infinity());
            g.kept.push_back(i);
        }
    }

    // of equally probable nodes the earlier one: a parent comes before its children
    void keep_best(std::vector<int32_t> & nodes, int32_t n) const {
        if (static_cast<int32_t>(nodes.size()) <= n) {
            return;
        }
        std::partial_sort(nodes.begin(), nodes.begin() + n, nodes.end(), [this](int32_t a, int32_t b) {
            return score_[a] > score_[b] || (score_[a] == score_[b] && a < b);
        });
        nodes.resize(static_cast<size_t>(n));
    }

    draft_session &                 draft_;
    const std::vector<draft_node> & nodes_;
    std::vector<int32_t>            children_; // of each node the first one
    std::vector<double>             score_;    // logarithms of the probabilities along the path, of nodes that are kept
};

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

} // namespace

std::vector<draft_tree> draft_fixed(draft_session & draft, const std::vector<fixed_request> & requests,
                                    int32_t n_leaves) {
    std::vector<draft_tree>   result(requests.size());
    std::vector<growing>      all;
    std::vector<llama_seq_id> seq_ids;
    std::vector<llama_token>  ids_last;
    int32_t                   n_top = 1, n_steps = 1;
    bool                      has_trees = false;
    for (size_t i = 0; i < requests.size(); ++i) {
        const draft_shape & shape = requests[i].shape;
        check(shape, draft.n_expand());
        if (shape.depth > 0 && shape.n_tokens > 0) {
            all.push_back({ &requests[i], &result[i] });
            seq_ids.push_back(requests[i].seq_id);
            ids_last.push_back(requests[i].id_last);
            n_top     = std::max(n_top, shape.p_min > 0.0f ? std::max(n_top_llama, shape.top_k) : shape.top_k);
            n_steps   = std::max(n_steps, shape.depth);
            has_trees = has_trees || shape.top_k > 1;
        }
    }
    if (all.empty()) {
        return result;
    }
    // a graph of several levels follows the best token alone, but for a parallel drafter's
    n_steps = has_trees && !draft.is_parallel() ? 1 : std::min(n_steps, draft.n_unroll());
    draft.begin(seq_ids, ids_last, n_top, n_steps);

    fixed_drafts         drafts(draft);
    std::vector<int32_t> ends;
    for (int32_t depth = 1;; ++depth) {
        drafts.see(all);
        ends.clear();
        bool grows = false;
        for (growing & g : all) {
            drafts.grow(g, depth, ends);
            grows = grows || !g.followed.empty();
        }
        if (!ends.empty()) {
            draft.expand(ends, n_top);
        }
        if (!grows) {
            break;
        }
    }
    for (growing & g : all) {
        drafts.publish(g, n_leaves);
    }
    return result;
}

} // namespace eagle3
