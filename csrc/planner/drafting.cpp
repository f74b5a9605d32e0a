// What the head drafts: its first graph, then level after level for as long as that is expected to pay.

#include "planner/planner.h"

#include <algorithm>

namespace eagle3 {

namespace {

constexpr float rate_unroll = 1.0f / 8.0f; // per step
constexpr float cum_min     = 0.01f;       // paths less likely than this are not followed in thought

} // namespace

template <typename F>
double planner::timed(F && call) {
    const double t_own   = now_us();
    const double t_start = source_->time_us();
    call();
    const double t_us = source_->time_us() - t_start;
    t_source_us_ += now_us() - t_own;
    t_draft_us_ += t_us;
    return t_us;
}

void planner::draft() {
    int32_t    depth = begin();
    float      value = choose();
    const auto next  = [&] {
        return !is_trial_        ? next_width(value, depth)
               : depth < n_trial ? static_cast<int32_t>(std::min(level_.size(), stride()))
                                 : 0;
    };
    for (int32_t width; (width = next()) > 0;) {
        expanded_.clear();
        for (int32_t i = 0; i < width; ++i) {
            expanded_.push_back(nodes_[static_cast<size_t>(level_[static_cast<size_t>(i)].node)].in_head);
        }
        const size_t first  = source_->nodes().size();
        const double t_step = timed([&] { source_->expand(expanded_, n_candidates_); });
        if (!source_->is_parallel()) {
            step_->observe(width, t_step);
            t_expected_ += step_->at(width);
        }
        n_expand_ -= width;
        stats.n_steps++;
        add_nodes(first, ++depth);
        value = choose();
    }
    value_ = value - static_cast<float>(price_) * t_expected_;
    if (is_partial_) { // of streams some would be longer than others
        n_best_ = 0;
    }
}

// the first graph; returns how deep it went
int32_t planner::begin() {
    int32_t n_waiting = 0;
    bool    known     = true;
    for (const llama_seq_id seq_id : seq_ids_) {
        sequence & seq = sequences_[static_cast<size_t>(seq_id)];
        known          = known && seq.n_waiting > 0 && seq.n_waiting <= n_waiting_max;
        n_waiting += std::clamp(seq.n_waiting, 1, n_waiting_max);
        seq.n_waiting = 0;
        seq.open      = false;
    }
    node_place_.clear();
    n_expand_ = source_->n_expand();

    const bool    parallel = source_->is_parallel();
    const int32_t n_seqs   = static_cast<int32_t>(seq_ids_.size());
    const int32_t n_least  = parallel && is_trial_ ? std::min(n_trial, source_->n_unroll()) : 1;
    const int32_t n_steps  = n_candidates_ == 1 || parallel ? std::max(n_steps_ahead(), n_least) : 1;
    const double  t_begin  = timed([&] { source_->begin(seq_ids_, ids_last_, n_candidates_, n_steps); });
    const float   t_step   = step_->at(n_seqs);
    if (known && n_steps == 1) {
        begin_->observe(n_waiting, t_begin);
    }
    t_expected_ = begin_->at(n_waiting);
    n_ahead_    = n_steps;
    if (parallel) {
        const double t_row = t_begin - static_cast<double>(t_expected_ - begin_->at(1)); // as if one row had waited
        t_expected_ += levels_us(n_steps - 1, n_seqs);
        if (known && n_steps > 1 && t_row > 0.0) {
            step_->observe((n_steps - 1) * n_seqs, t_row);
        }
        add_nodes(0, 1);
        return 1;
    }
    if (n_steps > 1) {
        const float t_more = static_cast<float>(n_steps - 1) * t_step;
        const float cost   = (static_cast<float>(t_begin) - t_expected_) / t_more;
        unroll_cost_ += rate_unroll * (std::clamp(cost, 0.0f, 2.0f) - unroll_cost_);
        t_expected_ += unroll_cost_ * t_more;
        n_expand_ -= n_steps - 1;
        stats.n_steps += n_steps - 1;
    }
    add_nodes(0, n_steps);
    return n_steps;
}

// how long a chain to draft in the first graph, which has to be said beforehand
int32_t planner::n_steps_ahead() {
    const int32_t n_seqs = static_cast<int32_t>(seq_ids_.size());
    const int32_t n_max  = std::min(source_->n_unroll(), n_nodes_ / n_seqs);
    const float   share  = static_cast<float>(price_) * (source_->is_parallel() ? 1.0f : unroll_cost_);
    if (n_max <= 1) {
        return 1;
    }
    set_outlooks(2);
    tails_.clear();
    float gain = 0.0f;
    for (const request & r : requests_) {
        const float place = outlook_.place_first();
        const float cum   = r.n_levels > 0 ? acceptance_.at(place, 1, r.seq_id, acceptance::rank::best) : 0.0f;
        tails_.push_back({ cum, place, request_of_[static_cast<size_t>(r.seq_id)] });
        gain += cum;
    }
    int32_t best_n = 1;
    float   best   = gain - cost_[static_cast<size_t>(n_seqs)];
    for (int32_t n = 2; n <= n_max; ++n) {
        for (tail & t : tails_) {
            const request & r = requests_[t.request];
            t.cum *= n <= r.n_levels ? interpolate(r.ahead.q_first, t.place) : 0.0f;
            t.place = interpolate(r.ahead.place, t.place);
            gain += t.cum;
        }
        const float worth = gain - cost_[static_cast<size_t>(n * n_seqs)] - share * levels_us(n - 1, n_seqs);
        if (worth > best) {
            best   = worth;
            best_n = n;
        }
    }
    return best_n;
}

// take in what the head has drafted from node `first` on; the last level is at this depth
void planner::add_nodes(size_t first, int32_t depth) {
    const auto & drafted = source_->nodes();
    // one level needs no more than this, and the best of all neither
    const size_t n_level = static_cast<size_t>(std::max(n_candidates_, n_seqs_));
    const size_t n_all   = static_cast<size_t>(n_nodes_) + n_level;
    level_.clear();
    if (has_ngrams_) {
        nodes_.resize(n_real_);
    }
    for (size_t i = first; i < drafted.size(); ++i) {
        const draft_node & d      = drafted[i];
        const int32_t      parent = d.parent < 0 ? -1 : of_head_[static_cast<size_t>(d.parent)];
        const bool         is_best =
            i == first || drafted[i - 1].parent != d.parent || drafted[i - 1].seq_id != d.seq_id; // comes first
        int32_t index = has_ngrams_ ? find_child(parent, d.token, d.seq_id) : -1;
        if (index < 0) {
            index = static_cast<int32_t>(nodes_.size());
            nodes_.push_back({ parent, d.token, d.depth, d.seq_id });
        }
        node & n  = nodes_[static_cast<size_t>(index)];
        n.p_head  = d.p;
        n.place   = acceptance::place_of(d.p);
        n.rank    = is_best ? acceptance::rank::best : acceptance::rank::other;
        n.in_head = static_cast<int32_t>(i);
        of_head_.push_back(index);
        node_place_.push_back(n.place);
        if (!has_ngrams_) {
            n.q   = acceptance_.at(n.place, n.depth, n.seq_id, n.rank);
            n.cum = n.q * (parent < 0 ? 1.0f : nodes_[static_cast<size_t>(parent)].cum);
            if (n.depth <= requests_[request_of_[static_cast<size_t>(n.seq_id)]].n_levels) {
                insert_candidate(candidates_, { n.cum, index }, n_all);
            }
        }
    }
    if (has_ngrams_) {
        rate();
    }
    for (size_t i = first; i < drafted.size(); ++i) {
        const int32_t index = of_head_[i];
        const node &  n     = nodes_[static_cast<size_t>(index)];
        if (n.depth == depth && depth < requests_[request_of_[static_cast<size_t>(n.seq_id)]].n_levels && !n.is_left) {
            insert_candidate(level_, { n.cum, index }, n_level);
        }
    }
    outlook_.observe(drafted, first, node_place_);
}

// how many nodes of the last level to expand; 0 = verify what is there, worth `value`
int32_t planner::next_width(float value, int32_t depth) {
    int32_t       best_width = 0;
    float         best       = value;
    const size_t  n_level    = std::min(level_.size(), static_cast<size_t>(std::max(n_expand_, 0)));
    const int32_t n_deepest  = source_->is_parallel() ? n_ahead_ : params_.n_max;
    if (n_level < stride() || depth >= n_deepest) {
        return 0;
    }
    set_outlooks(depth + 1);
    for (size_t width = stride();; width = std::min(2 * width, n_level)) {
        const float t_level    = source_->is_parallel() ? 0.0f : step_->at(static_cast<int32_t>(width));
        const float cost_level = static_cast<float>(price_) * t_level;
        float       cost       = 0.0f;
        cums_ahead_            = cums_;
        tails_.clear();
        for (size_t i = 0; i < width; ++i) {
            const node & n = nodes_[static_cast<size_t>(level_[i].node)];
            tails_.push_back({ level_[i].cum, n.place, request_of_[static_cast<size_t>(n.seq_id)] });
        }
        for (int32_t ahead = 1; ahead <= n_look_ahead && !tails_.empty(); ++ahead) {
            size_t       n_tails = 0;
            const size_t n_cums  = cums_ahead_.size();
            for (const tail & t : tails_) {
                const request & r   = requests_[t.request];
                const float     cum = t.cum * interpolate(r.ahead.q_first, t.place);
                if ((cum < cum_min && stride() == 1) || depth + ahead > std::min(r.n_levels, n_deepest)) {
                    continue;
                }
                if (stride() > 1) {
                    cums_ahead_.push_back(cum);
                } else {
                    insert_cum(cum);
                }
                if (n_candidates_ > 1) {
                    insert_cum(t.cum * interpolate(r.ahead.q_second, t.place));
                }
                tails_[n_tails++] = { cum, interpolate(r.ahead.place, t.place), t.request };
            }
            if (n_tails < tails_.size() && stride() > 1) {
                cums_ahead_.resize(n_cums); // not all go on: none does
                break;
            }
            tails_.resize(n_tails);
            cost += cost_level;
            int32_t     n     = 0;
            const float worth = best_of(cums_ahead_, n) - cost;
            if (worth > best) {
                best       = worth;
                best_width = static_cast<int32_t>(width);
            }
        }
        if (width == n_level) {
            return best_width;
        }
    }
}

// what is to be expected of nodes at this depth
void planner::set_outlooks(int32_t depth) {
    for (request & r : requests_) {
        r.ahead = outlook_.at(acceptance_, depth, r.seq_id);
    }
}

} // namespace eagle3
