#include "drafters/eagle3/draft_builder.h"

#include "error.h"

#include <algorithm>
#include <numeric>

namespace eagle3 {

// Adds a row to the next graph that sees all earlier positions of its sequence.
draft_pass::row & draft_builder::add_row(llama_seq_id seq_id, llama_token token, int32_t pos) {
    return pass_.add_row(seq_id, token, pos, memory_.sequence(seq_id).pos_start());
}

// Starts a draft for those of the sequences that have a waiting row.
void draft_builder::enter(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last) {
    memory_.sequences().check_begin(seq_ids, ids_last);
    order_.resize(seq_ids.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return seq_ids[a] < seq_ids[b]; });
    end();
    for (const int32_t i : order_) {
        const draft_sequence & seq = memory_.sequence(seq_ids[i]);
        if (seq.n_rows() > 0) {
            participant part;
            part.seq_id  = seq_ids[i];
            part.id_last = ids_last[i];
            part.pos     = seq.n_past() - 1;
            participants_.push_back(part);
        }
    }
}

void draft_builder::end() {
    participants_.clear();
    nodes_.clear();
    node_rows_.clear();
}

void draft_builder::compute() {
    runner_.compute(pass_);
    stats_.n_steps += is_parallel() ? 1 : pass_.n_steps;
}

// Evaluates the waiting rows of all participants. Step i of participant j leaves its recurrent row in row i * n + j of
// the state. A parallel head also computes the rows of all steps after them.
void draft_builder::catch_up(int32_t n_top, int32_t n_steps) {
    for (const participant & part : participants_) {
        memory_.request(part.seq_id, part.pos + 1);
    }
    memory_.provide();
    for (const participant & part : participants_) {
        if (memory_.sequence(part.seq_id).n_rows() > draft_limits::n_catch_up_max) {
            writer_.flush(part.seq_id);
        }
    }
    std::sort(participants_.begin(), participants_.end(), [this](const participant & a, const participant & b) {
        return memory_.cache().row(a.seq_id, 0) < memory_.cache().row(b.seq_id, 0);
    });
    const int32_t n_masked = is_parallel() ? n_steps - 1 : 0; // of each
    int32_t       n_feat   = 0;
    for (const participant & part : participants_) {
        n_feat += memory_.sequence(part.seq_id).n_rows();
    }
    const int32_t mask_row = n_feat;
    n_feat                 = 0;
    pass_.clear(graph_kind::catch_up, n_top, n_steps);
    for (const participant & part : participants_) {
        const draft_sequence & seq = memory_.sequence(part.seq_id);
        const int32_t          n   = seq.n_rows();
        pass_.features.push_back({ seq.rows(), n });
        for (int32_t i = 0; i < n; ++i) {
            const llama_token next = i + 1 < n ? seq.tokens()[i + 1] : part.id_last;
            draft_pass::row & row  = add_row(part.seq_id, next, seq.pos_first() + i);
            row.is_out             = i + 1 == n;
            row.state_in           = n_feat++;
        }
        for (int32_t i = 1; i <= n_masked; ++i) {
            add_row(part.seq_id, hparams_.mask_token, part.pos + i).state_in = mask_row;
        }
    }
    if (n_masked > 0) {
        pass_.features.push_back({ weights_.mask_hidden.data(), 1 });
    }
    pass_.state_last = is_parallel() ? n_steps - 1 : static_cast<int32_t>(participants_.size()) * (n_steps - 1);
    compute();
    stats_.n_propose++;
    for (const participant & part : participants_) {
        memory_.sequence(part.seq_id).on_proposed(part.id_last);
    }
}

// of a participant
bool draft_builder::knows_something() const {
    return std::any_of(participants_.begin(), participants_.end(),
                       [this](const participant & part) { return foresight_[part.seq_id].knows_something(); });
}

// How many candidates a graph must give for n of them.
int32_t draft_builder::n_top(int32_t n) const {
    return std::min(knows_something() ? std::max(n, foresight::n_top_known) : n, weights_.n_vocab_dft);
}

// The n_top best tokens of an output of the last graph, after the drafted tokens `path`.
std::vector<draft_candidate> draft_builder::candidates(const participant & part, int32_t i_out, int32_t i_step,
                                                       const std::vector<llama_token> & path, int32_t n_top) {
    std::vector<draft_candidate> found = runner_.candidates(i_out, i_step);
    foresight_[part.seq_id].order(path, [this](int32_t id) { return weights_.to_target(id); }, found, n_top);
    return found;
}

// Appends candidates as nodes after `parent`. Returns the first of them, -1 if there is none.
int32_t draft_builder::append_nodes(const participant & part, int32_t parent,
                                    const std::vector<draft_candidate> & found, int32_t state) {
    const int32_t first = nodes_.append(part.seq_id, parent, found);
    node_rows_.resize(static_cast<size_t>(nodes_.n()), { state, -1 });
    return first;
}

