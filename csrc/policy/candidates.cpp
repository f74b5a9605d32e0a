#include "policy/candidates.h"

#include <algorithm>

namespace eagle3 {

void candidates::clear() {
    has_ngrams_ = false;
    sequences_.clear();
    nodes_.clear();
    of_source_.clear();
    ranked_.clear();
    chosen_.clear();
    gains_.clear();
}

void candidates::add_sequence(llama_seq_id seq_id, int32_t n_room, int32_t n_levels) {
    sequences_.insert_or_assign(seq_id, sequence{ sequences_.size(), n_room, n_levels });
}

void candidates::add(llama_seq_id seq_id, const std::vector<ngram_node> & suggested) {
    const size_t first = nodes_.size();
    for (const ngram_node & s : suggested) {
        const int32_t parent = s.parent < 0 ? -1 : static_cast<int32_t>(first) + s.parent;
        nodes_.push_back({ parent, s.token, s.depth, seq_id });
        nodes_.back().p_ngram   = s.p;
        nodes_.back().is_forced = s.is_forced;
    }
    has_ngrams_ = has_ngrams_ || !suggested.empty();
    rate(first, nullptr);
}

void candidates::add(const std::vector<draft_node> & drafted, size_t first, const acceptance * accepted, int32_t bit,
                     const std::function<bool(size_t)> & keeps) {
    size_t n_old = nodes_.size();
    bit_         = bit;
    for (size_t i = first; i < drafted.size(); ++i) {
        const draft_node & d      = drafted[i];
        const int32_t      parent = d.parent < 0 ? -1 : of_source_[static_cast<size_t>(d.parent)];
        of_source_.push_back(-1);
        if (d.depth > n_levels(d.seq_id) || (d.parent >= 0 && parent < 0) || (keeps && !keeps(i))) {
            continue;
        }
        int32_t index = has_ngrams_ ? find(parent, d.token, d.seq_id) : -1;
        if (index < 0) {
            index = static_cast<int32_t>(nodes_.size());
            nodes_.push_back({ parent, d.token, d.depth, d.seq_id });
        }
        n_old             = std::min(n_old, static_cast<size_t>(index));
        node & n          = nodes_[static_cast<size_t>(index)];
        n.p_source        = d.p;
        n.is_best         = i == first || drafted[i - 1].parent != d.parent || drafted[i - 1].seq_id != d.seq_id;
        n.in_source       = static_cast<int32_t>(i);
        of_source_.back() = index;
    }
    rate(n_old, accepted);
}

// a node's child with this token; -1 = none
int32_t candidates::find(int32_t parent, llama_token token, llama_seq_id seq_id) const {
    const auto it = std::find_if(nodes_.begin() + parent + 1, nodes_.end(), [&](const node & n) {
        return n.parent == parent && n.seq_id == seq_id && n.token == token;
    });
    return it == nodes_.end() ? -1 : static_cast<int32_t>(it - nodes_.begin());
}

// Computes how likely the nodes from `first` on are accepted, and ranks them.
void candidates::rate(size_t first, const acceptance * source) {
    // no more than these can be chosen or expanded
    const size_t n_most = 2 * static_cast<size_t>(params_.n_nodes_max) + sequences_.size();
    const auto   is_new = [first](int32_t i) {
        return static_cast<size_t>(i) >= first;
    };
    ranked_.erase(std::remove_if(ranked_.begin(), ranked_.end(), is_new), ranked_.end());
    for (size_t i = first; i < nodes_.size(); ++i) {
        node &      n        = nodes_[i];
        const float p        = n.p_source > 0.0f ? n.p_source : 0.0f;
        const float q_source = n.in_source < 0 ? 0.0f : source ? source->at(p, n.depth, n.is_best) : p;
        const float q_ngram  = n.p_ngram > 0.0f ? of_text(n).at(n.p_ngram, n.depth, true) : 0.0f;
        const float q        = 1.0f - (1.0f - q_source) * (1.0f - q_ngram);
        n.cum                = (source ? std::min(q, acceptance::q_max) : q) * (n.parent < 0 ? 1.0 : at(n.parent).cum);
        ranked_.insert(std::upper_bound(ranked_.begin(), ranked_.end(), n.cum,
                                        [this](double cum, int32_t other) { return cum > at(other).cum; }),
                       static_cast<int32_t>(i));
        if (ranked_.size() > n_most) {
            ranked_.pop_back();
        }
    }
    choose();
}

// Chooses, in the order of rank, the nodes that may be verified together.
void candidates::choose() {
    chosen_.clear();
    gains_.clear();
    for (node & n : nodes_) {
        n.n_children = -1;
    }
    for (auto & [seq_id, s] : sequences_) {
        s.n_chosen = s.n_first = 0;
    }
    int32_t       n_leaves     = 1; // each sequence's first leaf uses the sequence's own id and is not counted
    const int32_t n_leaves_max = params_.has_trees() ? params_.n_leaves_max : 1;
    for (const int32_t i : ranked_) {
        node &     n          = nodes_[static_cast<size_t>(i)];
        sequence & s          = sequences_.at(n.seq_id);
        int32_t &  n_siblings = n.parent < 0 ? s.n_first : nodes_[static_cast<size_t>(n.parent)].n_children;
        if (s.n_chosen >= s.n_room || n_siblings < 0 || (n_siblings > 0 && n_leaves >= n_leaves_max)) {
            continue;
        }
        n_leaves += n_siblings > 0;
        n_siblings++;
        s.n_chosen++;
        n.n_children = 0;
        chosen_.push_back(i);
        const size_t to = params_.uniform ? static_cast<size_t>(n.depth) - 1 : gains_.size();
        gains_.resize(std::max(gains_.size(), to + 1));
        gains_[to] += static_cast<float>(n.cum);
    }
    for (const auto & [seq_id, s] : sequences_) { // publish() pads shorter uniform chains: all must have room
        gains_.resize(params_.uniform ? std::min(gains_.size(), static_cast<size_t>(s.n_room)) : gains_.size());
    }
}

std::vector<int32_t> candidates::level(int32_t depth) const {
    const bool           is_chain = !params_.has_trees() || params_.n_leaves_max == 1;
    std::vector<int32_t> level;
    std::copy_if(ranked_.begin(), ranked_.end(), std::back_inserter(level), [&](int32_t i) {
        const node & n = at(i); // a chain goes on only after the node that may be verified
        return n.in_source >= 0 && n.depth == depth && depth < n_levels(n.seq_id) && (!is_chain || n.n_children >= 0);
    });
    return level;
}

void candidates::publish(size_t n, std::vector<draft_tree> & drafts) {
    drafts.assign(sequences_.size(), {});
    if (!params_.uniform) {
        chosen_.resize(n);
    }
    std::sort(chosen_.begin(), chosen_.end()); // parents first
    for (const int32_t i : chosen_) {
        node &       c     = nodes_[static_cast<size_t>(i)];
        draft_tree & draft = drafts[sequences_.at(c.seq_id).in_step];
        if (params_.uniform && static_cast<size_t>(c.depth) > n) {
            continue;
        }
        c.in_draft = static_cast<int32_t>(draft.tokens.size());
        draft.parents.push_back(c.parent < 0 ? -1 : at(c.parent).in_draft);
        draft.tokens.push_back(c.token);
        draft.probs.push_back(c.in_source >= 0 ? c.p_source : c.p_ngram);
        const int32_t by_text = c.is_forced ? draft_tree::by_grammar : c.p_ngram > 0.0f ? draft_tree::by_ngram : 0;
        draft.sources.push_back((c.in_source >= 0 ? bit_ : 0) | by_text);
    }
    for (draft_tree & draft : drafts) {
        while (params_.uniform && draft.tokens.size() < n) { // padding: no drafter proposed these tokens
            draft.parents.push_back(static_cast<int32_t>(draft.tokens.size()) - 1);
            draft.tokens.push_back(0);
            draft.probs.push_back(0.0f);
            draft.sources.push_back(0);
        }
    }
}

} // namespace eagle3
