// Multiplies rows of queries by the keys of a block.
#pragma once

#include "kernels/attention_cache.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>

namespace eagle3::kernels::avx2 {

constexpr int64_t N_QUERIES      = 48; // rows that a block of keys is multiplied by at a time
constexpr int     N_QUERIES_TILE = 3;
constexpr int64_t N_KEYS_TILE    = 4;
constexpr int64_t N_QUERIES_FEW  = 6; // up to so many rows, keys in F16 are not converted first

// The rows that see a block, and where their products with its keys are written: room for a multiple of four cells.
struct block_of_queries {
    int64_t       n = 0;
    const float * queries[N_QUERIES];
    float *       out[N_QUERIES];
};

// Multiplies four keys by n rows. Each product is summed in one order, whatever other rows and keys there are.
template <class format, int n>
AVX2_INLINE void multiply_tile(const char * keys, size_t stride, int64_t n_dims, const float * const * queries,
                               float * const * out, int64_t cell) {
    __m256 sums[N_KEYS_TILE][n];
    for (auto & row : sums) {
        std::fill(row, row + n, _mm256_setzero_ps());
    }
    for (int64_t i = 0; i < n_dims; i += 8) {
        __m256 q[n];
        for (int r = 0; r < n; ++r) {
            q[r] = _mm256_loadu_ps(queries[r] + i);
        }
        for (int c = 0; c < N_KEYS_TILE; ++c) {
            const __m256 k = format::load8(keys + c * stride, i);
            for (int r = 0; r < n; ++r) {
                sums[c][r] = _mm256_fmadd_ps(k, q[r], sums[c][r]);
            }
        }
    }
    for (int r = 0; r < n; ++r) {
        _mm_storeu_ps(out[r] + cell, sum4(sums[0][r], sums[1][r], sums[2][r], sums[3][r]));
    }
}

// What is prefetched meanwhile, and how many lines of it during each tile.
struct keys_ahead {
    rows_ahead keys, values;
    int64_t    n_keys = 0, n_values = 0;

    void spread(int64_t n_tiles) {
        n_keys   = (keys.n_lines() + n_tiles - 1) / n_tiles;
        n_values = (values.n_lines() + n_tiles - 1) / n_tiles;
    }

    AVX2_INLINE void ask() {
        keys.ask(n_keys);
        values.ask(n_values);
    }
};

template <class format>
AVX2 void multiply_tiles(const char * keys, size_t stride, int64_t n_dims, const block_of_queries & rows, int64_t cell,
                         keys_ahead & ahead) {
    for (int64_t r = 0; r < rows.n; r += N_QUERIES_TILE) {
        ahead.ask();
        const float * const * queries = rows.queries + r;
        float * const *       out     = rows.out + r;
        switch (rows.n - r) {
            case 1: multiply_tile<format, 1>(keys, stride, n_dims, queries, out, cell); break;
            case 2: multiply_tile<format, 2>(keys, stride, n_dims, queries, out, cell); break;
            default: multiply_tile<format, 3>(keys, stride, n_dims, queries, out, cell);
        }
    }
}

// Multiplies at most four keys, the first of which is the block's key `cell`, by all rows. `scratch` has room for four
// keys.
AVX2 inline void multiply_keys(const cache_rows & keys, int64_t cell, int64_t n_dims, const block_of_queries & rows,
                               float * scratch, keys_ahead & ahead) {
    if (keys.type == GGML_TYPE_F16 && rows.n <= N_QUERIES_FEW && keys.n == N_KEYS_TILE) {
        multiply_tiles<f16>(keys.first, keys.stride, n_dims, rows, cell, ahead);
    } else {
        to_f32(keys, 0, n_dims, scratch);
        multiply_tiles<f32>(reinterpret_cast<const char *>(scratch), n_dims * sizeof(float), n_dims, rows, cell, ahead);
    }
}

} // namespace eagle3::kernels::avx2
#endif
