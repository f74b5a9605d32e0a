// Products of rows of queries and the keys of a block.
#pragma once

#include "kernels/floats_avx2.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>

namespace eagle3::kernels::avx2 {

constexpr int N_QUERIES = 3; // rows that are multiplied by keys at a time

struct block_of_keys {
    const char * keys;
    size_t       stride; // bytes from one cell to the next
    int64_t      n_cells, n_dims;
    size_t       next; // from a cell to the one that memory is asked for meanwhile; 0: none
};

// Four cells at a time. A product is summed in one order, whatever other rows and cells there are.
template <class format, int n>
AVX2 void multiply_keys(const block_of_keys & b, const float * const * queries, float * const * out) {
    for (int64_t cell = 0; cell < b.n_cells; cell += 4) {
        const char * keys[4];
        for (int64_t c = 0; c < 4; ++c) {
            keys[c] = b.keys + std::min(cell + c, b.n_cells - 1) * b.stride;
            for (size_t i = 0; i < (b.next ? b.n_dims * format::SIZE : 0); i += 64) {
                _mm_prefetch(keys[c] + b.next + i, _MM_HINT_T0);
            }
        }
        __m256 sums[4][n];
        for (auto & row : sums) {
            std::fill(row, row + n, _mm256_setzero_ps());
        }
        for (int64_t i = 0; i < b.n_dims; i += 8) {
            __m256 q[n];
            for (int r = 0; r < n; ++r) {
                q[r] = _mm256_loadu_ps(queries[r] + i);
            }
            for (int c = 0; c < 4; ++c) {
                const __m256 w = format::load8(keys[c], i);
                for (int r = 0; r < n; ++r) {
                    sums[c][r] = _mm256_fmadd_ps(w, q[r], sums[c][r]);
                }
            }
        }
        for (int r = 0; r < n; ++r) {
            _mm_storeu_ps(out[r] + cell, sum4(sums[0][r], sums[1][r], sums[2][r], sums[3][r]));
        }
    }
}

// As above, of up to N_QUERIES rows. There is room for a multiple of four cells.
template <class format>
void multiply_keys(const block_of_keys & b, int64_t n_rows, const float * const * queries, float * const * out) {
    n_rows == 3   ? multiply_keys<format, 3>(b, queries, out)
    : n_rows == 2 ? multiply_keys<format, 2>(b, queries, out)
                  : multiply_keys<format, 1>(b, queries, out);
}

} // namespace eagle3::kernels::avx2
#endif
