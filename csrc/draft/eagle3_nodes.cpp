// Drafting node by node: begin, expand, and what a parallel head has drafted ahead.

#include "draft/eagle3_drafter.h"
#include "draft/time_scope.h"
#include "error.h"

#include <algorithm>

namespace eagle3 {

// candidates become nodes behind `parent`; returns the first of them, -1 if there is none
int32_t eagle3_drafter::append_nodes(const participant & part, int32_t parent,
                                     const std::vector<draft_candidate> & found, int32_t state) {
    const int32_t first = static_cast<int32_t>(nodes_.size());
    const int32_t depth = parent < 0 ? 1 : nodes_[parent].depth + 1;
    for (const draft_candidate & c : found) {
        nodes_.push_back({ parent, weights_.to_target(c.id), c.p, depth, part.seq_id });
        places_.push_back({ state, -1 });
    }
    return first < static_cast<int32_t>(nodes_.size()) ? first : -1;
}

void eagle3_drafter::begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                           int32_t top_k, int32_t n_steps) {
    time_scope t(stats.t_propose_us);
    if (top_k < 1 || n_steps < 1 || n_steps > n_unroll_) {
        throw std::invalid_argument(
            format("expected top_k >= 1 and n_steps in 1..%d (n_unroll), found %d and %d", n_unroll_, top_k, n_steps));
    }
    enter(seq_ids, ids_last);
    if (round_.empty()) {
        return;
    }
    // a graph knows no noise and cannot follow what is best with it
    const int32_t n_follow = has_noise() && !is_parallel() ? n_steps - 1 : 0;
    n_steps -= n_follow;
    catch_up(n_top(top_k), n_steps);

    const int32_t n = static_cast<int32_t>(round_.size());
    n_state_        = n * n_steps;
    n_ahead_        = n_steps;
    ahead_.clear();
    if (is_parallel()) {
        for (int32_t j = 0; j < n; ++j) {
            append_nodes(round_[j], -1, ahead(j, 0, top_k), 0);
        }
        return;
    }
    for (int32_t j = 0; j < n; ++j) {
        participant & part = round_[j];
        int32_t       node = -1;
        for (int32_t i = 0; i < std::min(n_steps, n_ctx() - part.pos); ++i) {
            if (node >= 0) {
                places_[node].slot = part.pos + ++part.n_used;
            }
            node = append_nodes(part, node, candidates(part, j, i, i, top_k), i * n + j);
            if (node < 0) {
                break;
            }
        }
    }
    std::vector<int32_t> best;
    for (int32_t i = 0; i < n_follow; ++i) {
        best.clear();
        for (int32_t node = 0; node < static_cast<int32_t>(nodes_.size()); ++node) {
            const int32_t parent   = nodes_[node].parent;
            const bool    is_first = parent < 0 ? node == 0 || nodes_[node - 1].seq_id != nodes_[node].seq_id
                                                : nodes_[node - 1].parent != parent;
            if (nodes_[node].depth == i + 1 && is_first) {
                best.push_back(node);
            }
        }
        expand_nodes(best, top_k);
    }
}

void eagle3_drafter::expand(const std::vector<int32_t> & nodes, int32_t top_k) {
    time_scope t(stats.t_propose_us);
    expand_nodes(nodes, top_k);
}

void eagle3_drafter::expand_nodes(const std::vector<int32_t> & nodes, int32_t top_k) {
    if (top_k < 1) {
        throw std::invalid_argument(format("expected top_k >= 1, found %d", top_k));
    }
    const int32_t n_nodes = static_cast<int32_t>(nodes_.size());
    order_.clear();
    for (const int32_t i : nodes) {
        if (i < 0 || i >= n_nodes) {
            throw std::invalid_argument(format("node %d: this round has %d nodes", i, n_nodes));
        }
        if (places_[i].slot >= 0 || std::find(order_.begin(), order_.end(), i) != order_.end()) {
            throw std::invalid_argument(format("node %d was expanded already", i));
        }
        if (nodes_[i].depth < n_ctx() - participant_of(nodes_[i].seq_id).pos) {
            order_.push_back(i);
        }
    }
    if (is_parallel()) {
        expand_ahead(top_k);
        return;
    }
    if (order_.empty()) {
        return;
    }
    std::stable_sort(order_.begin(), order_.end(), [this](int32_t a, int32_t b) {
        return cache_.row(nodes_[a].seq_id, 0) < cache_.row(nodes_[b].seq_id, 0);
    });

    pass_.clear(graph_kind::expand, n_top(top_k));
    int32_t n_new = 0; // of the same sequence
    for (const int32_t i : order_) {
        const draft_node &  node = nodes_[i];
        const participant & part = participant_of(node.seq_id);
        n_new                    = pass_.rows.empty() || pass_.rows.back().seq_id != node.seq_id ? 1 : n_new + 1;
        if (part.n_used + n_new > draft_cache::n_scratch) {
            throw std::invalid_argument(format("sequence %d: at most %d nodes of a round can be expanded", part.seq_id,
                                               draft_cache::n_scratch));
        }
        draft_pass::row & row = add_row(node.seq_id, node.token, part.pos + node.depth);
        row.slot              = part.pos + part.n_used + n_new;
        row.end               = part.pos + 1;
        row.state_in          = places_[i].state;
        row.state_out         = n_state_ + static_cast<int32_t>(pass_.rows.size()) - 1;

        int32_t n_seen = 1;
        pass_.ancestors.push_back(row.slot);
        for (int32_t j = node.parent; j >= 0; j = nodes_[j].parent) {
            if (hparams_.sliding_window > 0 && node.depth - nodes_[j].depth >= hparams_.sliding_window) {
                break;
            }
            pass_.ancestors.push_back(places_[j].slot);
            n_seen++;
        }
        pass_.n_ancestors.push_back(n_seen);
    }
    compute();

    for (size_t k = 0; k < order_.size(); ++k) {
        participant & part = participant_of(nodes_[order_[k]].seq_id);
        part.n_used++;
        places_[order_[k]].slot = pass_.rows[k].slot;
        append_nodes(part, order_[k], candidates(part, static_cast<int32_t>(k), 0, nodes_[order_[k]].depth, top_k),
                     n_state_++);
    }
    state_last_ = n_state_ - 1;
}

const std::vector<draft_candidate> & eagle3_drafter::ahead(int32_t i_part, int32_t depth, int32_t top_k) {
    ahead_.resize(round_.size() * n_ahead_);
    std::vector<draft_candidate> & found = ahead_[static_cast<size_t>(i_part) * n_ahead_ + depth];
    if (found.empty()) {
        found = candidates(round_[i_part], i_part, depth, depth, top_k);
    }
    return found;
}

// the nodes order_ of a parallel head
void eagle3_drafter::expand_ahead(int32_t top_k) {
    for (const int32_t i : order_) {
        const draft_node    node = nodes_[i];
        const participant & part = participant_of(node.seq_id);
        places_[i].slot          = part.pos + node.depth;
        if (node.depth < n_ahead_) {
            std::vector<draft_candidate> found = ahead(static_cast<int32_t>(&part - round_.data()), node.depth, top_k);
            found.resize(std::min(found.size(), static_cast<size_t>(top_k)));
            append_nodes(part, i, found, 0);
        }
    }
}

eagle3_drafter::participant & eagle3_drafter::participant_of(llama_seq_id seq_id) {
    return *std::find_if(round_.begin(), round_.end(),
                         [seq_id](const participant & part) { return part.seq_id == seq_id; });
}

} // namespace eagle3
