// Sums the values of a block's cells, multiplied by the weights that rows give these cells. The sums do not depend on
// the order of the cells, and take no longer than sums in float32.
//
// A float between 2^23 and 2^24 is an integer. A sum begins in the middle of this range and stays in it, so that each
// product is rounded to the nearest integer when it is added, whatever the sum is. There are no ties: weights have all
// 24 bits, of which the last is set, so a product that lies halfway between two integers exceeds 2^22, and no product
// does (attention_weights.h). Before a sum could leave the range, it is added to an int32.
#pragma once

#include "kernels/attention_cache.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>

namespace eagle3::kernels::avx2 {

constexpr int64_t N_CELLS_SUMMED = 64;      // cells of a block
constexpr int64_t N_ROWS         = 48;      // rows whose sums are kept at a time
constexpr int     N_ROWS_TILE    = 6;       // rows of a tile
constexpr int64_t N_LANES        = 16;      // channels of a tile, in two registers
constexpr int64_t N_CHANNELS     = 32;      // channels that are converted at a time: whole blocks of quantized types
constexpr float   MIDDLE         = 3 << 22; // of the floats that are integers

// Adds 2^exponent times what was added to MIDDLE.
AVX2_INLINE void add_integers(__m256 sum, int32_t * sums, int exponent) {
    const __m256i middle = _mm256_castps_si256(_mm256_set1_ps(MIDDLE));
    const __m256i found  = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_castps_si256(sum), middle), exponent);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(sums), _mm256_add_epi32(load256(sums), found));
}

// The sums of n rows. Each row's is a member of its own, since GCC would keep an array in memory.
template <int n>
struct value_sums {
    value_sums<n - 1> before;
    __m256            low  = _mm256_set1_ps(MIDDLE);
    __m256            high = _mm256_set1_ps(MIDDLE);

    AVX2_INLINE value_sums() {}

    // Adds a cell's values. rows: the weights of each row.
    AVX2_INLINE void add(const float * const * rows, int64_t cell, __m256 values_low, __m256 values_high) {
        before.add(rows, cell, values_low, values_high);
        const __m256 p = _mm256_set1_ps(rows[n - 1][cell]);
        low            = _mm256_fmadd_ps(p, values_low, low);
        high           = _mm256_fmadd_ps(p, values_high, high);
    }

    // Adds what was summed to the integers of rows[0], rows[1], ...
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

    AVX2_INLINE void add(const float * const * /*rows*/, int64_t /*cell*/, __m256 /*low*/, __m256 /*high*/) {}

    AVX2_INLINE void flush(int32_t * /*sums*/, const int32_t * /*rows*/) const {}
};

// The rows that see any of a block's cells.
struct block_of_weights {
    int64_t       n = 0;
    const float * weights[N_ROWS];             // of the block's cells
    int32_t       rows[N_ROWS];                // index of the row's sums
    int64_t       steps[N_ROWS / N_ROWS_TILE]; // [tile]: sums are added to the integers after so many cells
};

// Adds 16 channels of n_cells values, `stride` bytes from one cell to the next, to the sums of n rows from r on. The
// last eight channels are `high` bytes after the first eight; if there are only eight, `high` is 0 and the sums of the
// others are not used.
template <class format, int n>
AVX2 void add_values(const block_of_weights & b, int64_t r, const char * values, size_t stride, size_t high,
                     int64_t n_cells, int32_t * sums) {
    const float * weights[n];
    std::copy(b.weights + r, b.weights + r + n, weights);
    const int64_t step = b.steps[r / N_ROWS_TILE];
    for (int64_t begin = 0; begin < n_cells; begin += step) {
        const int64_t end = std::min(begin + step, n_cells);
        value_sums<n> s;
        for (int64_t cell = begin; cell < end; ++cell) {
            const char * v = values + cell * stride;
            s.add(weights, cell, format::load8(v, 0), format::load8(v + high, 0));
        }
        s.flush(sums, b.rows + r);
    }
}

