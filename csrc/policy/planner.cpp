#include "policy/planner.h"

#include "error.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace eagle3 {

namespace {

constexpr int32_t n_look_ahead = 8;
constexpr int32_t n_trial      = 3;    // tokens of a trial: four rows are where kernels get fast
constexpr float   q_surprise   = 0.5f; // an accepted token that was believed less than this is news

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

} // namespace

planner::planner(std::vector<priced_drafter> heads, std::shared_ptr<ngram_drafter> ngram,
                 std::shared_ptr<cost_curve> target, const planner_params & params) :
    ngram_(std::move(ngram)), params_(checked(params)),
    payoff_(std::move(target), params.n_nodes_max, params.n_snapshots), ngram_acceptance_(params.n_seq_max),
    candidates_(ngram_acceptance_, params.n_seq_max, params.n_nodes_max, has_trees() ? params.n_leaves_max : 1,
                params.uniform),
    sequences_(static_cast<size_t>(params.n_seq_max)) {
    if (heads.size() > n_heads_max) {
        throw std::invalid_argument(
            format("planner: expected at most %zu drafters, found %zu", n_heads_max, heads.size()));
    }
    for (priced_drafter & source : heads) {
        heads_.emplace_back(std::move(source), heads_.size(), payoff_, params_.n_seq_max, has_trees(), params_.uniform);
    }
    stats.n_asked.resize(heads_.size());
    stats.unread_prompt.resize(heads_.size());
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
    choose_head(std::max(n_rows_extra, 0));
    if (step_.by != nullptr) {
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
    step_         = {};
    double n_past = 0.0;
    for (const draft_request & r : requests) {
        n_past += std::max(r.n_past, 0);
    }
    for (const std::shared_ptr<cost_curve> & curve : costs()) {
        curve->set_depth(static_cast<float>(n_past / static_cast<double>(requests.size())));
    }
    payoff_.set_step(static_cast<int32_t>(requests.size()), n_rows_extra);
    candidates_.clear();
    for (head & h : heads_) {
        h.asked.clear();
    }
    for (draft_request r : requests) {
        if (r.draw) {
            for (head & h : heads_) {
                h.accepted.set_draw(r.seq_id, *r.draw);
            }
            ngram_acceptance_.set_draw(r.seq_id, *r.draw);
        }
        r.n_max       = heads_.empty() ? 0 : std::clamp(r.n_max, 0, params_.n_max);
        r.ngram_n_max = ngram_ ? std::clamp(r.ngram_n_max, 0, params_.n_max) : 0;
        r.n_room      = r.n_max + r.ngram_n_max > 0 ? std::max(r.n_room, 0) : 0;
        candidates_.add_sequence(r.seq_id, r.n_room, std::min(r.n_max, r.n_room));
        for (size_t i = 0; i < heads_.size() && std::min(r.n_max, r.n_room) > 0; ++i) {
            if ((r.drafters >> i & 1) != 0) {
                heads_[i].asked.push_back(r);
            }
        }
        if (std::min({ r.ngram_n_max, r.n_room, params_.n_nodes_max }) > 0) {
            ngram_->propose(r.seq_id, std::min(r.ngram_n_max, r.n_room), std::min(r.n_room, params_.n_nodes_max),
                            params_.top_k, suggested_);
            candidates_.add(r.seq_id, suggested_);
        }
        sequence & seq = sequences_[static_cast<size_t>(r.seq_id)];
        seq.open       = seq.open && seq.id_last == r.id_last; // else it is not the text that was judged
    }
    step_.value_ngram = step_.value = best(step_.n_best);
    for (head & h : heads_) {
        leave_unread(h);
    }
}

// Leaves out the sequences of which a head has not read what is dear to read, until that would have been worth it, and
// counts what its drafts would have saved in this step.
void planner::leave_unread(head & h) {
    stats.unread_prompt[h.index] = {};
    if (!h.is_dear(*payoff_.target)) {
        return;
    }
    const auto first = std::stable_partition(h.asked.begin(), h.asked.end(), [&h](const draft_request & r) {
        return h.debt_us(r.seq_id) <= std::min(h.saved_us[static_cast<size_t>(r.seq_id)], h.account_us);
    });
    std::vector<draft_request> others(first, h.asked.end());
    h.asked.erase(first, h.asked.end());
    if (others.empty()) {
        return;
    }
    h.asked.swap(others);
    const auto   n_seqs = static_cast<int32_t>(h.asked.size());
    const float  more   = head_adds(h, n_seqs); // a row of each waits, had it read the others
    const double t_us   = std::max(0.0f, more) / (payoff_.price() * n_seqs);
    for (const draft_request & r : h.asked) {
        float & saved = h.saved_us[static_cast<size_t>(r.seq_id)];
        saved += static_cast<float>(t_us);
        stats.unread_prompt[h.index] = { h.debt_us(r.seq_id), saved, h.account_us };
    }
    h.asked.swap(others);
}

float planner::best(int32_t & n_best) const {
    return payoff_.best(candidates_.gains(), params_.uniform ? payoff_.n_seqs() : 1, candidates_.has_ngrams(), n_best);
}

// Who is asked in this step, if anyone: of those that are worth it, or are to be probed, the one whose turn it is.
void planner::choose_head(int32_t n_rows_extra) {
    const int32_t n_seqs = payoff_.n_seqs();
    head *        tried  = nullptr;
    bool          pays   = false;
    for (head & h : heads_) {
        const int32_t n_max   = h.n_max();
        const auto    is_next = [&h](const head * other) {
            return other == nullptr || h.i_asked < other->i_asked;
        };
        if (payoff_.can_pay(h.costs, n_seqs, n_rows_extra, n_max)) {
            pays = true;
            if (ask_gate(h) && is_next(step_.by)) {
                step_.by = &h;
            }
        } else if (n_max >= n_trial && is_next(tried)) {
            tried = &h;
        }
    }
    if (!pays && step_.value_ngram <= 0.0f && tried != nullptr && params_.n_nodes_max >= n_trial * n_seqs) {
        step_.is_trial = trials_.due();
        step_.by       = step_.is_trial ? tried : nullptr;
    }
    if (step_.by == nullptr) {
        return;
    }
    step_.by->i_asked = stats.n_steps;
    stats.n_asked[step_.by->index]++;
    stats.n_drafted++;
    stats.n_trials += step_.is_trial;
    stats.n_probes += !step_.is_trial && !step_.by->gate_of(n_seqs).open();
}

bool planner::ask_gate(head & h) {
    gate & g = h.gate_of(payoff_.n_seqs());
    if (!g.open() && !h.is_dear(*payoff_.target)) {
        h.leave_waiting();
    }
    return !h.asked.empty() && (step_.value_ngram <= 0.0f || head_adds(h, h.n_waiting()) > 0.0f) && g.ask();
}

// what a head is expected to add to the n-grams beyond its time, if so many rows wait; negative if its time is worth
// more
float planner::head_adds(const head & h, int32_t n_rows) const {
    int32_t n = 0;
    return chains_ahead(h, n_rows, has_trees() ? candidates_.gains() : std::vector<float>(), n_look_ahead, true, n) -
           step_.value_ngram;
}

// what a step gives with the best of the others that are asked for these sequences
float planner::rival() const {
    float most = 0.0f;
    for (const head & h : heads_) {
        if (&h != step_.by && !h.asked.empty()) {
            most = std::max(most, h.gate_of(payoff_.n_seqs()).worth());
        }
    }
    return most;
}

float planner::chains_ahead(const head & h, int32_t n_rows, std::vector<float> gains, int32_t n_levels,
                            bool beside_ngrams, int32_t & n_best) const {
    std::vector<outlook::tail> tails;
    for (const draft_request & r : h.asked) {
        float cum = 1.0f;
        if (beside_ngrams && has_trees()) { // of two that exclude each other, how likely the head is right
            float q_ngram = 0.0f;
            for (const candidates::node & n : candidates_.nodes()) {
                q_ngram += n.parent < 0 && n.seq_id == r.seq_id ? n.q : 0.0f;
            }
            q_ngram = std::min(q_ngram, acceptance::q_max);
            cum     = (1.0f - q_ngram) / (1.0f - q_ngram * h.ahead.first(r.seq_id));
        }
        tails.push_back({ cum, std::min(r.n_max, r.n_room), r.seq_id });
    }
    const auto  n_seqs = static_cast<int32_t>(h.asked.size());
    // without n-grams the head is asked in any case: one level is paid for
    const float t_paid = beside_ngrams ? 0.0f : h.costs.chain_us(n_rows, 1, n_seqs);
    const auto  cost   = [&](int32_t n) {
        return payoff_.of_time(h.costs.chain_us(n_rows, n, n_seqs) - t_paid);
    };
    return h.ahead.best(tails, std::move(gains), 0, n_levels, beside_ngrams, cost, n_best);
}

template <typename F>
double planner::timed(F && call) {
    const double t_own   = now_us();
    const double t_start = step_.by->drafter->t_draft_us();
    call();
    const double t_us = step_.by->drafter->t_draft_us() - t_start;
    step_.t_source_us += now_us() - t_own;
    step_.t_draft_us += t_us;
    return t_us;
}

// the head drafts its first graph, then level after level for as long as that is expected to pay
void planner::draft() {
    head &       h        = *step_.by;
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
        const size_t first  = h.drafter->nodes().size();
        const double t_step = timed([&] { h.drafter->expand(level, params_.top_k); });
        h.costs.observe_level(width, t_step);
        step_.t_expected += h.costs.level_us(width);
        step_.n_expand -= width;
        stats.n_levels++;
        candidates_.add(h.drafter->nodes(), first);
    }
    step_.value = best(step_.n_best) - payoff_.of_time(step_.t_expected);
    if (step_.is_trial) {
        step_.n_best = std::min(static_cast<int32_t>(candidates_.gains().size()),
                                params_.uniform ? n_trial : n_trial * payoff_.n_seqs());
    }
}

