#include "policy/head.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace eagle3 {

namespace {

constexpr int32_t n_ready_max = 128;   // rows that wait and that a probe evaluates at most
constexpr int32_t n_rows_dear = 32;    // that take longer to read than the target takes for a token
constexpr float   share_read  = 0.02f; // of all time, for prompts of one that has saved nothing yet
constexpr float   n_read      = 4.0f;  // and so many tokens' time at first
constexpr float   rate_row    = 0.25f; // of forgetting, per prompt

draft_costs::first_graph first_graph_of(const draft_session & source, bool has_trees) {
    if (source.is_parallel()) {
        return draft_costs::first_graph::all_levels;
    }
    return source.n_unroll() > 1 && !has_trees ? draft_costs::first_graph::chain : draft_costs::first_graph::one_level;
}

} // namespace

head::head(priced_drafter source, size_t index, const payoff & value, int32_t n_seq_max, bool trees, bool uniform) :
    drafter(source.drafter), index(index),
    costs(std::move(source.begin), std::move(source.step), first_graph_of(*drafter, trees)), accepted(n_seq_max),
    ahead(accepted, value, trees, uniform), gates(static_cast<size_t>(n_seq_max) + 1),
    saved_us(static_cast<size_t>(n_seq_max)), account_us(n_read * value.target->at(1)) {}

int32_t head::n_max() const {
    int32_t n = 0;
    for (const draft_request & r : asked) {
        n = std::max(n, r.n_max);
    }
    return n;
}

int32_t head::n_waiting() const {
    int32_t n = 0;
    for (const draft_request & r : asked) {
        n += std::clamp(drafter->n_waiting(r.seq_id), 1, n_waiting_max);
    }
    return n;
}

float head::debt_us(llama_seq_id seq_id) const {
    return row_us() * static_cast<float>(std::max(0, drafter->n_waiting(seq_id) - n_waiting_max));
}

bool head::is_dear(const cost_curve & target) const {
    return row_us() * n_rows_dear > target.at(1);
}

void head::earn(double t_us, double t_saved_us) {
    account_us += static_cast<float>(share_read * t_us + t_saved_us);
}

void head::observe_rows(int32_t n_rows, double t_us) {
    const float t_row = static_cast<float>(t_us) / static_cast<float>(n_rows);
    account_us -= static_cast<float>(t_us);
    if (t_row > 0.0f) {
        row_us_ += (row_us_ > 0.0f ? rate_row : 1.0f) * (t_row - row_us_);
    }
}

void head::leave_waiting() {
    int32_t    n_left = asks_all ? std::numeric_limits<int32_t>::max() : n_ready_max;
    const auto waits  = [&](const draft_request & r) {
        const int32_t n    = drafter->n_waiting(r.seq_id);
        const bool    fits = n <= n_left;
        n_left -= fits ? n : 0;
        return !fits;
    };
    asked.erase(std::remove_if(asked.begin(), asked.end(), waits), asked.end());
}

} // namespace eagle3
