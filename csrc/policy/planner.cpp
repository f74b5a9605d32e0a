#include "policy/planner.h"

#include "error.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <stdexcept>

namespace eagle3 {

namespace {

constexpr int32_t n_look_ahead = 8;
constexpr int32_t n_trial      = 3;    // tokens of a trial: kernels get fast at four rows
constexpr int32_t n_idle_first = 128;  // steps before the first trial; each next one is after twice as many
constexpr int32_t n_idle_last  = 1024; // at most: three more rows in 1,024 passes cost 0.3 %
constexpr float   unverified   = 3.0f; // a draft that was rightly not verified counts so many times

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

planner::planner(std::vector<priced_drafter> drafters, std::shared_ptr<ngram_drafter> ngram,
                 std::shared_ptr<cost_curve> target, const planner_params & params) :
    ngram_(std::move(ngram)), params_(checked(params)), payoff_(std::move(target), params_), candidates_(params_),
    sequences_(static_cast<size_t>(params.n_seq_max)) {
    if (drafters.size() > n_sources_max) {
        throw std::invalid_argument(
            format("planner: expected at most %zu drafters, found %zu", n_sources_max, drafters.size()));
    }
    for (priced_drafter & drafter : drafters) {
        sources_.emplace_back(std::move(drafter), sources_.size(), payoff_);
    }
    stats.n_asked.resize(sources_.size());
    stats.unread_prompt.resize(sources_.size());
    stats.n_chosen.resize(static_cast<size_t>(params.n_nodes_max) + 1);
}

planner::sequence & planner::of(llama_seq_id seq_id) {
    if (seq_id < 0 || static_cast<size_t>(seq_id) >= sequences_.size()) {
        throw std::invalid_argument(
            format("planner: expected a sequence in 0..%zu, found %d", sequences_.size() - 1, seq_id));
    }
    return sequences_[static_cast<size_t>(seq_id)];
}

void planner::check(const std::vector<draft_request> & requests) {
    if (requests.empty() || requests.size() > sequences_.size()) {
        throw std::invalid_argument(
            format("planner: expected 1..%zu sequences, found %zu", sequences_.size(), requests.size()));
    }
    for (auto r = requests.begin(); r != requests.end(); ++r) {
        of(r->seq_id);
        if (std::any_of(requests.begin(), r, [r](const draft_request & o) { return o.seq_id == r->seq_id; })) {
            throw std::invalid_argument(format("planner: expected different sequences, found %d twice", r->seq_id));
        }
    }
}

const std::vector<draft_tree> & planner::propose(const std::vector<draft_request> & requests, int32_t n_rows_extra) {
    const double t_start = now_us();
    check(requests);
    n_rows_extra = std::max(n_rows_extra, 0);
    begin_step(requests, n_rows_extra);
    choose_source(n_rows_extra);
    source::spent took;
    if (step_.by != nullptr) {
        draft();
        took = step_.by->took;
    }
    publish();
    stats.n_steps++;
    stats.n_chosen[static_cast<size_t>(step_.n_drafted)]++;
    stats.t_draft_us += took.draft_us;
    stats.t_plan_us += now_us() - t_start - took.own_us;
    return drafts_;
}

// Decides which sequences may be drafted for, and adds what the n-gram drafter suggests.
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
    for (source & s : sources_) {
        s.asked.clear();
        s.took = {};
    }
    for (draft_request r : requests) {
        r.n_max       = sources_.empty() ? 0 : std::clamp(r.n_max, 0, params_.n_max);
        r.ngram_n_max = ngram_ ? std::clamp(r.ngram_n_max, 0, params_.n_max) : 0;
        r.n_room      = r.n_max + r.ngram_n_max > 0 ? std::max(r.n_room, 0) : 0;
        candidates_.add_sequence(r.seq_id, r.n_room, std::min(r.n_max, r.n_room));
        for (source & s : sources_) {
            if (std::min(r.n_max, r.n_room) > 0 && (r.drafters >> s.index & 1) != 0) {
                s.asked.push_back(r);
            }
        }
        sequence &    seq     = of(r.seq_id);
        const int32_t n_nodes = std::min({ r.n_room, params_.n_nodes_max, seq.n_ngram });
        if (std::min(r.ngram_n_max, n_nodes) > 0) {
            ngram_->propose(r.seq_id, std::min(r.ngram_n_max, n_nodes), n_nodes, params_.top_k, suggested_);
            candidates_.add(r.seq_id, suggested_);
        }
        seq.open = seq.open && seq.id_last == r.id_last; // another token: this is not the text that was judged
    }
    step_.value_ngram = best(step_.n_best);
    for (source & s : sources_) {
        leave_unread(s);
    }
}

// Leaves out the sequences whose prompt the source has not read and that is still too dear to read, and counts what the
// source's drafts would have saved in this step.
void planner::leave_unread(source & s) {
    stats.unread_prompt[s.index] = {};
    const auto is_bought         = [&s](const draft_request & r) {
        return s.is_bought(r.seq_id);
    };
    if (!s.is_dear() || std::all_of(s.asked.begin(), s.asked.end(), is_bought)) {
        return;
    }
    const auto   n_seqs = static_cast<int32_t>(s.asked.size());
    const double saved  = std::max(0.0f, adds(s, n_seqs)) / (payoff_.price() * n_seqs); // with one waiting row each
    const auto   others = std::stable_partition(s.asked.begin(), s.asked.end(), is_bought);
    for (auto r = others; r != s.asked.end(); ++r) {
        float & all = s.saved_us[static_cast<size_t>(r->seq_id)];
        all += static_cast<float>(saved);
        stats.unread_prompt[s.index] = { s.debt_us(r->seq_id), all, s.account_us };
    }
    s.asked.erase(others, s.asked.end());
}

// Chooses the source that is asked in this step, if any: of those that are worth it the one that was asked least
// recently. If none could pay, one is tried now and then: the costs may have been measured on a busy machine.
void planner::choose_source(int32_t n_rows_extra) {
    const int32_t n_seqs = payoff_.n_seqs();
    source *      tried  = nullptr;
    bool          pays   = false;
    for (source & s : sources_) {
        int32_t n_max = 0;
        for (const draft_request & r : s.asked) {
            n_max = std::max(n_max, r.n_max);
        }
        const auto is_next = [&s](const source * other) {
            return other == nullptr || s.i_asked < other->i_asked;
        };
        if (s.can_pay(n_seqs, n_rows_extra, n_max)) {
            pays = true;
            if (is_next(step_.by) && s.can_ask(n_seqs) &&
                (step_.value_ngram <= 0.0f || adds(s, s.n_waiting()) > 0.0f)) {
                step_.by = &s;
            }
        } else if (n_max >= n_trial && is_next(tried)) {
            tried = &s;
        }
    }
    if (!pays && step_.value_ngram <= 0.0f && tried != nullptr && params_.n_nodes_max >= n_trial * n_seqs) {
        const int64_t n = ++n_idle_;
        step_.is_trial  = n % n_idle_last == 0 || (n >= n_idle_first && n < n_idle_last && (n & (n - 1)) == 0);
        step_.by        = step_.is_trial ? tried : nullptr;
    }
    if (step_.by != nullptr) {
        step_.by->i_asked = stats.n_steps;
        stats.n_asked[step_.by->index]++;
        stats.n_drafted++;
        stats.n_trials += step_.is_trial;
        stats.n_probes += !step_.is_trial && !step_.by->is_open(n_seqs);
    }
}

float planner::best(int32_t & n_best) const {
    return payoff_.best(candidates_.gains(), candidates_.has_ngrams(), n_best);
}

// What chains of a source are expected to be worth before anything is drafted, if n_rows rows wait, and the length
// n_best that is worth most. is_asked: the source is asked in any case, so the first level is not counted.
float planner::chains_ahead(const source & s, int32_t n_rows, int32_t n_levels, bool is_asked, int32_t & n_best) const {
    std::vector<source::tail> tails;
    for (const draft_request & r : s.asked) {
        tails.push_back({ 1.0, std::min(r.n_max, r.n_room) });
    }
    const auto  n_seqs = static_cast<int32_t>(s.asked.size());
    const float t_paid = is_asked ? s.chain_us(n_rows, 1, n_seqs) : 0.0f;
    const auto  cost   = [&](int32_t n) {
        return payoff_.of_time(s.chain_us(n_rows, n, n_seqs) - t_paid);
    };
    return s.best_ahead(tails, {}, 0, n_levels, !is_asked, cost, n_best);
}

// What a source is expected to add to the n-grams, less the price of its time, if n_rows rows wait.
float planner::adds(const source & s, int32_t n_rows) const {
    int32_t n = 0;
    return chains_ahead(s, n_rows, n_look_ahead, false, n) - step_.value_ngram;
}

// Lets the source draft its first graph, then level after level as long as that is expected to pay.
void planner::draft() {
    source &     s        = *step_.by;
    const auto   n_seqs   = static_cast<int32_t>(s.asked.size());
    const size_t n_widest = static_cast<size_t>(std::max(params_.top_k, payoff_.n_seqs()));
    const auto   n_most   = std::min(s.drafter->n_unroll(), params_.n_nodes_max / n_seqs);
    int32_t      depth    = 1; // levels of the first graph, which are fixed before it runs
    if (n_most > 1 && (!params_.has_trees() || s.is_parallel)) {
        chains_ahead(s, s.n_waiting(), n_most, true, depth);
        depth = std::max(depth, step_.is_trial ? std::min(n_trial, n_most) : 1);
    }
    for (const draft_request & r : s.asked) {
        of(r.seq_id).open = false;
    }
    s.begin(params_.top_k, depth);
    const int32_t n_levels = s.is_parallel ? depth : params_.n_max;
    depth                  = s.is_parallel ? 1 : depth; // a parallel drafter's expand() appends the other levels
    int32_t n_expand       = s.drafter->n_expand() - (depth - 1);
    stats.n_levels += depth - 1;
    for (size_t n_old = 0;; ++depth) {
        candidates_.add(s.drafter->nodes(), n_old, &s.accepted, draft_tree::by_drafter(s.index));
        std::vector<int32_t> level = candidates_.level(depth);
        level.resize(std::min({ level.size(), n_widest, static_cast<size_t>(std::max(n_expand, 0)) }));
        level.resize(next_width(level, depth, n_levels));
        if (level.empty()) {
            break;
        }
        for (int32_t & i : level) {
            i = candidates_.at(i).in_source;
        }
        n_old = s.drafter->nodes().size();
        s.expand(level, params_.top_k);
        n_expand -= static_cast<int32_t>(level.size());
        stats.n_levels++;
    }
    best(step_.n_best);
    if (step_.is_trial) {
        step_.n_best = std::min(static_cast<int32_t>(candidates_.gains().size()),
                                params_.uniform ? n_trial : n_trial * payoff_.n_seqs());
    }
}

// How many nodes of the last level to expand; 0 = draft no further.
size_t planner::next_width(const std::vector<int32_t> & level, int32_t depth, int32_t n_levels) const {
    if (level.empty() || depth >= n_levels) {
        return 0;
    }
    if (step_.is_trial) {
        return depth < n_trial ? level.size() : 0;
    }
    int32_t                   n          = 0;
    float                     most       = best(n);
    size_t                    best_width = 0;
    std::vector<source::tail> tails;
    for (const size_t width : { params_.uniform ? level.size() : 1, level.size() }) {
        while (tails.size() < width) {
            const candidates::node & c = candidates_.at(level[tails.size()]);
            tails.push_back({ c.cum, std::min(candidates_.n_levels(c.seq_id), n_levels) });
        }
        const float cost_level = payoff_.of_time(step_.by->level_us(static_cast<int32_t>(width)));
        const auto  cost       = [cost_level](int32_t n_more) {
            return static_cast<float>(n_more) * cost_level;
        };
        const float value =
            step_.by->best_ahead(tails, candidates_.gains(), depth, n_look_ahead, candidates_.has_ngrams(), cost, n);
        if (value > most) {
            most       = value;
            best_width = width;
        }
    }
    return best_width;
}

// Makes the drafts, and keeps the nodes that judge() compares the texts with.
void planner::publish() {
    candidates_.publish(static_cast<size_t>(step_.n_best), drafts_);
    int32_t by = 0;
    for (const draft_tree & draft : drafts_) {
        step_.n_drafted += static_cast<int32_t>(draft.tokens.size());
        by = std::accumulate(draft.sources.begin(), draft.sources.end(), by, std::bit_or<>());
    }
    step_.has_ngrams = (by & draft_tree::by_ngram) != 0;
    stats.n_ngram += step_.has_ngrams;
    stats.n_grammar += (by & draft_tree::by_grammar) != 0;
    if (step_.by == nullptr && !candidates_.has_ngrams()) {
        return; // the texts may go on along the nodes of an earlier step
    }
    judged_    = candidates_.nodes();
    judged_by_ = step_.by;
    for (sequence & seq : sequences_) {
        seq.at   = -1;
        seq.open = true;
    }
}

void planner::judge(llama_seq_id seq_id, const std::vector<llama_token> & tokens) {
    sequence & seq = of(seq_id);
    for (const llama_token token : tokens) {
        if (!seq.open) {
            break;
        }
        int32_t next    = -1;
        bool    is_over = false; // n-grams proposed a token here: if none is next, they were wrong
        for (size_t i = static_cast<size_t>(seq.at + 1); i < judged_.size(); ++i) {
            const candidates::node & n = judged_[i];
            if (n.parent != seq.at || n.seq_id != seq_id) {
                continue;
            }
            const bool accepted = n.token == token;
            next                = accepted ? static_cast<int32_t>(i) : next;
            if (n.in_source >= 0) {
                step_.n_right += n.depth > 1 || !n.is_best ? 0 : accepted ? 1 : -1;
                judged_by_->accepted.observe(n.p_source, n.depth, n.is_best, accepted);
            }
            if (n.p_ngram > 0.0f) {
                candidates_.of_text(n).observe(n.p_ngram, n.depth, true, accepted);
                is_over = true;
                seq.n_ngram *= accepted && n.depth == seq.n_ngram ? 2 : 1;
            }
        }
        seq.n_ngram = is_over && next < 0 ? n_ngram_first : seq.n_ngram;
        seq.at      = next;
        seq.open    = next >= 0;
    }
    if (!tokens.empty()) {
        seq.id_last = tokens.back();
        step_.n_emitted += static_cast<int32_t>(tokens.size());
    }
}

// What a step gives, in tokens, with the best of the other sources.
float planner::rival() const {
    float most = 0.0f;
    for (const source & s : sources_) {
        most = std::max(most, &s == step_.by || s.asked.empty() ? 0.0f : s.worth(payoff_.n_seqs()));
    }
    return most;
}

void planner::finish(int32_t n_rows, double t_verify_us, double t_other_us) {
    if (step_.n_emitted == 0 || !(t_verify_us > 0.0) || !(t_other_us >= 0.0)) {
        return;
    }
    const source::spent took    = step_.by == nullptr ? source::spent() : step_.by->took;
    const double        t_draft = took.draft_us - took.read_us;
    payoff_.observe(step_.n_emitted, n_rows, t_draft, t_verify_us, t_other_us);
    const float more = payoff_.of_step(step_.n_emitted, step_.n_drafted, took.expected_us);
    for (source & s : sources_) {
        s.earn(payoff_.n_seqs(), t_draft + t_verify_us + t_other_us);
    }
    if (step_.by == nullptr && step_.n_drafted > 0) {
        (step_.has_ngrams ? stats.t_ngram_saved_us : stats.t_grammar_saved_us) += more / payoff_.price();
    }
    if (step_.by != nullptr && !step_.is_trial) {
        // a draft that was not verified counts by whether the text agreed with it
        const float charge = step_.n_drafted > 0 ? 1.0f : step_.n_right > 0 ? 0.0f : unverified;
        step_.by->gain(payoff_.n_seqs(), more, (more - rival()) / payoff_.price(), charge);
    }
    step_.by        = nullptr;
    step_.n_emitted = 0;
}

void planner::reset(llama_seq_id seq_id) {
    of(seq_id) = {};
    for (source & s : sources_) {
        s.reset(seq_id);
    }
}

void planner::begin_with(const std::vector<std::optional<prior>> & priors) {
    for (size_t i = 0; i < std::min(priors.size(), sources_.size()); ++i) {
        if (priors[i]) {
            sources_[i].begin_with(*priors[i]);
        }
    }
}

std::vector<std::optional<prior>> planner::known() const {
    std::vector<std::optional<prior>> found;
    for (const source & s : sources_) {
        found.push_back(s.known());
    }
    return found;
}

bool planner::can_pay(int32_t n_seqs) const {
    return std::any_of(sources_.begin(), sources_.end(),
                       [&](const source & s) { return s.can_pay(n_seqs, 0, params_.n_max); });
}

bool planner::is_worth(size_t i_source, int32_t n_seqs) const {
    return sources_[i_source].is_open(n_seqs) && sources_[i_source].can_pay(n_seqs, 0, params_.n_max);
}

int32_t planner::may_wait(int32_t n_seqs) const {
    if (n_seqs < 1 || static_cast<size_t>(n_seqs) > sequences_.size()) {
        throw std::invalid_argument(format("planner: expected 1..%zu sequences, found %d", sequences_.size(), n_seqs));
    }
    int32_t found = 0;
    for (const source & s : sources_) {
        found |= s.is_dear() || !is_worth(s.index, n_seqs) ? 1 << s.index : 0;
    }
    return found;
}

float planner::accepted(float p, int32_t depth, bool by_ngram, size_t i_source) const {
    if (!(p >= 0.0f && p <= 1.0f) || depth < 1 || (!by_ngram && i_source >= sources_.size())) {
        throw std::invalid_argument(format("planner: expected p in 0..1, depth >= 1 and one of %zu drafters, found %g, "
                                           "%d and %zu",
                                           sources_.size(), p, depth, i_source));
    }
    return (by_ngram ? candidates_.ngram : sources_[i_source].accepted).at(p, depth, true);
}

float planner::draft_us(int32_t n_tokens) const {
    float least = 0.0f;
    for (const source & s : sources_) {
        const float t = s.chain_us(1, n_tokens, 1);
        least         = s.index == 0 ? t : std::min(least, t);
    }
    return least;
}

std::vector<std::shared_ptr<cost_curve>> planner::costs() const {
    std::vector<std::shared_ptr<cost_curve>> curves{ payoff_.target };
    for (const source & s : sources_) {
        curves.insert(curves.end(), { s.first, s.step });
    }
    return curves;
}

} // namespace eagle3
