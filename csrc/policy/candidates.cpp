#include "policy/candidates.h"

#include <algorithm>

namespace eagle3 {

using rank = acceptance::rank;

candidates::candidates(const acceptance & ngram, const planner_params & params) :
    ngram_(ngram), n_nodes_max_(static_cast<size_t>(params.n_nodes_max)),
    n_leaves_max_(params.has_trees() ? params.n_leaves_max : 1), uniform_(params.uniform),
    sequences_(static_cast<size_t>(params.n_seq_max)) {}

void candidates::clear() {
    has_ngrams_ = false;
    seq_ids_.clear();
    nodes_.clear();
    of_source_.clear();
    ranked_.clear();
    chosen_.clear();
    gains_.clear();
}

void candidates::add_sequence(llama_seq_id seq_id, int32_t n_room, int32_t n_levels) {
    of(seq_id) = { seq_ids_.size(), n_room, n_levels };
    seq_ids_.push_back(seq_id);
}

void candidates::add(llama_seq_id seq_id, const std::vector<ngram_node> & suggested) {
    const size_t first = nodes_.size();
    for (const ngram_node & s : suggested) {
        const int32_t parent = s.parent < 0 ? -1 : static_cast<int32_t>(first) + s.parent;
        nodes_.push_back({ parent, s.token, s.depth, seq_id });
        nodes_.back().p_ngram = s.p;
    }
    has_ngrams_ = has_ngrams_ || !suggested.empty();
    rate(first);
}

void candidates::set_source(const acceptance & head, int32_t by_source) {
    source_    = &head;
    by_source_ = by_source;
}

void candidates::add(const std::vector<draft_node> & drafted, size_t first) {
    size_t n_old = nodes_.size();
    for (size_t i = first; i < drafted.size(); ++i) {
        const draft_node & d      = drafted[i];
        const int32_t      parent = d.parent < 0 ? -1 : of_source_[static_cast<size_t>(d.parent)];
        of_source_.push_back(-1);
        if (d.depth > n_levels(d.seq_id)) {
            continue;
        }
        int32_t index = has_ngrams_ ? find(parent, d.token, d.seq_id) : -1;
        if (index < 0) {
            index = static_cast<int32_t>(nodes_.size());
            nodes_.push_back({ parent, d.token, d.depth, d.seq_id });
        }
        n_old              = std::min(n_old, static_cast<size_t>(index));
        // the best one comes first
        const bool is_best = i == first || drafted[i - 1].parent != d.parent || drafted[i - 1].seq_id != d.seq_id;
        node &     n       = nodes_[static_cast<size_t>(index)];
        n.p_source         = d.p;
        n.rank             = is_best ? rank::best : rank::other;
        n.in_source        = static_cast<int32_t>(i);
        of_source_.back()  = index;
    }
    rate(n_old);
}

// a node's child with this token; -1 = none
int32_t candidates::find(int32_t parent, llama_token token, llama_seq_id seq_id) const {
    const auto it = std::find_if(nodes_.begin() + parent + 1, nodes_.end(), [&](const node & n) {
        return n.parent == parent && n.seq_id == seq_id && n.token == token;
    });
    return it == nodes_.end() ? -1 : static_cast<int32_t>(it - nodes_.begin());
}

// how likely the nodes from `first` on are, by what both say of them
void candidates::rate(size_t first) {
    // more than these cannot be chosen, nor expanded
    const size_t n_most = 2 * n_nodes_max_ + sequences_.size();
    const auto   is_new = [first](int32_t i) {
        return static_cast<size_t>(i) >= first;
    };
    ranked_.erase(std::remove_if(ranked_.begin(), ranked_.end(), is_new), ranked_.end());
    for (size_t i = first; i < nodes_.size(); ++i) {
        node &      n        = nodes_[i];
        const float q_source = n.in_source < 0 ? 0.0f : source_->at(n.p_source, n.depth, n.seq_id, n.rank);
        const float q_ngram  = n.p_ngram > 0.0f ? ngram_.at(n.p_ngram, n.depth, n.seq_id, rank::best) : 0.0f;
        n.q                  = std::min(1.0f - (1.0f - q_source) * (1.0f - q_ngram), acceptance::q_max);
        n.cum                = n.q * (n.parent < 0 ? 1.0f : at(n.parent).cum);
        ranked_.insert(std::upper_bound(ranked_.begin(), ranked_.end(), n.cum,
                                        [this](float cum, int32_t other) { return cum > at(other).cum; }),
                       static_cast<int32_t>(i));
        if (ranked_.size() > n_most) {
            ranked_.pop_back();
        }
    }
    choose();
}

// which may be verified together
void candidates::choose() {
    chosen_.clear();
    gains_.clear();
    for (node & n : nodes_) {
        n.n_children = -1;
    }
    for (const llama_seq_id seq_id : seq_ids_) {
        of(seq_id).n_chosen = of(seq_id).n_first = 0;
    }
    int32_t n_leaves = 1; // the first one of each sequence is its own
    for (const int32_t i : ranked_) {
        node &     n          = nodes_[static_cast<size_t>(i)];
        sequence & s          = of(n.seq_id);
        int32_t &  n_siblings = n.parent < 0 ? s.n_first : nodes_[static_cast<size_t>(n.parent)].n_children;
        if (s.n_chosen >= s.n_room || n_siblings < 0 || (n_siblings > 0 && n_leaves >= n_leaves_max_)) {
            continue;
        }
        n_leaves += n_siblings > 0;
        n_siblings++;
        s.n_chosen++;
        n.n_children = 0;
        chosen_.push_back(i);
        if (!uniform_) {
            gains_.push_back(n.cum);
            continue;
        }
        gains_.resize(std::max(gains_.size(), static_cast<size_t>(n.depth)));
        gains_[static_cast<size_t>(n.depth) - 1] += n.cum;
    }
    for (const llama_seq_id seq_id : seq_ids_) { // shorter uniform chains are filled up, if they have room
        gains_.resize(uniform_ ? std::min(gains_.size(), static_cast<size_t>(of(seq_id).n_room)) : gains_.size());
    }
}

std::vector<int32_t> candidates::level(int32_t depth) const {
    std::vector<int32_t> level;
    for (const int32_t i : ranked_) {
        const node & n = at(i);
        // of chains only the one that may be verified
        if (n.in_source >= 0 && n.depth == depth && depth < n_levels(n.seq_id) &&
            (n_leaves_max_ > 1 || n.n_children >= 0)) {
            level.push_back(i);
        }
    }
    return level;
}

void candidates::publish(int32_t n, std::vector<draft_tree> & drafts) {
    drafts.assign(seq_ids_.size(), {});
    if (!uniform_) {
        chosen_.resize(static_cast<size_t>(n));
    }
    std::sort(chosen_.begin(), chosen_.end()); // parents first
    for (const int32_t i : chosen_) {
        node &       c     = nodes_[static_cast<size_t>(i)];
        draft_tree & draft = drafts[of(c.seq_id).in_step];
        if (uniform_ && c.depth > n) {
            continue;
        }
        c.in_draft = static_cast<int32_t>(draft.tokens.size());
        draft.parents.push_back(c.parent < 0 ? -1 : at(c.parent).in_draft);
        draft.tokens.push_back(c.token);
        draft.probs.push_back(c.in_source >= 0 ? c.p_source : c.p_ngram);
        draft.sources.push_back((c.in_source >= 0 ? by_source_ : 0) | (c.p_ngram > 0.0f ? draft_tree::by_ngram : 0));
    }
    for (draft_tree & draft : drafts) {
        while (uniform_ && static_cast<int32_t>(draft.tokens.size()) < n) { // a row that nobody believes in
            draft.parents.push_back(static_cast<int32_t>(draft.tokens.size()) - 1);
            draft.tokens.push_back(0);
            draft.probs.push_back(0.0f);
            draft.sources.push_back(0);
        }
    }
}

} // namespace eagle3
