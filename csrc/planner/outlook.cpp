#include "planner/outlook.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

constexpr float rate    = 1.0f / 64.0f;
constexpr float n_prior = 4.0f;

} // namespace

outlook::outlook() {
    for (size_t k = 0; k < n_knots; ++k) {
        const float p = 1.0f / (1.0f + std::exp(-acceptance::knots[k]));
        p_first_[k]   = 0.9f * p;
        p_second_[k]  = 0.4f * (1.0f - p_first_[k]);
        n_seen_[k]    = n_prior;
    }
}

outlook::table outlook::at(const acceptance & accepted, int32_t depth, llama_seq_id seq_id) const {
    table result;
    for (size_t k = 0; k < n_knots; ++k) {
        result.place[k]    = acceptance::place_of(p_first_[k]);
        result.q_first[k]  = accepted.at(result.place[k], depth, seq_id, acceptance::rank::best);
        result.q_second[k] = accepted(p_second_[k], depth, seq_id, acceptance::rank::other);
    }
    return result;
}

void outlook::observe(const std::vector<draft_node> & nodes, size_t first, const std::vector<float> & places) {
    for (size_t i = first; i < nodes.size();) {
        const int32_t      parent   = nodes[i].parent;
        const llama_seq_id seq_id   = nodes[i].seq_id;
        float              p_first  = 0.0f;
        float              p_second = 0.0f;
        for (; i < nodes.size() && nodes[i].parent == parent && nodes[i].seq_id == seq_id; ++i) {
            p_second = std::max(p_second, std::min(p_first, nodes[i].p));
            p_first  = std::max(p_first, nodes[i].p);
        }
        if (parent < 0) {
            p_root_ += rate * (p_first - p_root_);
            continue;
        }
        const float place = places[static_cast<size_t>(parent)];
        for (size_t k = static_cast<size_t>(place); k < n_knots && static_cast<float>(k) < place + 1.0f; ++k) {
            const float share = 1.0f - std::abs(place - static_cast<float>(k));
            n_seen_[k] += share;
            const float step = share * std::max(1.0f / n_seen_[k], rate);
            p_first_[k] += step * (p_first - p_first_[k]);
            p_second_[k] += step * (p_second - p_second_[k]);
        }
    }
}

} // namespace eagle3
