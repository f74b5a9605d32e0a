#include "policy/source.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

namespace eagle3 {

namespace {

constexpr float   credit_max   = 24.0f; // what a drafter that turns bad can waste
constexpr float   credit_probe = 1.0f;  // gained or lost: enough to decide about a closed gate
constexpr float   variance_min = 0.25f;
constexpr float   hopeless     = 14.0f; // at first a step counts so much if nothing was worth verifying, and rightly so
constexpr float   rate_gate    = 1.0f / 32.0f;
constexpr int32_t n_wait_first = 8;
constexpr int32_t n_wait_max   = 256;
constexpr int32_t n_wait_text  = 32;    // at most, when a new text begins
constexpr float   share_probe  = 0.01f; // of a text's time, for probes
constexpr float   n_probe      = 4.0f;  // and so many graphs of what earlier ones left over

constexpr float share_chain = 0.5f; // of a level: one more of a chain in the first graph needs no graph of its own
constexpr float rate_p      = 1.0f / 64.0f; // of forgetting, per look
constexpr float second      = 0.3f;         // p of the second best token, of what the best one leaves over

constexpr int32_t n_ready_max = 128;   // rows that wait and that a probe evaluates at most
constexpr float   share_read  = 0.02f; // of all time, for prompts of one that has saved nothing yet
constexpr float   n_read      = 4.0f;  // and so many tokens' time at first
constexpr float   rate_row    = 0.25f; // of forgetting, per prompt

using rank = acceptance::rank;

double now_us() {
    const auto t = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(t).count();
}

} // namespace

void gate::update(float value, float expected, float rival, bool verified, bool surprise) {
    n_asked_ += 1.0f;
    worth_ += std::max(1.0f / n_asked_, rate_gate) * (value - worth_);
    const float more = value - rival;
    variance_ += rate_gate * (more * more - variance_);
    const float gain = more / std::sqrt(std::max(variance_, variance_min));
    int32_t     wait = 0;
    if (open_) {
        credit_ = std::min(credit_ + (verified || surprise || n_wait_ > 0 ? gain : hopeless * gain), credit_max);
        wait    = credit_ < 0.0f ? n_wait_first : 0;
    } else {
        // of a probe that was not verified, all that matters is whether the text agreed with it
        credit_ += verified ? gain : 0.0f;
        n_wait_            = surprise ? n_wait_first : n_wait_;
        const bool is_lost = credit_ < -credit_probe || (expected <= rival && !surprise);
        open_              = credit_ > credit_probe;
        wait               = !open_ && is_lost ? std::min(2 * n_wait_, n_wait_max) : 0;
        wait_              = 0; // not decided yet: probe again at once
    }
    if (wait > 0) {
        open_   = false;
        n_wait_ = wait_ = wait;
        credit_         = 0.0f;
    }
}

void gate::new_text() {
    wait_ = std::min(wait_, n_wait_text);
}

source::source(priced_drafter priced, size_t index, const payoff & value) :
    drafter(priced.drafter), first(std::move(priced.begin)), step(std::move(priced.step)), index(index),
    is_parallel(drafter->is_parallel()), accepted(value.params.n_seq_max),
    saved_us(static_cast<size_t>(value.params.n_seq_max)), account_us(n_read * value.target->at(1)), value_(value),
    has_trees_(value.params.has_trees()), share_level_(drafter->n_unroll() > 1 && !has_trees_ ? share_chain : 1.0f),
    gates_(saved_us.size() + 1) {}

float source::chain_us(int32_t n_rows, int32_t n_levels, int32_t n_seqs) const {
    const int32_t n_more = n_levels - 1;
    if (is_parallel) {
        return first->at(n_rows) + (n_more > 0 ? std::max(0.0f, step->at(n_more * n_seqs) - first->at(1)) : 0.0f);
    }
    return first->at(n_rows) + share_level_ * static_cast<float>(n_more) * step->at(n_seqs);
}

bool source::can_pay(int32_t n_seqs, int32_t n_rows_extra, int32_t n_max) const {
    const auto &  pass   = *value_.target;
    const int32_t n_base = n_seqs + n_rows_extra;
    float         gain = 0.0f, cum = 1.0f;
    for (int32_t depth = 1; depth <= n_max && n_seqs * depth <= value_.params.n_nodes_max; ++depth) {
        cum *= acceptance::q_max;
        gain += static_cast<float>(n_seqs) * cum;
        const float t_more = pass.at(n_base + n_seqs * depth) - pass.at(n_base);
        if (gain > value_.plain(n_seqs) * (t_more + chain_us(n_seqs * depth, depth, n_seqs))) {
            return true;
        }
    }
    return false;
}

template <typename F>
double source::timed(F && call) {
    const double t_own   = now_us();
    const double t_start = drafter->t_draft_us();
    call();
    const double t_us = drafter->t_draft_us() - t_start;
    took.own_us += now_us() - t_own;
    took.draft_us += t_us;
    return t_us;
}

void source::begin(int32_t top_k, int32_t n_steps) {
    std::vector<llama_seq_id> seq_ids;
    std::vector<llama_token>  ids_last;
    bool                      known  = true; // what it takes says what its rows cost
    int32_t                   n_read = 0;    // rows beyond those that any draft evaluates
    for (const draft_request & r : asked) {
        const int32_t n     = drafter->n_waiting(r.seq_id);
        float &       saved = saved_us[static_cast<size_t>(r.seq_id)];
        known               = known && n > 0 && n <= n_waiting_max;
        saved               = std::max(0.0f, saved - debt_us(r.seq_id));
        n_read += std::max(0, n - n_waiting_max);
        seq_ids.push_back(r.seq_id);
        ids_last.push_back(r.id_last);
    }
    const auto    n_seqs = static_cast<int32_t>(seq_ids.size());
    const int32_t n_rows = n_waiting();
    const double  t_us   = timed([&] { drafter->begin(seq_ids, ids_last, top_k, n_steps); });
    if (known && n_steps == 1) {
        first->observe(n_rows, t_us);
    } else if (known && is_parallel) {
        step->observe((n_steps - 1) * n_seqs, t_us - static_cast<double>(first->at(n_rows) - first->at(1)));
    }
    took.expected_us = chain_us(n_rows, n_steps, n_seqs);
    if (n_read > 0) {
        took.read_us      = std::max(0.0, t_us - static_cast<double>(took.expected_us));
        const float t_row = static_cast<float>(took.read_us) / static_cast<float>(n_read);
        account_us -= static_cast<float>(took.read_us);
        row_us_ += t_row > 0.0f ? (row_us_ > 0.0f ? rate_row : 1.0f) * (t_row - row_us_) : 0.0f;
    }
    observe_p();
}

void source::expand(const std::vector<int32_t> & nodes, int32_t top_k) {
    const auto   n    = static_cast<int32_t>(nodes.size());
    const double t_us = timed([&] { drafter->expand(nodes, top_k); });
    if (!is_parallel) {
        step->observe(n, t_us);
    }
    took.expected_us += level_us(n);
}

// the p of its best tokens after the sequences' last ones
void source::observe_p() {
    llama_seq_id seen = -1;
    for (const draft_node & n : drafter->nodes()) {
        if (n.parent < 0 && n.seq_id != seen) {
            seen = n.seq_id;
            n_seen_ += 1.0f;
            logit_ += std::max(1.0f / n_seen_, rate_p) * (acceptance::logit(n.p) - logit_);
        }
    }
}

float source::best_ahead(std::vector<tail> tails, std::vector<float> gains, int32_t depth, int32_t n_ahead,
                         bool goes_on, const std::function<float(int32_t)> & cost, int32_t & n_best) const {
    const auto n_most = static_cast<size_t>(value_.params.n_nodes_max); // what comes after these counts for nothing
    const auto insert = [&gains, n_most](float cum) {
        if (gains.size() < n_most || (n_most > 0 && cum > gains[n_most - 1])) {
            gains.insert(std::upper_bound(gains.begin(), gains.end(), cum, std::greater<float>()), cum);
            gains.resize(std::min(gains.size(), n_most));
        }
    };
    const float p    = p_mean();
    float       most = 0.0f;
    n_best           = 0;
    for (int32_t ahead = 1; ahead <= n_ahead; ++ahead) {
        const int32_t level  = depth + ahead;
        llama_seq_id  seq_id = -1; // that q_best and q_other are of: the same for all its paths
        float         q_best = 0.0f, q_other = 0.0f, all = 0.0f;
        tails.erase(std::remove_if(tails.begin(), tails.end(), [level](const tail & t) { return level > t.n_levels; }),
                    tails.end());
        if (tails.empty()) {
            break;
        }
        for (tail & t : tails) {
            if (t.seq_id != seq_id) {
                seq_id  = t.seq_id;
                q_best  = accepted.at(p, level, seq_id, rank::best);
                q_other = has_trees_ ? accepted.at(second * (1.0f - p), level, seq_id, rank::other) : 0.0f;
            }
            if (has_trees_) {
                insert(t.cum * q_other);
            }
            t.cum *= q_best;
            all += t.cum;
            if (!value_.params.uniform) {
                insert(t.cum);
            }
        }
        if (value_.params.uniform) {
            gains.resize(std::max(gains.size(), static_cast<size_t>(level)));
            gains[static_cast<size_t>(level) - 1] = std::max(gains[static_cast<size_t>(level) - 1], all);
        }
        int32_t     n     = 0;
        const float value = value_.best(gains, goes_on, n) - cost(ahead);
        if (value > most) {
            most   = value;
            n_best = ahead;
        }
    }
    return most;
}

int32_t source::n_waiting() const {
    int32_t n = 0;
    for (const draft_request & r : asked) {
        n += std::clamp(drafter->n_waiting(r.seq_id), 1, n_waiting_max);
    }
    return n;
}

void source::leave_waiting() {
    int32_t    n_left = asks_all ? std::numeric_limits<int32_t>::max() : n_ready_max;
    const auto waits  = [&](const draft_request & r) {
        const int32_t n    = drafter->n_waiting(r.seq_id);
        const bool    fits = n <= n_left;
        n_left -= fits ? n : 0;
        return !fits;
    };
    asked.erase(std::remove_if(asked.begin(), asked.end(), waits), asked.end());
}

float source::debt_us(llama_seq_id seq_id) const {
    return row_us() * static_cast<float>(std::max(0, drafter->n_waiting(seq_id) - n_waiting_max));
}

void source::earn(double t_us, double t_saved, bool is_lost) {
    const double t_read = is_dear() ? 0.0 : took.read_us; // else it is of the other account
    probe_us_ += static_cast<float>(share_probe * t_us + (is_lost ? t_saved - t_read : 0.0));
    account_us += static_cast<float>(share_read * t_us + t_saved);
    t_saved_us += t_saved;
}

void source::reset(llama_seq_id seq_id) {
    accepted.reset(seq_id);
    saved_us[static_cast<size_t>(seq_id)] = 0.0f;
    probe_us_                             = std::min(probe_us_, n_probe * first->at(n_waiting_max));
    for (gate & g : gates_) {
        g.new_text();
    }
}

} // namespace eagle3
