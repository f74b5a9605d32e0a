// Drafts of n-grams, beside what the head drafts.

#include "planner/planner.h"

#include <algorithm>

namespace eagle3 {

namespace {

constexpr float   q_max        = 0.995f; // a child is always less likely than its parent
constexpr int32_t n_ngram_some = 8;      // tokens of each sequence at least, if there are many

// of two that exclude each other: how likely one is right whom the other contradicts
float against(float q, float other) {
    return q * (1.0f - other) / std::max(1.0f - q * other, 1e-6f);
}

} // namespace

void planner::insert_candidate(std::vector<candidate> & list, const candidate & c, size_t n_max) {
    const auto at = std::upper_bound(list.begin(), list.end(), c,
                                     [](const candidate & a, const candidate & b) { return a.cum > b.cum; });
    if (at == list.end() && list.size() >= n_max) {
        return;
    }
    list.insert(at, c);
    if (list.size() > n_max) {
        list.pop_back();
    }
}

// n-gram drafts for each sequence
void planner::add_ngrams() {
    has_ngrams_ = false;
    for (const request & r : requests_) {
        if (r.n_ngram == 0 || n_nodes_ == 0) {
            continue;
        }
        const int32_t n_fair = std::max(n_ngram_some, 2 * n_nodes_ / static_cast<int32_t>(n_drafting_));
        ngram_->propose(r.seq_id, r.n_ngram, std::min({ r.n_room, n_nodes_, n_fair }), params_.top_k, suggested_);
        const auto base = static_cast<int32_t>(nodes_.size());
        for (const ngram_node & s : suggested_) {
            nodes_.push_back({ s.parent < 0 ? -1 : base + s.parent, s.token, s.depth, r.seq_id });
            nodes_.back().p_ngram = s.p;
        }
        has_ngrams_ = has_ngrams_ || !suggested_.empty();
    }
    if (has_ngrams_) {
        rate();
    } else {
        n_drafting_ = seq_ids_.size();
    }
}

// a node's child with this token; -1 = none
int32_t planner::find_child(int32_t parent, llama_token token, llama_seq_id seq_id) const {
    for (size_t i = static_cast<size_t>(parent + 1); i < nodes_.size(); ++i) {
        const node & n = nodes_[i];
        if (n.parent == parent && n.seq_id == seq_id && n.token == token) {
            return static_cast<int32_t>(i);
        }
    }
    return -1;
}

// how likely all nodes are, by what both say of them
void planner::rate() {
    candidates_.clear();
    for (node & n : nodes_) {
        const float q_head = n.in_head < 0 ? 0.0f : acceptance_.at(n.place, n.depth, n.seq_id, n.rank);
        const float q_ngram =
            n.p_ngram > 0.0f ? ngram_acceptance_(n.p_ngram, n.depth, n.seq_id, acceptance::rank::best) : 0.0f;
        n.q   = std::min(1.0f - (1.0f - q_head) * (1.0f - q_ngram), q_max);
        n.cum = n.q * (n.parent < 0 ? 1.0f : nodes_[static_cast<size_t>(n.parent)].cum);
    }
    if (n_candidates_ == 1) {
        leave_paths();
    }
    n_real_ = nodes_.size();
    if (params_.uniform) {
        fill_up();
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
        const node &    n = nodes_[i];
        const request & r = requests_[request_of_[static_cast<size_t>(n.seq_id)]];
        if (!n.is_left && (n.in_head < 0 || n.p_ngram > 0.0f || n.depth <= r.n_levels)) {
            candidates_.push_back({ n.cum, static_cast<int32_t>(i) });
        }
    }
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const candidate & a, const candidate & b) { return a.cum > b.cum; });
}

