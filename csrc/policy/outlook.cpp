#include "policy/outlook.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

namespace {

constexpr float second  = 0.3f;         // p of the second best token, of what the best one leaves over
constexpr float p_least = 0.005f;       // and 1 minus that: no single token moves the mean far
constexpr float rate    = 1.0f / 64.0f; // of forgetting, per look

using rank = acceptance::rank;

} // namespace

void outlook::observe(float p) {
    n_seen_ += 1.0f;
    p = p > p_least ? std::min(p, 1.0f - p_least) : p_least; // a broken head may give none
    mean_ += std::max(1.0f / n_seen_, rate) * (std::log(p / (1.0f - p)) - mean_);
}

float outlook::p() const {
    return 1.0f / (1.0f + std::exp(-mean_));
}

float outlook::best(std::vector<tail> tails, std::vector<float> gains, int32_t depth, int32_t n_ahead, bool goes_on,
                    const std::function<float(int32_t)> & cost, int32_t & n_best) const {
    // the most that a step verifies: what comes after these counts for nothing
    const auto n_most = static_cast<size_t>(value_.n_nodes_max());
    const auto insert = [&gains, n_most](float cum) {
        if (gains.size() >= n_most) {
            if (n_most == 0 || !(cum > gains[n_most - 1])) {
                return;
            }
            gains.resize(n_most - 1);
        }
        gains.insert(std::upper_bound(gains.begin(), gains.end(), cum, std::greater<float>()), cum);
    };
    const float p_best = p();
    float       best   = 0.0f;
    n_best             = 0;
    for (int32_t ahead = 1; ahead <= n_ahead; ++ahead) {
        size_t       n_tails = 0;
        float        level   = 0.0f;
        llama_seq_id seq_id  = -1; // that q_best and q_other are of: the same for all its paths
        float        q_best = 0.0f, q_other = 0.0f;
        for (const tail & t : tails) {
            if (depth + ahead > t.n_levels) {
                continue;
            }
            if (t.seq_id != seq_id) {
                seq_id  = t.seq_id;
                q_best  = accepted_.at(p_best, depth + ahead, seq_id, rank::best);
                q_other = trees_ ? accepted_.at(second * (1.0f - p_best), depth + ahead, seq_id, rank::other) : 0.0f;
            }
            const float cum = t.cum * q_best;
            if (trees_) {
                insert(t.cum * q_other);
            }
            if (!uniform_) {
                insert(cum);
            }
            level += cum;
            tails[n_tails++] = { cum, t.n_levels, t.seq_id };
        }
        if (n_tails == 0) {
            break;
        }
        tails.resize(n_tails);
        if (uniform_) {
            const auto at = static_cast<size_t>(depth + ahead - 1);
            gains.resize(std::max(gains.size(), at + 1));
            gains[at] = std::max(gains[at], level);
        }
        int32_t     n     = 0;
        const float value = value_.best(gains, uniform_ ? value_.n_seqs() : 1, goes_on, n) - cost(ahead);
        if (value > best) {
            best   = value;
            n_best = ahead;
        }
    }
    return best;
}

} // namespace eagle3