// the first graph; returns how deep it went
int32_t planner::begin() {
    head & h = *step_.by;
    candidates_.set_head(h.accepted, draft_tree::by_drafter(h.index));
    std::vector<llama_seq_id> seq_ids;
    std::vector<llama_token>  ids_last;
    bool                      known  = true; // what it takes says what its rows cost
    int32_t                   n_read = 0;    // rows beyond those that any draft evaluates
    for (const draft_request & r : h.asked) {
        const int32_t n     = h.drafter->n_waiting(r.seq_id);
        float &       saved = h.saved_us[static_cast<size_t>(r.seq_id)];
        known               = known && n > 0 && n <= head::n_waiting_max;
        saved               = std::max(0.0f, saved - h.debt_us(r.seq_id));
        n_read += std::max(0, n - head::n_waiting_max);
        seq_ids.push_back(r.seq_id);
        ids_last.push_back(r.id_last);
        sequences_[static_cast<size_t>(r.seq_id)].open = false;
    }
    const bool    parallel = h.drafter->is_parallel();
    const auto    n_seqs   = static_cast<int32_t>(seq_ids.size());
    const int32_t n_rows   = h.n_waiting();
    const int32_t n_most   = std::min(h.drafter->n_unroll(), params_.n_nodes_max / n_seqs);
    int32_t       n_steps  = 1; // levels, which have to be said beforehand
    if (n_most > 1 && (!has_trees() || parallel)) {
        chains_ahead(h, n_rows, {}, n_most, false, n_steps);
        n_steps = std::max(n_steps, step_.is_trial ? std::min(n_trial, n_most) : 1);
    }
    const double t_begin = timed([&] { h.drafter->begin(seq_ids, ids_last, params_.top_k, n_steps); });
    if (known) {
        h.costs.observe_chain(n_rows, n_steps, n_seqs, t_begin);
    }
    step_.t_expected = h.costs.chain_us(n_rows, n_steps, n_seqs);
    if (n_read > 0) {
        step_.t_read_us = std::max(0.0, t_begin - static_cast<double>(step_.t_expected));
        h.observe_rows(n_read, step_.t_read_us);
    }
    step_.n_levels = parallel ? n_steps : params_.n_max;
    step_.n_expand = h.drafter->n_expand() - (parallel ? 0 : n_steps - 1);
    stats.n_levels += parallel ? 0 : n_steps - 1;
    candidates_.add(h.drafter->nodes(), 0);
    llama_seq_id seen = -1;
    for (const draft_node & n : h.drafter->nodes()) {
        if (n.parent < 0 && n.seq_id != seen) {
            h.ahead.observe(n.p);
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
        const float cost_level = payoff_.of_time(step_.by->costs.level_us(static_cast<int32_t>(width)));
        const auto  cost       = [cost_level](int32_t n_levels) {
            return static_cast<float>(n_levels) * cost_level;
        };
        const float value =
            step_.by->ahead.best(tails, candidates_.gains(), depth, n_look_ahead, candidates_.has_ngrams(), cost, n);
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
    if (step_.by != nullptr || candidates_.has_ngrams()) {
        judged_    = candidates_.nodes();
        judged_by_ = step_.by;
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
                                          judged_by_->accepted.at(n.p_head, n.depth, seq_id, n.rank) < q_surprise);
                judged_by_->accepted.observe(n.p_head, n.depth, seq_id, n.rank, accepted);
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
    payoff_.observe(step_.n_emitted, n_rows, step_.t_draft_us - step_.t_read_us, t_verify_us, t_other_us);
    const float more = payoff_.of_step(step_.n_emitted, step_.n_drafted, step_.t_expected);
    for (head & h : heads_) {
        h.earn(step_.t_draft_us - step_.t_read_us + t_verify_us + t_other_us,
               &h == step_.by ? (more - rival()) / payoff_.price() : 0.0);
    }
    if (step_.by != nullptr && !step_.is_trial) {
        step_.by->gate_of(payoff_.n_seqs())
            .update(more, step_.value - step_.value_ngram, rival(), step_.n_drafted > 0, step_.is_surprise);
        step_.by->asks_all = step_.value > step_.value_ngram || step_.is_surprise;
    }
    step_.by        = nullptr;
    step_.n_emitted = 0;
}

void planner::reset(llama_seq_id seq_id) {
    check(seq_id);
    ngram_acceptance_.reset(seq_id);
    sequences_[static_cast<size_t>(seq_id)].open      = false;
    sequences_[static_cast<size_t>(seq_id)].is_probed = is_one_in_four(n_texts_++);
    for (head & h : heads_) {
        h.accepted.reset(seq_id);
        h.saved_us[static_cast<size_t>(seq_id)] = 0.0f;
        for (gate & g : h.gates) {
            g.new_text();
        }
    }
}

bool planner::can_pay(int32_t n_seqs) const {
    return std::any_of(heads_.begin(), heads_.end(), [&](const head & h) { return can_pay(h, n_seqs); });
}

bool planner::worth_asking(int32_t n_seqs) const {
    return std::any_of(heads_.begin(), heads_.end(), [&](const head & h) { return is_worth(h, n_seqs); });
}

int32_t planner::may_wait(llama_seq_id seq_id, int32_t n_seqs) const {
    check(seq_id);
    if (n_seqs < 1 || static_cast<size_t>(n_seqs) > sequences_.size()) {
        throw std::invalid_argument(format("planner: expected 1..%zu sequences, found %d", sequences_.size(), n_seqs));
    }
    int32_t found = 0;
    for (size_t i = 0; i < heads_.size(); ++i) {
        const bool is_probed = sequences_[static_cast<size_t>(seq_id)].is_probed && can_pay(heads_[i], n_seqs);
        const bool is_asked  = is_worth(heads_[i], n_seqs) || is_probed;
        found |= !is_asked || heads_[i].is_dear(*payoff_.target) ? 1 << i : 0;
    }
    return found;
}

float planner::accepted(float p, int32_t depth, llama_seq_id seq_id, bool by_ngram, size_t i_head) const {
    check(seq_id);
    if (!(p >= 0.0f && p <= 1.0f) || depth < 1 || (!by_ngram && i_head >= heads_.size())) {
        throw std::invalid_argument(format("planner: expected p in 0..1, depth >= 1 and one of %zu drafters, found %g, "
                                           "%d and %zu",
                                           heads_.size(), p, depth, i_head));
    }
    return (by_ngram ? ngram_acceptance_ : heads_[i_head].accepted).at(p, depth, seq_id, rank::best);
}

float planner::draft_us(int32_t n_tokens) const {
    float least = 0.0f;
    for (const head & h : heads_) {
        const float t = h.costs.chain_us(1, n_tokens, 1);
        least         = &h == &heads_.front() ? t : std::min(least, t);
    }
    return least;
}

std::vector<std::shared_ptr<cost_curve>> planner::costs() const {
    std::vector<std::shared_ptr<cost_curve>> curves{ payoff_.target };
    for (const head & h : heads_) {
        curves.push_back(h.costs.begin);
        curves.push_back(h.costs.step);
    }
    return curves;
}

} // namespace eagle3
