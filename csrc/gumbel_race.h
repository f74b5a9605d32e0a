#pragma once

#include "gumbel.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace eagle3 {

// A draw from candidates that come one after another. The greatest logit + noise has the smallest w / p, with
// p = exp(logit - max_l) and w = -log(1 - uniform). As w is never less than uniform, most tokens need no logarithm.
struct gumbel_race {
    const gumbel_noise & noise;
    uint32_t             attempt;
    float                max_l; // the greatest logit

    double  best     = std::numeric_limits<double>::infinity();
    int64_t selected = 0;
    double  sum      = 0.0; // of p

    void enter(int64_t i, float p, double u) {
        if (u < best * p) {
            const double w = -std::log1p(-u) / p;
            if (w < best) {
                best     = w;
                selected = i;
            }
        }
    }
};

// Sets p of the first candidates, and lets those that can win enter. Returns how many candidates these were: 0 without
// AVX2, else all but fewer than 32. The winner is exactly the same; p and the sum differ by rounding.
size_t enter_by_avx2(gumbel_race & race, llama_token_data * data, size_t n);

} // namespace eagle3
