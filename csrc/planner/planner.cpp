#include "planner/planner.h"

#include "error.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>

namespace eagle3 {

namespace {

constexpr int32_t n_look_ahead  = 8;
constexpr int32_t n_waiting_max = 16;   // more rows than this are not left to the first graph of a draft
constexpr int32_t n_ready_max   = 128;  // rows that wait and that a probe evaluates at most
constexpr int32_t n_trial       = 3;    // tokens of a trial: four rows are where kernels get fast
constexpr float   q_surprise    = 0.5f; // an accepted token that was believed less than this is news

using rank = acceptance::rank;

// Evenly spread (Knuth, TAOCP 6.4: multiples of the golden ratio), but not periodic: who lets two kinds of requests
// take turns would have one kind probed alone.
bool is_one_in_four(uint32_t n) {
    return n * 0x9E3779B9u < 1u << 30;
}

double now_us() {
    const auto t = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(t).count();
}

const planner_params & checked(const planner_params & params) {
    if (params.n_max < 0 || params.n_nodes_max < 0 || params.n_leaves_max < 1 || params.top_k < 1 ||
        params.n_seq_max < 1 || params.n_nodes_max >= cost_curve::n_max) {
        throw std::invalid_argument(format(
            "planner: expected n_max >= 0, 0 <= n_nodes_max < %d and n_leaves_max, top_k, n_seq_max >= 1, found "
            "%d, %d, %d, %d, %d",
            cost_curve::n_max, params.n_max, params.n_nodes_max, params.n_leaves_max, params.top_k, params.n_seq_max));
    }
    return params;
}

payoff::first_graph first_graph_of(const draft_source * source, bool has_trees) {
    if (source == nullptr || !(source->is_parallel() || (source->n_unroll() > 1 && !has_trees))) {
        return payoff::first_graph::one_level;
    }
    return source->is_parallel() ? payoff::first_graph::all_levels : payoff::first_graph::chain;
}

} // namespace

planner::planner(std::unique_ptr<draft_source> source, std::shared_ptr<ngram_drafter> ngram,
                 std::shared_ptr<cost_curve> target, std::shared_ptr<cost_curve> begin,
                 std::shared_ptr<cost_curve> step, const planner_params & params) :
    source_(std::move(source)), ngram_(std::move(ngram)), params_(checked(params)),
    payoff_(std::move(target), std::move(begin), std::move(step), first_graph_of(source_.get(), has_trees()),
            params.n_nodes_max, params.n_snapshots),
    acceptance_(params.n_seq_max), ngram_acceptance_(params.n_seq_max),
    outlook_(acceptance_, payoff_, has_trees(), params.uniform),
    candidates_(acceptance_, ngram_acceptance_, params.n_seq_max, params.n_nodes_max,
                has_trees() ? params.n_leaves_max : 1, params.uniform),
    gates_(static_cast<size_t>(params.n_seq_max) + 1), sequences_(static_cast<size_t>(params.n_seq_max)) {
    stats.n_chosen.resize(static_cast<size_t>(params.n_nodes_max) + 1);
}

void planner::check(llama_seq_id seq_id) const {
    if (seq_id < 0 || static_cast<size_t>(seq_id) >= sequences_.size()) {
        throw std::invalid_argument(
            format("planner: expected a sequence in 0..%zu, found %d", sequences_.size() - 1, seq_id));
    }
}

void planner::check(const std::vector<draft_request> & requests) const {
    if (requests.empty() || requests.size() > sequences_.size()) {
        throw std::invalid_argument(
            format("planner: expected 1..%zu sequences, found %zu", sequences_.size(), requests.size()));
    }
    for (auto r = requests.begin(); r != requests.end(); ++r) {
        check(r->seq_id);
        if (std::any_of(requests.begin(), r, [r](const draft_request & o) { return o.seq_id == r->seq_id; })) {
            throw std::invalid_argument(format("planner: expected different sequences, found %d twice", r->seq_id));
        }
    }
}

const std::vector<draft_tree> & planner::propose(const std::vector<draft_request> & requests, int32_t n_rows_extra) {
    const double t_start = now_us();
    check(requests);
    begin_step(requests, std::max(n_rows_extra, 0));
    if (ask(std::max(n_rows_extra, 0))) {
        draft();
    }
    publish(requests);
    stats.n_steps++;
    stats.n_chosen[static_cast<size_t>(step_.n_drafted)]++;
    stats.t_draft_us += step_.t_draft_us;
    stats.t_plan_us += now_us() - t_start - step_.t_source_us;
    return drafts_;
}

// who may be drafted for, and what the n-gram drafter suggests
void planner::begin_step(const std::vector<draft_request> & requests, int32_t n_rows_extra) {
    step_ = {};
    payoff_.set_step(static_cast<int32_t>(requests.size()), n_rows_extra);
    candidates_.clear();
    for (draft_request r : requests) {
        if (r.draw) {
            acceptance_.set_draw(r.seq_id, *r.draw);
            ngram_acceptance_.set_draw(r.seq_id, *r.draw);
        }
        r.n_max       = source_ ? std::clamp(r.n_max, 0, params_.n_max) : 0;
        r.n_max_ngram = ngram_ ? std::clamp(r.n_max_ngram, 0, params_.n_max) : 0;
        r.n_room      = r.n_max + r.n_max_ngram > 0 ? std::max(r.n_room, 0) : 0;
        candidates_.add_sequence(r.seq_id, r.n_room, std::min(r.n_max, r.n_room));
        if (std::min(r.n_max, r.n_room) > 0) {
            step_.asked.push_back(r);
        }
        if (std::min({ r.n_max_ngram, r.n_room, params_.n_nodes_max }) > 0) {
            ngram_->propose(r.seq_id, std::min(r.n_max_ngram, r.n_room), std::min(r.n_room, params_.n_nodes_max),
                            params_.top_k, suggested_);
            candidates_.add(r.seq_id, suggested_);
        }
        sequence & seq = sequences_[static_cast<size_t>(r.seq_id)];
        seq.open       = seq.open && seq.id_last == r.id_last; // else it is not the text that was judged
    }
    step_.value_ngram = step_.value = best(step_.n_best);
}

float planner::best(int32_t & n_best) const {
    return payoff_.best(candidates_.gains(), params_.uniform ? payoff_.n_seqs() : 1, candidates_.has_ngrams(), n_best);
}

// is the head asked in this step?
bool planner::ask(int32_t n_rows_extra) {
    const int32_t n_seqs = payoff_.n_seqs();
    auto &        asked  = step_.asked;
    gate &        g      = gates_[static_cast<size_t>(n_seqs)];
    int32_t       n_max  = 0;
    for (const draft_request & r : asked) {
        n_max = std::max(n_max, r.n_max);
    }
    if (payoff_.can_pay(n_seqs, n_rows_extra, n_max)) {
        if (!g.open()) { // a probe evaluates few rows that wait, until one has found that all are worth it
            int32_t    n_left = asks_all_ ? std::numeric_limits<int32_t>::max() : n_ready_max;
            const auto waits  = [&](const draft_request & r) {
                const int32_t n    = source_->n_waiting(r.seq_id);
                const bool    fits = n <= n_left;
                n_left -= fits ? n : 0;
                return !fits;
            };
            asked.erase(std::remove_if(asked.begin(), asked.end(), waits), asked.end());
        }
        step_.is_drafted = !asked.empty() && (step_.value_ngram <= 0.0f || head_adds()) && g.ask();
    } else if (step_.value_ngram <= 0.0f && n_max >= n_trial && params_.n_nodes_max >= n_trial * n_seqs) {
        step_.is_drafted = step_.is_trial = trials_.due();
    }
    stats.n_drafted += step_.is_drafted;
    stats.n_trials += step_.is_trial;
    stats.n_probes += step_.is_drafted && !step_.is_trial && !g.open();
    return step_.is_drafted;
}

// is the head expected to add to the n-grams, by more than its time is worth?
bool planner::head_adds() const {
    int32_t n = 0;
    return chains_ahead(has_trees() ? candidates_.gains() : std::vector<float>(), n_look_ahead, true, n) >
           step_.value_ngram;
}

float planner::chains_ahead(std::vector<float> gains, int32_t n_levels, bool beside_ngrams, int32_t & n_best) const {
    std::vector<outlook::tail> tails;
    for (const draft_request & r : step_.asked) {
        float cum = 1.0f;
        if (beside_ngrams && has_trees()) { // of two that exclude each other, how likely the head is right
            float q_ngram = 0.0f;
            for (const candidates::node & n : candidates_.nodes()) {
                q_ngram += n.parent < 0 && n.seq_id == r.seq_id ? n.q : 0.0f;
            }
            q_ngram = std::min(q_ngram, acceptance::q_max);
            cum     = (1.0f - q_ngram) / (1.0f - q_ngram * outlook_.first(r.seq_id));
        }
        tails.push_back({ cum, std::min(r.n_max, r.n_room), r.seq_id });
    }
    const int32_t n_rows = n_waiting();
    const auto    n_seqs = static_cast<int32_t>(step_.asked.size());
    // without n-grams the head is asked in any case: one level is paid for
    const float   t_paid = beside_ngrams ? 0.0f : payoff_.chain_us(n_rows, 1, n_seqs);
    const auto    cost   = [&](int32_t n) {
        return payoff_.of_time(payoff_.chain_us(n_rows, n, n_seqs) - t_paid);
    };
    return outlook_.best(tails, std::move(gains), 0, n_levels, beside_ngrams, cost, n_best);
}

// rows that the first graph evaluates
int32_t planner::n_waiting() const {
    int32_t n = 0;
    for (const draft_request & r : step_.asked) {
        n += std::clamp(source_->n_waiting(r.seq_id), 1, n_waiting_max);
    }
    return n;
}

template <typename F>
double planner::timed(F && call) {
    const double t_own   = now_us();
    const double t_start = source_->time_us();
    call();
    const double t_us = source_->time_us() - t_start;
    step_.t_source_us += now_us() - t_own;
    step_.t_draft_us += t_us;
    return t_us;
}

// the head drafts its first graph, then level after level for as long as that is expected to pay
void planner::draft() {
    const size_t n_widest = static_cast<size_t>(std::max(params_.top_k, payoff_.n_seqs()));
    for (int32_t depth = begin();; ++depth) {
        std::vector<int32_t> level = candidates_.level(depth);
        level.resize(std::min({ level.size(), n_widest, static_cast<size_t>(std::max(step_.n_expand, 0)) }));
        level.resize(next_width(level, depth));
        if (level.empty()) {
            break;
        }
        for (int32_t & i : level) {
            i = candidates_.at(i).in_head;
        }
        const auto   width  = static_cast<int32_t>(level.size());
        const size_t first  = source_->nodes().size();
        const double t_step = timed([&] { source_->expand(level, params_.top_k); });
        payoff_.observe_level(width, t_step);
        step_.t_expected += payoff_.level_us(width);
        step_.n_expand -= width;
        stats.n_levels++;
        candidates_.add(source_->nodes(), first);
    }
    step_.value = best(step_.n_best) - payoff_.of_time(step_.t_expected);
    if (step_.is_trial) {
        step_.n_best = std::min(static_cast<int32_t>(candidates_.gains().size()),
                                params_.uniform ? n_trial : n_trial * payoff_.n_seqs());
    }
}

// the first graph; returns how deep it went
int32_t planner::begin() {
    std::vector<llama_seq_id> seq_ids;
    std::vector<llama_token>  ids_last;
    bool                      known = true; // what it takes says what its rows cost
    for (const draft_request & r : step_.asked) {
        const int32_t n = source_->n_waiting(r.seq_id);
        known           = known && n > 0 && n <= n_waiting_max;
        seq_ids.push_back(r.seq_id);
        ids_last.push_back(r.id_last);
        sequences_[static_cast<size_t>(r.seq_id)].open = false;
    }
    const bool    parallel = source_->is_parallel();
    const auto    n_seqs   = static_cast<int32_t>(seq_ids.size());
    const int32_t n_rows   = n_waiting();
    const int32_t n_most   = std::min(source_->n_unroll(), params_.n_nodes_max / n_seqs);
    int32_t       n_steps  = 1; // levels, which have to be said beforehand
    if (n_most > 1 && (!has_trees() || parallel)) {
        chains_ahead({}, n_most, false, n_steps);
        n_steps = std::max(n_steps, step_.is_trial ? std::min(n_trial, n_most) : 1);
    }
    const double t_begin = timed([&] { source_->begin(seq_ids, ids_last, params_.top_k, n_steps); });
    if (known) {
        payoff_.observe_chain(n_rows, n_steps, n_seqs, t_begin);
    }
    step_.t_expected = payoff_.chain_us(n_rows, n_steps, n_seqs);
    step_.n_levels   = parallel ? n_steps : params_.n_max;
    step_.n_expand   = source_->n_expand() - (parallel ? 0 : n_steps - 1);
    stats.n_levels += parallel ? 0 : n_steps - 1;
    candidates_.add(source_->nodes(), 0);
    llama_seq_id seen = -1;
    for (const draft_node & n : source_->nodes()) {
        if (n.parent < 0 && n.seq_id != seen) {
            outlook_.observe(n.p);
            seen = n.seq_id;
        }
    }
    return parallel ? 1 : n_steps;
}

// how many nodes of the last level to expand; 0 = verify what is there
size_t planner::next_width(const std::vector<int32_t> & level, int32_t depth) const {
    if (level.empty() || depth >= step_.n_levels) {
        return 0;
    }
    if (step_.is_trial) {
        return depth < n_trial ? level.size() : 0;
    }
    int32_t                    n          = 0;
    float                      most       = best(n);
    size_t                     best_width = 0;
    std::vector<outlook::tail> tails;
    for (const size_t width : { params_.uniform ? level.size() : 1, level.size() }) {
        while (tails.size() < width) {
            const candidates::node & c = candidates_.at(level[tails.size()]);
            tails.push_back({ c.cum, std::min(candidates_.n_levels(c.seq_id), step_.n_levels), c.seq_id });
        }
        const float cost_level = payoff_.of_time(payoff_.level_us(static_cast<int32_t>(width)));
        const auto  cost       = [cost_level](int32_t n_levels) {
            return static_cast<float>(n_levels) * cost_level;
        };
        const float value =
            outlook_.best(tails, candidates_.gains(), depth, n_look_ahead, candidates_.has_ngrams(), cost, n);
        if (value > most) {
            most       = value;
            best_width = width;
        }
    }
    return best_width;
}

// the drafts, and what the sequences will be judged by
void planner::publish(const std::vector<draft_request> & requests) {
    candidates_.publish(step_.n_best, drafts_);
    bool has_ngram = false;
    for (const draft_tree & draft : drafts_) {
        step_.n_drafted += static_cast<int32_t>(draft.tokens.size());
        for (const int32_t by : draft.sources) {
            has_ngram = has_ngram || (by & draft_tree::by_ngram) != 0;
        }
    }
    stats.n_ngram += has_ngram;
    if (step_.is_drafted || candidates_.has_ngrams()) {
        judged_ = candidates_.nodes();
        for (sequence & seq : sequences_) {
            seq.open = false;
        }
        for (const draft_request & r : requests) {
            sequences_[static_cast<size_t>(r.seq_id)].at   = -1;
            sequences_[static_cast<size_t>(r.seq_id)].open = true;
        }
    }
}

void planner::judge(llama_seq_id seq_id, const std::vector<llama_token> & tokens) {
    check(seq_id);
    sequence & seq = sequences_[static_cast<size_t>(seq_id)];
    for (const llama_token token : tokens) {
        if (!seq.open) {
            break;
        }
        int32_t next = -1;
        for (size_t i = static_cast<size_t>(seq.at + 1); i < judged_.size(); ++i) {
            const candidates::node & n = judged_[i];
            if (n.parent != seq.at || n.seq_id != seq_id) {
                continue;
            }
            const bool accepted = n.token == token;
            if (accepted) {
                next = static_cast<int32_t>(i);
            }
            if (n.in_head >= 0) {
                step_.is_surprise =
                    step_.is_surprise || (accepted && n.rank == rank::best &&
                                          acceptance_.at(n.p_head, n.depth, seq_id, n.rank) < q_surprise);
                acceptance_.observe(n.p_head, n.depth, seq_id, n.rank, accepted);
            }
            if (n.p_ngram > 0.0f) {
                ngram_acceptance_.observe(n.p_ngram, n.depth, seq_id, rank::best, accepted);
            }
        }
        seq.at   = next;
        seq.open = next >= 0;
    }
    if (!tokens.empty()) {
        seq.id_last = tokens.back();
        step_.n_emitted += static_cast<int32_t>(tokens.size());
    }
}

void planner::finish(int32_t n_rows, double t_verify_us, double t_other_us) {
    if (step_.n_emitted == 0 || !(t_verify_us > 0.0) || !(t_other_us >= 0.0)) {
        return;
    }
    payoff_.observe(step_.n_emitted, n_rows, step_.t_draft_us, t_verify_us, t_other_us);
    if (step_.is_drafted && !step_.is_trial) {
        gates_[static_cast<size_t>(payoff_.n_seqs())].update(
            payoff_.of_step(step_.n_emitted, step_.n_drafted, step_.t_expected), step_.value - step_.value_ngram,
            step_.n_drafted > 0, step_.is_surprise);
        asks_all_ = step_.value > step_.value_ngram || step_.is_surprise;
    }
    step_.is_drafted = false;
    step_.n_emitted  = 0;
}

void planner::reset(llama_seq_id seq_id) {
    check(seq_id);
    acceptance_.reset(seq_id);
    ngram_acceptance_.reset(seq_id);
    sequences_[static_cast<size_t>(seq_id)].open      = false;
    sequences_[static_cast<size_t>(seq_id)].is_probed = is_one_in_four(n_texts_++);
    for (gate & g : gates_) {
        g.new_text();
    }
}

bool planner::may_wait(llama_seq_id seq_id, int32_t n_seqs) const {
    check(seq_id);
    if (n_seqs < 1 || static_cast<size_t>(n_seqs) >= gates_.size()) {
        throw std::invalid_argument(format("planner: expected 1..%zu sequences, found %d", gates_.size() - 1, n_seqs));
    }
    return !worth_asking(n_seqs) && !(can_pay(n_seqs) && sequences_[static_cast<size_t>(seq_id)].is_probed);
}

float planner::accepted(float p, int32_t depth, llama_seq_id seq_id, bool by_ngram) const {
    check(seq_id);
    if (!(p >= 0.0f && p <= 1.0f) || depth < 1) {
        throw std::invalid_argument(format("planner: expected p in 0..1 and depth >= 1, found %g and %d", p, depth));
    }
    return (by_ngram ? ngram_acceptance_ : acceptance_).at(p, depth, seq_id, rank::best);
}

} // namespace eagle3
