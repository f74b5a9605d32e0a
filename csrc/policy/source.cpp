#include "policy/source.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace eagle3 {

namespace {

constexpr float   n_grant    = 3.0f;         // the accounts begin with the time of so many tokens
constexpr float   n_account  = 48.0f;        // and hold at most this: what a drafter that turns bad can waste
constexpr float   share_time = 0.01f;        // share of all time that is added to the accounts
constexpr float   n_debt     = 2.0f;         // the account goes below 0 by the time of so many first graphs at most
constexpr int32_t n_ready    = 128;          // waiting rows that the account need not cover before they are read
constexpr float   rate_mean  = 1.0f / 64.0f; // rate of forgetting, per step
constexpr float   rate_row   = 0.25f;        // rate of forgetting, per prompt
constexpr float   rate_text  = 0.25f;        // rate of forgetting, per text
constexpr float   n_curious  = 2.7f;         // time of so many tokens for the prompt of a drafter that was never asked,
constexpr float   n_probes   = 2.0f;         // and for its drafts: both together are 3 % of the first 160 tokens
constexpr float   n_credit   = 6.0f;         // at most, for the prompt of a drafter that saved more in earlier texts
constexpr float   n_prompts  = 128.0f;       // what a drafter that was good in earlier processes may spend on prompts

double now_us() {
    const auto t = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(t).count();
}

} // namespace

source::source(priced_drafter priced, size_t index, const payoff & value) :
    drafter(priced.drafter), first(std::move(priced.begin)), step(std::move(priced.step)), index(index),
    is_parallel(drafter->is_parallel()), saved_us(static_cast<size_t>(value.params.n_seq_max)),
    account_us(n_grant * value.target->at(1)), value_(value), gates_(saved_us.size() + 1, { account_us, true }),
    texts_(saved_us.size()) {
    saved_us.assign(saved_us.size(), credit_us());
    if (is_dear()) {
        gates_.assign(gates_.size(), { n_probes * value.target->at(1), true });
    }
}

std::optional<prior> source::known() const {
    if (is_new_) {
        return std::nullopt;
    }
    const float one = value_.target->at(1);
    prior       p;
    p.accepted    = accepted.learned();
    p.log_p       = log_p_;
    p.row         = row_us_ / one;
    p.worth       = worth_;
    p.for_prompts = account_us / one;
    for (const gate & g : gates_) {
        p.for_drafts.push_back(g.account_us / one);
    }
    float text_us = text_us_;
    for (const text & t : texts_) { // those that have not ended
        text_us = t.drafted ? mean_with(t) : text_us;
    }
    p.saved = text_us / one;
    return p;
}

void source::begin_with(const prior & p) {
    std::vector<float> all{ p.log_p, p.row, p.worth, p.saved, p.for_prompts };
    all.insert(all.end(), p.for_drafts.begin(), p.for_drafts.end());
    for (const acceptance::weight & w : p.accepted) {
        all.insert(all.end(), { w.mean, w.variance });
    }
    if (!std::all_of(all.begin(), all.end(), [](float x) { return std::isfinite(x); }) || p.log_p > 0.0f ||
        p.row < 0.0f) {
        throw std::invalid_argument("policy: a drafter's prior has numbers that cannot be");
    }
    const float one = value_.target->at(1);
    accepted.begin_with(p.accepted);
    log_p_     = p.log_p;
    row_us_    = p.row * one;
    worth_     = p.worth;
    text_us_   = p.saved * one;
    account_us = std::clamp(p.for_prompts, -n_prompts, n_prompts) * one;
    for (size_t i = 0; i < std::min(gates_.size(), p.for_drafts.size()); ++i) {
        const float us = std::clamp(p.for_drafts[i], -n_account, n_account) * one;
        gates_[i]      = { us, us > 0.0f };
    }
    is_new_ = false;
    saved_us.assign(saved_us.size(), credit_us());
}

float source::credit_us() const {
    const float one = value_.target->at(1);
    return is_new_ ? n_curious * one : std::clamp(text_us_, 0.0f, n_credit * one);
}

float source::mean_with(const text & t) const {
    const float rate = text_us_ == 0.0f ? 1.0f : rate_text; // the first text is all that is known
    return text_us_ + rate * (static_cast<float>(t.saved_us) - text_us_);
}