void draft_builder::begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                          int32_t top_k, int32_t n_steps) {
    draft_nodes::check_begin(top_k, n_steps, n_unroll_);
    enter(seq_ids, ids_last);
    if (participants_.empty()) {
        return;
    }
    // a graph knows neither noise nor grammar, so with these it cannot follow the best token
    const int32_t n_follow = knows_something() && !is_parallel() ? n_steps - 1 : 0;
    n_steps -= n_follow;
    catch_up(n_top(top_k), n_steps);

    const int32_t n = static_cast<int32_t>(participants_.size());
    n_state_        = n * n_steps;
    n_ahead_        = n_steps;
    ahead_.clear();
    if (is_parallel()) {
        for (int32_t j = 0; j < n; ++j) {
            append_nodes(participants_[j], -1, ahead(j, {}, top_k), 0);
        }
        return;
    }
    for (int32_t j = 0; j < n; ++j) {
        participant & part = participants_[j];
        int32_t       node = -1;
        for (int32_t i = 0; i < std::min(n_steps, memory_.n_ctx() - part.pos); ++i) {
            if (node >= 0) {
                node_rows_[node].slot = part.pos + ++part.n_used;
            }
            node               = append_nodes(part, node, candidates(part, j, i, nodes_.path(node), top_k), i * n + j);
            const int32_t best = runner_.best(j, i); // the graph has followed this one
            if (node < 0 || best < 0 || weights_.to_target(best) < 0) {
                break;
            }
        }
    }
    std::vector<int32_t> best;
    for (int32_t i = 0; i < n_follow; ++i) {
        best.clear();
        for (int32_t node = 0; node < nodes_.n(); ++node) {
            const int32_t parent   = nodes_[node].parent;
            const bool    is_first = parent < 0 ? node == 0 || nodes_[node - 1].seq_id != nodes_[node].seq_id
                                                : nodes_[node - 1].parent != parent;
            if (nodes_[node].depth == i + 1 && is_first) {
                best.push_back(node);
            }
        }
        expand(best, top_k);
    }
}

void draft_builder::expand(const std::vector<int32_t> & nodes, int32_t top_k) {
    nodes_.mark_expanded(nodes, top_k);
    order_.clear();
    for (const int32_t i : nodes) {
        if (nodes_[i].depth < memory_.n_ctx() - participant_of(nodes_[i].seq_id).pos) {
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
        return memory_.cache().row(nodes_[a].seq_id, 0) < memory_.cache().row(nodes_[b].seq_id, 0);
    });

    pass_.clear(graph_kind::expand, n_top(top_k));
    int32_t n_new = 0; // of the same sequence
    for (const int32_t i : order_) {
        const draft_node &  node = nodes_[i];
        const participant & part = participant_of(node.seq_id);
        n_new                    = pass_.rows.empty() || pass_.rows.back().seq_id != node.seq_id ? 1 : n_new + 1;
        if (part.n_used + n_new > draft_cache::n_scratch) {
            throw std::invalid_argument(format("sequence %d: at most %d nodes of a draft can be expanded", part.seq_id,
                                               draft_cache::n_scratch));
        }
        draft_pass::row & row = add_row(node.seq_id, node.token, part.pos + node.depth);
        row.slot              = part.pos + part.n_used + n_new;
        row.end               = part.pos + 1;
        row.state_in          = node_rows_[i].state;
        row.state_out         = n_state_ + static_cast<int32_t>(pass_.rows.size()) - 1;

        int32_t n_seen = 1;
        pass_.ancestors.push_back(row.slot);
        for (int32_t j = node.parent; j >= 0; j = nodes_[j].parent) {
            if (hparams_.sliding_window > 0 && node.depth - nodes_[j].depth >= hparams_.sliding_window) {
                break;
            }
            pass_.ancestors.push_back(node_rows_[j].slot);
            n_seen++;
        }
        pass_.n_ancestors.push_back(n_seen);
    }
    pass_.state_last = n_state_ + static_cast<int32_t>(pass_.rows.size()) - 1;
    compute();

    for (size_t k = 0; k < order_.size(); ++k) {
        participant & part = participant_of(nodes_[order_[k]].seq_id);
        part.n_used++;
        node_rows_[order_[k]].slot = pass_.rows[k].slot;
        append_nodes(part, order_[k], candidates(part, static_cast<int32_t>(k), 0, nodes_.path(order_[k]), top_k),
                     n_state_++);
    }
}

const std::vector<draft_candidate> & draft_builder::ahead(int32_t i_part, const std::vector<llama_token> & path,
                                                          int32_t top_k) {
    const participant & part  = participants_[i_part];
    const auto          depth = static_cast<int32_t>(path.size());
    ahead_.resize(participants_.size() * n_ahead_);
    std::vector<draft_candidate> & found = ahead_[static_cast<size_t>(i_part) * n_ahead_ + depth];
    if (found.empty() || foresight_[part.seq_id].rules) { // which look at the path too
        found = candidates(part, i_part, depth, path, top_k);
    }
    return found;
}

// Expands the nodes order_ of a parallel head.
void draft_builder::expand_ahead(int32_t top_k) {
    for (const int32_t i : order_) {
        const draft_node    node = nodes_[i];
        const participant & part = participant_of(node.seq_id);
        if (node.depth < n_ahead_) {
            std::vector<draft_candidate> found =
                ahead(static_cast<int32_t>(&part - participants_.data()), nodes_.path(i), top_k);
            found.resize(std::min(found.size(), static_cast<size_t>(top_k)));
            append_nodes(part, i, found, 0);
        }
    }
}

draft_builder::participant & draft_builder::participant_of(llama_seq_id seq_id) {
    return *std::find_if(participants_.begin(), participants_.end(),
                         [seq_id](const participant & part) { return part.seq_id == seq_id; });
}

} // namespace eagle3