// Chains only: where the head and n-grams draft different tokens, one of both paths has to go
void planner::leave_paths() {
    for (const request & r : requests_) {
        float  best[2] = { 0.0f, 0.0f }, gain[2] = { 0.0f, 0.0f };
        size_t n_seen[2] = { 0, 0 };
        bool   both      = false;
        for (const node & n : nodes_) {
            if (n.seq_id != r.seq_id) {
                continue;
            }
            const bool by[2] = { n.in_head >= 0, n.p_ngram > 0.0f };
            both             = both || (by[0] && !by[1]);
            for (size_t k = 0; k < 2; ++k) {
                if (by[k] && (n_seen[k] + 1) * stride() < cost_.size()) {
                    gain[k] += n.cum;
                    ++n_seen[k];
                    best[k] = std::max(best[k], gain[k] - cost_[n_seen[k] * stride()] / static_cast<float>(stride()));
                }
            }
        }
        // the head's chain leaves the n-grams', or goes on behind it: either way one of both is the better one
        const bool ngrams_win = best[1] >= best[0];
        for (node & n : nodes_) {
            if (n.seq_id == r.seq_id) {
                n.is_left = both && (ngrams_win ? n.p_ngram == 0.0f : n.in_head < 0);
            }
        }
    }
}

// Chains of one length: those that are shorter get tokens that cost a row and nobody believes in
void planner::fill_up() {
    int32_t n_longest = 0;
    for (const node & n : nodes_) {
        n_longest = std::max(n_longest, n.is_left ? 0 : n.depth);
    }
    n_longest = std::min(n_longest, n_nodes_ / static_cast<int32_t>(stride()));
    for (const request & r : requests_) {
        if (r.n_levels == 0 && r.n_ngram == 0) {
            continue;
        }
        int32_t end = -1;
        for (size_t i = 0; i < nodes_.size(); ++i) {
            if (nodes_[i].seq_id == r.seq_id && !nodes_[i].is_left) {
                end = static_cast<int32_t>(i);
            }
        }
        const llama_token token = sequences_[static_cast<size_t>(r.seq_id)].id_last;
        int32_t           depth = end < 0 ? 0 : nodes_[static_cast<size_t>(end)].depth;
        for (; depth < std::min(n_longest, r.n_room); ++depth) {
            nodes_.push_back({ end, std::max(token, 0), depth + 1, r.seq_id });
            end = static_cast<int32_t>(nodes_.size()) - 1;
        }
    }
}

// is the head expected to add to what n-grams give, by more than its time is worth?
bool planner::head_adds() {
    int32_t n_waiting = 0;
    set_outlooks(2);
    tails_.clear();
    cums_ahead_       = n_candidates_ > 1 ? cums_ : std::vector<float>();
    const auto n_seqs = static_cast<int32_t>(seq_ids_.size());
    for (const llama_seq_id seq_id : seq_ids_) {
        n_waiting += std::clamp(sequences_[static_cast<size_t>(seq_id)].n_waiting, 1, n_waiting_max);
        const size_t i     = request_of_[static_cast<size_t>(seq_id)];
        const float  place = outlook_.place_first();
        const float  q     = acceptance_.at(place, 1, seq_id, acceptance::rank::best);
        float        text  = 0.0f;
        for (const node & n : nodes_) {
            text += n.parent < 0 && n.seq_id == seq_id ? n.q : 0.0f;
        }
        tails_.push_back({ n_candidates_ > 1 ? against(q, std::min(text, q_max)) : q, place, i });
    }
    for (int32_t depth = 1; depth <= n_look_ahead; ++depth) {
        for (tail & t : tails_) {
            const request & r = requests_[t.request];
            if (depth > 1) {
                t.cum *= interpolate(r.ahead.q_first, t.place);
                t.place = interpolate(r.ahead.place, t.place);
            }
            insert_cum(depth <= r.n_levels ? t.cum : 0.0f);
        }
        int32_t     n       = 0;
        const float t_draft = begin_->at(n_waiting) + levels_us(depth - 1, n_seqs);
        if (best_of(cums_ahead_, n) - static_cast<float>(price_) * t_draft > value_ngrams_) {
            return true;
        }
    }
    return false;
}

} // namespace eagle3
