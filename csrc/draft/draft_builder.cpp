#include "draft/draft_builder.h"

#include "error.h"

#include <algorithm>
#include <numeric>

namespace eagle3 {

// a row of the next graph that sees all of its sequence before it
draft_pass::row & draft_builder::add_row(llama_seq_id seq_id, llama_token token, int32_t pos) {
    return pass_.add_row(seq_id, token, pos, memory_.sequence(seq_id).pos_start());
}

// start a draft for those of the sequences that have something to draft from
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
            part.i_call  = i;
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

// The waiting rows of all participants: step i of participant j leaves its recurrent row in row i * n + j of the state.
// Of a parallel head with the rows of all steps behind them.
void draft_builder::catch_up(int32_t n_top, int32_t n_steps) {
    for (const participant & part : participants_) {
        memory_.request(part.seq_id, part.pos + 1 + part.n_left);
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

// the next tokens of all chains; their recurrent rows are moved as catch_up leaves them
void draft_builder::step(int32_t n_top, int32_t n_steps) {
    const int32_t n        = static_cast<int32_t>(participants_.size());
    bool          in_place = n_steps == 1;
    for (int32_t j = 0; j < n; ++j) {
        in_place &= participants_[j].state_row == j;
    }
    pass_.clear(in_place ? graph_kind::step : graph_kind::expand, n_top, n_steps);
    for (int32_t j = 0; j < n; ++j) {
        const participant & part = participants_[j];
        draft_pass::row &   row  = add_row(part.seq_id, part.token, part.pos + part.n_used);
        row.state_in             = part.state_row;
        row.state_out            = j;
    }
    pass_.state_last = n * (n_steps - 1);
    compute();
}

// of a participant
bool draft_builder::knows_something() const {
    return std::any_of(participants_.begin(), participants_.end(),
                       [this](const participant & part) { return foresight_[part.seq_id].knows_something(); });
}

// candidates that a graph has to give for n of them
int32_t draft_builder::n_top(int32_t n) const {
    return std::min(knows_something() ? std::max(n, foresight::n_top_known) : n, weights_.n_vocab_dft);
}

// The n_top best tokens of an output of the last graph, behind the drafted tokens `path`.
std::vector<draft_candidate> draft_builder::candidates(const participant & part, int32_t i_out, int32_t i_step,
                                                       const std::vector<llama_token> & path, int32_t n_top) {
    std::vector<draft_candidate> found = runner_.candidates(i_out, i_step);
    foresight_[part.seq_id].order(path, [this](int32_t id) { return weights_.to_target(id); }, found, n_top);
    return found;
}

// the tokens up to a node
std::vector<llama_token> draft_builder::path_to(int32_t node) const {
    std::vector<llama_token> path;
    for (; node >= 0; node = nodes_[node].parent) {
        path.push_back(nodes_[node].token);
    }
    std::reverse(path.begin(), path.end());
    return path;
}

// a token that the last graph drafted, or -1 if its probability is below p_min
llama_token draft_builder::drafted(const participant & part, int32_t i_out, int32_t i_step,
                                   const std::vector<llama_token> & path, float p_min) {
    if (foresight_[part.seq_id].knows_something()) {
        const auto found = candidates(part, i_out, i_step, path, 1);
        return found.empty() || found.front().p < p_min ? -1 : weights_.to_target(found.front().id);
    }
    const int32_t id = runner_.best(i_out, i_step);
    if (id >= 0 && p_min > 0.0f) {
        float      sum   = 0.0f;
        const auto found = candidates(part, i_out, i_step, path, n_top_llama);
        for (const draft_candidate & c : found) {
            sum += c.p;
        }
        if (!(sum > 0.0f) || found.front().p / sum < p_min) {
            return -1;
        }
    }
    return id < 0 ? -1 : weights_.to_target(id);
}

std::vector<std::vector<llama_token>> draft_builder::propose_batch(const std::vector<llama_seq_id> & seq_ids,
                                                                   const std::vector<llama_token> &  ids_last,
                                                                   const std::vector<int32_t> & n_max, float p_min) {
    if (n_max.size() != seq_ids.size()) {
        throw std::invalid_argument(
            format("expected one n_max per sequence, found %zu for %zu", n_max.size(), seq_ids.size()));
    }
    enter(seq_ids, ids_last);

    std::vector<std::vector<llama_token>> result(seq_ids.size());

    const auto end_chains = [this] {
        participants_.erase(std::remove_if(participants_.begin(), participants_.end(),
                                           [](const participant & part) { return part.n_left <= 0; }),
                            participants_.end());
        return participants_.empty();
    };
    for (participant & part : participants_) {
        part.n_left = std::min(n_max[part.i_call], memory_.n_ctx() - part.pos);
    }
    if (end_chains()) {
        return result;
    }

    const int32_t n_top    = this->n_top(p_min > 0.0f ? n_top_llama : 0);
    const auto    n_unroll = [this] {
        int32_t n_left = 0;
        for (const participant & part : participants_) {
            n_left = std::max(n_left, part.n_left);
        }
        // a graph that follows its best token knows of nothing else; that of a parallel head does not choose
        return std::min(n_left, knows_something() && !is_parallel() ? 1 : n_unroll_);
    };
    int32_t n_steps = n_unroll();
    catch_up(n_top, n_steps);
    while (true) {
        const int32_t n = static_cast<int32_t>(participants_.size());
        for (int32_t j = 0; j < n; ++j) {
            participant & part = participants_[j];
            for (int32_t i = 0; i < n_steps && part.n_left > 0; ++i) {
                part.token = drafted(part, j, i, result[part.i_call], p_min);
                if (part.token < 0) {
                    part.n_left = 0;
                    break;
                }
                result[part.i_call].push_back(part.token);
                part.n_left--;
                part.n_used++;
            }
            part.state_row = n * (n_steps - 1) + j;
        }
        if (end_chains() || is_parallel()) {
            return result;
        }
        n_steps = n_unroll();
        step(n_top, n_steps);
    }
}

// candidates become nodes behind `parent`; returns the first of them, -1 if there is none
int32_t draft_builder::append_nodes(const participant & part, int32_t parent,
                                    const std::vector<draft_candidate> & found, int32_t state) {
    const int32_t first = static_cast<int32_t>(nodes_.size());
    const int32_t depth = parent < 0 ? 1 : nodes_[parent].depth + 1;
    for (const draft_candidate & c : found) {
        nodes_.push_back({ parent, weights_.to_target(c.id), c.p, depth, part.seq_id });
        node_rows_.push_back({ state, -1 });
    }
    return first < static_cast<int32_t>(nodes_.size()) ? first : -1;
}

void draft_builder::begin(const std::vector<llama_seq_id> & seq_ids, const std::vector<llama_token> & ids_last,
                          int32_t top_k, int32_t n_steps) {
    if (top_k < 1 || n_steps < 1 || n_steps > n_unroll_) {
        throw std::invalid_argument(
            format("expected top_k >= 1 and n_steps in 1..%d (n_unroll), found %d and %d", n_unroll_, top_k, n_steps));
    }
    enter(seq_ids, ids_last);
    if (participants_.empty()) {
        return;
    }
    // a graph knows of nothing else, so it cannot follow the best token
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
            node               = append_nodes(part, node, candidates(part, j, i, path_to(node), top_k), i * n + j);
            const int32_t best = runner_.best(j, i); // which the graph follows
            if (node < 0 || best < 0 || weights_.to_target(best) < 0) {
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
        expand(best, top_k);
    }
}

void draft_builder::expand(const std::vector<int32_t> & nodes, int32_t top_k) {
    if (top_k < 1) {
        throw std::invalid_argument(format("expected top_k >= 1, found %d", top_k));
    }
    const int32_t n_nodes = static_cast<int32_t>(nodes_.size());
    order_.clear();
    for (const int32_t i : nodes) {
        if (i < 0 || i >= n_nodes) {
            throw std::invalid_argument(format("node %d: this draft has %d nodes", i, n_nodes));
        }
        if (node_rows_[i].slot >= 0 || std::find(order_.begin(), order_.end(), i) != order_.end()) {
            throw std::invalid_argument(format("node %d was expanded already", i));
        }
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
        append_nodes(part, order_[k], candidates(part, static_cast<int32_t>(k), 0, path_to(order_[k]), top_k),
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

// the nodes order_ of a parallel head
void draft_builder::expand_ahead(int32_t top_k) {
    for (const int32_t i : order_) {
        const draft_node    node = nodes_[i];
        const participant & part = participant_of(node.seq_id);
        node_rows_[i].slot       = part.pos + node.depth;
        if (node.depth < n_ahead_) {
            std::vector<draft_candidate> found =
                ahead(static_cast<int32_t>(&part - participants_.data()), path_to(i), top_k);
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
