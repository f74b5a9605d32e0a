#include "target/logits.h"

#include <algorithm>
#include <cmath>

namespace eagle3 {

// The greatest of a multiple of 16 values, in independent lanes, so that the compiler can use vector instructions.
static float max_of(const float * x, int32_t n) {
    constexpr int32_t n_lanes = 16;
    float             top[n_lanes];
    std::copy(x, x + n_lanes, top);
    for (int32_t i = n_lanes; i < n; i += n_lanes) {
        for (int32_t k = 0; k < n_lanes; ++k) {
            top[k] = x[i + k] > top[k] ? x[i + k] : top[k];
        }
    }
    float res = top[0];
    for (int32_t k = 1; k < n_lanes; ++k) {
        res = top[k] > res ? top[k] : res;
    }
    return res;
}

llama_token argmax(const float * logits, int32_t n) {
    constexpr int32_t n_block = 512;

    // finds the first block with the greatest value, then the value in it
    int32_t first = 0;
    float   x_max = -INFINITY;
    for (int32_t i = 0; i + n_block <= n; i += n_block) {
        const float x = max_of(logits + i, n_block);
        if (x > x_max) {
            x_max = x;
            first = i;
        }
    }
    for (int32_t i = n / n_block * n_block; i < n; ++i) {
        if (logits[i] > x_max) {
            x_max = logits[i];
            first = i;
        }
    }
    const float * it = std::find(logits + first, logits + n, x_max);
    return it == logits + n ? -1 : static_cast<llama_token>(it - logits); // NaN equals nothing
}

bool has_nan(const float * logits, int32_t n) {
    return std::any_of(logits, logits + n, [](float x) { return std::isnan(x); });
}

bool best_candidates(const float * logits, int32_t n, int32_t k, std::vector<llama_token_data> & res) {
    constexpr int32_t n_block = 64;

    const auto better = [](const llama_token_data & a, const llama_token_data & b) {
        return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
    };
    // a heap with the worst of the best first; most blocks have no better value
    res.clear();
    for (int32_t i = 0; i < n; i += n_block) {
        const bool is_full = static_cast<int32_t>(res.size()) == k;
        if (is_full && i + n_block <= n && max_of(logits + i, n_block) <= res.front().logit) {
            continue;
        }
        for (int32_t id = i; id < std::min(n, i + n_block); ++id) {
            const llama_token_data candidate = { id, logits[id], 0.0f };
            if (static_cast<int32_t>(res.size()) < k) {
                if (!std::isnan(candidate.logit)) {
                    res.push_back(candidate);
                    std::push_heap(res.begin(), res.end(), better);
                }
            } else if (better(candidate, res.front())) {
                std::pop_heap(res.begin(), res.end(), better);
                res.back() = candidate;
                std::push_heap(res.begin(), res.end(), better);
            }
        }
    }
    std::sort_heap(res.begin(), res.end(), better);
    return static_cast<int32_t>(res.size()) == k && std::isfinite(res.front().logit);
}

} // namespace eagle3
