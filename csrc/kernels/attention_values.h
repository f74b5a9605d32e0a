// Products of what rows weigh the cells of a block by, and the values of these cells. Their sums do not depend on the
// order of the cells, at the speed of float32.
//
// A float between 2^23 and 2^24 is an integer. A sum begins in the middle of these and stays among them, so that each
// product is rounded to an integer when it is added: to the nearest one, whatever the sum is. For there are no ties:
// weights have all 24 bits, and the last of them is set, so a product that lies halfway between two integers exceeds
// 2^22, which no sum does (attention_weights.h). Before it could, it is added to an int32.
#pragma once

#include "kernels/floats_avx2.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>

namespace eagle3::kernels::avx2 {

constexpr int64_t N_CELLS_SUMMED = 64; // of a block
constexpr int64_t N_ROWS         = 48; // whose sums are kept at a time
constexpr int     N_ROWS_TILE    = 6;  // that are multiplied by values at a time
constexpr int64_t N_LANES        = 16; // channels of a tile, in two registers
constexpr float   MIDDLE         = 3 << 22;

// what a sum has got, times 2^exponent
AVX2_INLINE void add_integers(__m256 sum, int32_t * sums, int exponent) {
    const __m256i middle = _mm256_castps_si256(_mm256_set1_ps(MIDDLE));
    const __m256i found  = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_castps_si256(sum), middle), exponent);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(sums), _mm256_add_epi32(load256(sums), found));
}

// Sums of n rows. A member for each, since GCC would keep an array in memory.
template <int n>
struct value_sums {
    value_sums<n - 1> before;
    __m256            low  = _mm256_set1_ps(MIDDLE);
    __m256            high = _mm256_set1_ps(MIDDLE);

    AVX2_INLINE value_sums() {}

    AVX2_INLINE void add(const float * weights, __m256 values_low, __m256 values_high) {
        before.add(weights, values_low, values_high);
        const __m256 p = _mm256_set1_ps(weights[n - 1]);
        low            = _mm256_fmadd_ps(p, values_low, low);
        high           = _mm256_fmadd_ps(p, values_high, high);
    }

    // to the integers of rows[0], rows[1], ...
    AVX2_INLINE void flush(int32_t * sums, const int32_t * rows) const {
        before.flush(sums, rows);
        int32_t * own = sums + rows[n - 1] * N_LANES;
        add_integers(low, own, 0);
        add_integers(high, own + N_LANES / 2, 0);
    }
};

template <>
struct value_sums<0> {
    AVX2_INLINE value_sums() {}

    AVX2_INLINE void add(const float * /*weights*/, __m256 /*low*/, __m256 /*high*/) {}

    AVX2_INLINE void flush(int32_t * /*sums*/, const int32_t * /*rows*/) const {}
};

// A block's cells: what some rows weigh them by [N_CELLS_SUMMED][N_ROWS], and some channels of their values.
struct block_of_values {
    const float *   weights;
    const int32_t * rows;  // that have these weights, by their sums
    const int64_t * steps; // of each N_ROWS_TILE of them: after how many cells sums are added to the integers
    int64_t         n_rows;
    const char *    values;
    size_t          stride; // bytes from one cell to the next
    int64_t         n_cells, n_channels;
    size_t          next; // from a cell to the one that memory is asked for meanwhile; 0: none
};

// channels from i and the n rows from r on
template <class format, int n>
AVX2 void add_values(const block_of_values & b, int64_t i, int64_t r, int32_t * sums) {
    const char *  values     = b.values + i * format::SIZE;
    const size_t  high       = i + 8 < b.n_channels ? 8 * format::SIZE : 0; // else nobody reads those sums
    const bool    prefetches = b.next && r == 0 && i * format::SIZE % 64 == 0;
    const int64_t step       = b.steps[r / N_ROWS_TILE];
    for (int64_t begin = 0; begin < b.n_cells; begin += step) {
        value_sums<n> s;
        for (int64_t cell = begin; cell < std::min(begin + step, b.n_cells); ++cell) {
            const char * v = values + cell * b.stride;
            if (prefetches) {
                _mm_prefetch(v + b.next, _MM_HINT_T0);
            }
            s.add(b.weights + cell * N_ROWS + r, format::load8(v, 0), format::load8(v + high, 0));
        }
        s.flush(sums, b.rows + r);
    }
}

// Sums lie by channels of a tile, row and channel.
template <class format>
AVX2 void add_block(const block_of_values & b, int32_t * sums) {
    constexpr decltype(&add_values<format, 1>) of_rows[N_ROWS_TILE] = {
        add_values<format, 1>, add_values<format, 2>, add_values<format, 3>,
        add_values<format, 4>, add_values<format, 5>, add_values<format, 6>,
    };
    for (int64_t i = 0; i < b.n_channels; i += N_LANES) {
        for (int64_t r = 0; r < b.n_rows; r += N_ROWS_TILE) {
            const int64_t n = std::min<int64_t>(N_ROWS_TILE, b.n_rows - r);
            of_rows[n - 1](b, i, r, sums + i * N_ROWS);
        }
    }
}

// The values of one cell times a weight, and that times 2^exponent.
AVX2 inline void add_cell(const float * values, float weight, int exponent, int64_t n_channels, int32_t * sums) {
    for (int64_t i = 0; i < n_channels; i += 8) {
        const __m256 sum = _mm256_fmadd_ps(_mm256_set1_ps(weight), _mm256_loadu_ps(values + i), _mm256_set1_ps(MIDDLE));
        add_integers(sum, sums + i / N_LANES * N_LANES * N_ROWS + i % N_LANES, exponent);
    }
}

// Weights of a block [N_CELLS_SUMMED][N_ROWS], of rows of them. There is room for up to three rows more.
AVX2 inline void transpose(const float * const * rows, int64_t n_rows, float * weights) {
    for (int64_t r = 0; r < n_rows; r += 4) {
        const float * x[4];
        for (int64_t i = 0; i < 4; ++i) {
            x[i] = rows[std::min(r + i, n_rows - 1)];
        }
        for (int64_t c = 0; c < N_CELLS_SUMMED; c += 4) {
            const __m128 a = _mm_loadu_ps(x[0] + c), b = _mm_loadu_ps(x[1] + c);
            const __m128 d = _mm_loadu_ps(x[2] + c), e = _mm_loadu_ps(x[3] + c);
            const __m128 ab = _mm_unpacklo_ps(a, b), de = _mm_unpacklo_ps(d, e);
            const __m128 ab_high = _mm_unpackhi_ps(a, b), de_high = _mm_unpackhi_ps(d, e);
            float *      out = weights + c * N_ROWS + r;
            _mm_storeu_ps(out, _mm_movelh_ps(ab, de));
            _mm_storeu_ps(out + N_ROWS, _mm_movehl_ps(de, ab));
            _mm_storeu_ps(out + 2 * N_ROWS, _mm_movelh_ps(ab_high, de_high));
            _mm_storeu_ps(out + 3 * N_ROWS, _mm_movehl_ps(de_high, ab_high));
        }
    }
}

} // namespace eagle3::kernels::avx2
#endif