template <class format>
AVX2 void add_values(const block_of_weights & b, const char * values, size_t stride, size_t high, int64_t n_cells,
                     int32_t * sums, rows_ahead & ahead, int64_t n_ahead) {
    constexpr decltype(&add_values<format, 1>) of_rows[N_ROWS_TILE] = {
        add_values<format, 1>, add_values<format, 2>, add_values<format, 3>,
        add_values<format, 4>, add_values<format, 5>, add_values<format, 6>,
    };
    for (int64_t r = 0; r < b.n; r += N_ROWS_TILE) {
        ahead.ask(n_ahead);
        of_rows[std::min<int64_t>(N_ROWS_TILE, b.n - r) - 1](b, r, values, stride, high, n_cells, sums);
    }
}

// Is any of n bounds infinite?
AVX2 inline bool has_infinite(const float * bounds, int64_t n) {
    __m256  max = _mm256_setzero_ps();
    int64_t i   = 0;
    for (; i + 8 <= n; i += 8) {
        max = _mm256_max_ps(max, _mm256_loadu_ps(bounds + i));
    }
    return largest_lane(max) == INF || std::find(bounds + i, bounds + n, INF) != bounds + n;
}

// May the values be read from the cache for each tile of rows? That takes less time than to convert them once.
inline bool is_read_directly(const block_of_weights & b, const cache_rows & values) {
    return values.type == GGML_TYPE_F16 && b.n <= N_ROWS_TILE;
}

// Converts n channels, from `begin` on. A cell whose bound is infinite has the weight 0, and its values become 0, as 0
// times infinity is no number. bounds: null if none is.
AVX2 inline void to_finite_f32(const cache_rows & values, const float * bounds, int64_t begin, int64_t n, float * out) {
    to_f32(values, begin, n, out);
    for (int64_t c = 0; bounds && c < values.n; ++c) {
        if (bounds[c] == INF) {
            std::fill_n(out + c * n, n, 0.0f);
        }
    }
}

// Adds channels [begin, begin + n) of a block's values. bounds: of each cell's values.
// sums: [channels / N_LANES][N_ROWS][N_LANES]. `scratch` has room for 32 channels of a block.
AVX2 inline void add_block(const block_of_weights & b, const cache_rows & values, const float * bounds, int64_t begin,
                           int64_t n, float * scratch, int32_t * sums, rows_ahead ahead) {
    const int64_t n_tiles   = (n + N_LANES - 1) / N_LANES * ((b.n + N_ROWS_TILE - 1) / N_ROWS_TILE);
    const int64_t n_ahead   = (ahead.n_lines() + n_tiles - 1) / n_tiles;
    const bool    is_finite = !has_infinite(bounds, values.n);
    const bool    is_direct = is_finite && is_read_directly(b, values);
    for (int64_t i = 0; i < n; i += N_CHANNELS) {
        const int64_t n_together = std::min(N_CHANNELS, n - i);
        if (!is_direct) {
            to_finite_f32(values, is_finite ? nullptr : bounds, begin + i, n_together, scratch);
        }
        for (int64_t j = 0; j < n_together; j += N_LANES) {
            const bool is_whole = n_together - j > N_LANES / 2;
            int32_t *  own      = sums + (i + j) * N_ROWS;
            if (is_direct) {
                const char * v = values.first + (begin + i + j) * f16::SIZE;
                add_values<f16>(b, v, values.stride, is_whole ? 16 : 0, values.n, own, ahead, n_ahead);
            } else {
                const auto * v = reinterpret_cast<const char *>(scratch + j);
                add_values<f32>(b, v, n_together * sizeof(float), is_whole ? 32 : 0, values.n, own, ahead, n_ahead);
            }
        }
    }
}

// Adds one cell's values, multiplied by weight * 2^exponent.
AVX2 inline void add_cell(const float * values, float weight, int exponent, int64_t n_channels, int32_t * sums) {
    for (int64_t i = 0; i < n_channels; i += 8) {
        const __m256 sum = _mm256_fmadd_ps(_mm256_set1_ps(weight), _mm256_loadu_ps(values + i), _mm256_set1_ps(MIDDLE));
        add_integers(sum, sums + i / N_LANES * N_LANES * N_ROWS + i % N_LANES, exponent);
    }
}

} // namespace eagle3::kernels::avx2
#endif
