#include "planner/head.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace eagle3 {

namespace {

constexpr int32_t n_ready_max = 128; // rows that wait and that a probe evaluates at most

draft_costs::first_graph first_graph_of(const draft_source & source, bool has_trees) {
    if (source.is_parallel()) {
        return draft_costs::first_graph::all_levels;
    }
    return source.n_unroll() > 1 && !has_trees ? draft_costs::first_graph::chain : draft_costs::first_graph::one_level;
}

} // namespace

head::head(priced_source source, size_t index, const payoff & value, int32_t n_seq_max, bool trees, bool uniform) :
    drafter(std::move(source.drafter)), index(index),
    costs(std::move(source.begin), std::move(source.step), first_graph_of(*drafter, trees)), accepted(n_seq_max),
    ahead(accepted, value, trees, uniform), gates(static_cast<size_t>(n_seq_max) + 1) {}

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
