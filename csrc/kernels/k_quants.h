// What the products of K-quants share, whatever the width of their vectors: activations, and the loop over rows.
#pragma once

#include "kernels/q8_K_avx2.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

using avx2::QK_K;

constexpr int64_t ROWS_MAX = 16; // rows that weights are unpacked for at once

// 256 activations. SUB inputs of the weights have a scale of their own, and so have SUB activations a sum here.
template <int SUB>
struct block_q8 {
    int8_t  qs[QK_K];
    int16_t sums[QK_K / SUB];
    float   d;
};

// Of a scale's vectors two products are added in 16 bits; by VNNI four, in 32, where their sum fits into 16 as well: it
// is then multiplied by the scale as two words, of which the second is zero. Channels is a quad or an octet.
template <class Channels>
constexpr bool four_fit = Channels::SUB / 8 * 4 * Channels::Q_MAX * 127 < 1 << 15;

// Products of all rows with N channels, of which the first n_channels are wanted.
// compute(rows, n, results): of n rows, ROWS_MAX at most, [n][N]
template <int SUB, int64_t N, class Compute>
void compute_rows(int64_t nb, const uint8_t * rows, int64_t n_rows, float * out, int64_t ldo, int64_t n_channels,
                  Compute && compute) {
    float results[ROWS_MAX * N];
    for (int64_t r = 0; r < n_rows; r += ROWS_MAX) {
        const int64_t n = std::min(n_rows - r, ROWS_MAX);
        compute(rows, n, results);
        for (int64_t i = 0; i < n; ++i) {
            std::memcpy(out + (r + i) * ldo, results + i * N, n_channels * sizeof(float));
        }
        rows += n * nb * sizeof(block_q8<SUB>);
    }
}

} // namespace eagle3::kernels
#endif
