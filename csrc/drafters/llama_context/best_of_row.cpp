#include "drafters/llama_context/best_of_row.h"

#include "target/logits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace eagle3 {

namespace {

// The sum of exp(x - x_max), with a relative error of 5e-6. NaN counts as nothing. A row has some 100,000 values, so
// the loop has no calls or branches: compilers make vector instructions of it.
double sum_of_exp(const float * x, int32_t n, float x_max) {
    constexpr int32_t n_block = 256;
    constexpr float   log2e   = 1.44269504f;
    constexpr float   magic   = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer

    double sum = 0.0;
    for (int32_t first = 0; first < n; first += n_block) {
        const int32_t end   = std::min(n, first + n_block);
        float         block = 0.0f;
        for (int32_t i = first; i < end; ++i) {
            const float t = (x[i] - x_max) * log2e;
            const float y = t > -100.0f ? t : -100.0f; // NaN too
            const float r = (y + magic) - magic;
            const float f = (y - r) * 0.693147181f; // -0.35 .. 0.35
            const float p = 1.0f + f * (1.0f + f * (0.5f + f * (0.16666667f + f * (0.041666667f + f * 0.0083333333f))));
            const int32_t bits  = (static_cast<int32_t>(r) + 127) << 23;
            float         scale = 0.0f;
            memcpy(&scale, &bits, sizeof(scale));
            block += p * scale;
        }
        sum += static_cast<double>(block);
    }
    return sum;
}

} // namespace

std::vector<draft_candidate> best_of_row(const float * logits, int32_t n_vocab, int32_t n_top) {
    std::vector<llama_token_data> best;
    if (!best_candidates(logits, n_vocab, std::min(n_top, n_vocab), best)) {
        return {};
    }
    const float  x_max = best.front().logit;
    const double sum   = sum_of_exp(logits, n_vocab, x_max);

    std::vector<draft_candidate> found;
    for (const llama_token_data & c : best) {
        found.push_back({ c.id, static_cast<float>(std::exp(static_cast<double>(c.logit - x_max)) / sum) });
    }
    return found;
}

} // namespace eagle3