void source::reset(llama_seq_id seq_id) {
    const auto i = static_cast<size_t>(seq_id);
    if (texts_[i].drafted) {
        text_us_ = mean_with(texts_[i]);
    }
    texts_[i]   = {};
    saved_us[i] = credit_us();
}

float source::chain_us(int32_t n_rows, int32_t n_levels, int32_t n_seqs) const {
    const int32_t n_more = n_levels - 1;
    if (is_parallel) {
        return first->at(n_rows) + (n_more > 0 ? std::max(0.0f, step->at(n_more * n_seqs) - first->at(1)) : 0.0f);
    }
    return first->at(n_rows) + static_cast<float>(n_more) * step->at(n_seqs);
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
    bool                      known  = true; // the curves may learn from its time
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
    is_new_              = false;
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
        row_us_ += t_row > 0.0f ? (row_us_ > 0.0f ? rate_row : 1.0f) * (t_row - row_us_) : 0.0f;
    }
    llama_seq_id seen = -1; // the best token after each sequence's last one
    for (const draft_node & n : drafter->nodes()) {
        if (n.parent < 0 && n.seq_id != seen) {
            seen = n.seq_id;
            log_p_ += std::max(1.0f / ++n_seen_, rate_mean) * (std::log(n.p > 1e-3f ? n.p : 1e-3f) - log_p_);
        }
    }
}

void source::expand(const std::vector<int32_t> & nodes, int32_t top_k) {
    const auto   n    = static_cast<int32_t>(nodes.size());
    const double t_us = timed([&] { drafter->expand(nodes, top_k); });
    if (!is_parallel) {
        step->observe(n, t_us);
    }
    took.expected_us += level_us(n);
}

float source::best_ahead(std::vector<tail> tails, std::vector<float> gains, int32_t depth, int32_t n_ahead,
                         bool goes_on, const std::function<float(int32_t)> & cost, int32_t & n_best) const {
    float most = 0.0f;
    n_best     = 0;
    for (int32_t ahead = 1; ahead <= n_ahead; ++ahead) {
        const int32_t level = depth + ahead;
        const float   q     = accepted.at(std::exp(log_p_), level, true);
        float         all   = 0.0f;
        for (tail & t : tails) {
            t.cum *= level > t.n_levels ? 0.0f : q;
            all += static_cast<float>(t.cum);
            if (!value_.params.uniform && t.cum > 0.0) {
                const auto cum = static_cast<float>(t.cum);
                gains.insert(std::upper_bound(gains.begin(), gains.end(), cum, std::greater<float>()), cum);
            }
        }
        if (all <= 0.0f) {
            break;
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

float source::debt_us(llama_seq_id seq_id) const {
    return row_us() * static_cast<float>(std::max(0, drafter->n_waiting(seq_id) - n_waiting_max));
}

bool source::can_ask(int32_t n_seqs) const {
    float t_us = chain_us(n_waiting(), 1, static_cast<int32_t>(asked.size()));
    for (const draft_request & r : asked) {
        const int32_t n = is_dear() ? 0 : drafter->n_waiting(r.seq_id) - n_ready; // each step adds a few rows
        t_us += row_us() * static_cast<float>(std::max(0, n));
    }
    return !asked.empty() && gates_[static_cast<size_t>(n_seqs)].account_us >= t_us;
}

void source::earn(int32_t n_seqs, double t_us) {
    const float share = share_time * static_cast<float>(t_us);
    float &     us    = gates_[static_cast<size_t>(n_seqs)].account_us;
    us                = std::min(us + share, n_account * value_.target->at(1));
    account_us += share;
}

void source::gain(int32_t n_seqs, float value, double t_saved, float charge) {
    worth_ += rate_mean * (value - worth_);
    t_saved_us += t_saved;
    for (const draft_request & r : asked) {
        text & t = texts_[static_cast<size_t>(r.seq_id)];
        t.saved_us += t_saved / static_cast<double>(asked.size());
        t.drafted = true;
    }
    account_us += static_cast<float>(t_saved - took.read_us);
    gate & g = gates_[static_cast<size_t>(n_seqs)];
    g.account_us += charge * static_cast<float>(t_saved);
    g.account_us = std::max(g.account_us, -n_debt * first->at(static_cast<int32_t>(asked.size())));
    g.account_us -= is_dear() ? 0.0f : static_cast<float>(took.read_us);
    g.is_open = g.account_us > 0.0f;
}

} // namespace eagle3
