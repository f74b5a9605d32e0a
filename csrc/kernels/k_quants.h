// The parts of K-quants' products that do not depend on the width of vectors: activations, and the loop over rows.
#pragma once

#include "kernels/q8_K_avx2.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

using avx2::QK_K;

// 256 activations. Each SUB inputs of the weights have a scale, so each SUB activations have a sum.
template <int SUB>
struct block_q8 {
    int8_t  qs[QK_K];
    int16_t sums[QK_K / SUB];
    float   d;

    static int64_t row_bytes(int64_t nb) { return nb * static_cast<int64_t>(sizeof(block_q8)); }
};

// A block of activations in whole lines of the cache, as tiles load them fastest.
template <class Block>
struct in_lines : Block {
    uint8_t unused[64 - sizeof(Block) % 64];

    // Bytes of a row of nb blocks: an odd number of lines, since an even one puts a block of many rows into few sets of
    // the cache.
    static int64_t row_bytes(int64_t nb) { return (nb * static_cast<int64_t>(sizeof(in_lines)) / 64 | 1) * 64; }
};

// Without VNNI pairs of products are added in 16 bits and then multiplied by their scale. VNNI adds four in 32 bits. If
// that sum always fits into 16 bits, it can be multiplied by the scale as two words, of which the second scale is zero.
// Channels: a quad or an octet.
template <class Channels>
constexpr bool four_fit = Channels::SUB / 8 * 4 * Channels::Q_MAX * 127 < 1 << 15;

// Multiplies all rows by N channels, of which the first n_channels are wanted.
// compute(rows, n, results) does so for n rows, at most ROWS_TOGETHER; results: [n][N].
template <int SUB, int64_t N, class Compute>
void compute_rows(int64_t nb, const uint8_t * rows, int64_t n_rows, float * out, int64_t ldo, int64_t n_channels,
                  Compute && compute) {
    float results[ROWS_TOGETHER * N];
    for (int64_t r = 0; r < n_rows; r += ROWS_TOGETHER) {
        const int64_t n = std::min(n_rows - r, ROWS_TOGETHER);
        compute(rows, n, results);
        for (int64_t i = 0; i < n; ++i) {
            std::memcpy(out + (r + i) * ldo, results + i * N, n_channels * sizeof(float));
        }
        rows += n * nb * sizeof(block_q8<SUB>);
    }
}

} // namespace eagle3::kernels
#endif
