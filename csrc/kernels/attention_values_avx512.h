// The sums of attention_values.h with AVX-512: 32 channels at a time. They are the same integers.
#pragma once

#include "kernels/attention_values.h"
#include "kernels/floats_avx512.h"

#if defined(__x86_64__)

namespace eagle3::kernels::avx512 {

using avx2::MIDDLE;
using avx2::N_CHANNELS;
using avx2::N_LANES;
using avx2::N_ROWS;
using avx2::N_ROWS_TILE;

AVX512_FLOATS_INLINE void add_integers(__m512 sum, int32_t * sums) {
    const __m512i middle = _mm512_castps_si512(_mm512_set1_ps(MIDDLE));
    const __m512i found  = _mm512_sub_epi32(_mm512_castps_si512(sum), middle);
    _mm512_storeu_si512(sums, _mm512_add_epi32(_mm512_loadu_si512(sums), found));
}

// Adds up to 32 channels of n_cells values, `stride` bytes from one cell to the next, to the sums of n rows from r on.
template <class format, int n>
AVX512_FLOATS void add_values(const avx2::block_of_weights & b, int64_t r, const char * values, size_t stride,
                              int64_t n_channels, int64_t n_cells, int32_t * sums) {
    const auto    mask  = static_cast<__mmask32>((1ULL << n_channels) - 1);
    const auto    first = static_cast<__mmask16>(mask), last = static_cast<__mmask16>(mask >> N_LANES);
    const int64_t step = b.steps[r / N_ROWS_TILE];
    const float * weights[n];
    std::copy(b.weights + r, b.weights + r + n, weights);
    for (int64_t begin = 0; begin < n_cells; begin += step) {
        const int64_t end = std::min(begin + step, n_cells);
        __m512        added[n][2];
#pragma GCC unroll 6
        for (auto & row : added) {
            row[0] = row[1] = _mm512_set1_ps(MIDDLE);
        }
        for (int64_t cell = begin; cell < end; ++cell) {
            const char * v   = values + cell * stride;
            const __m512 low = format::load(v, first), high = format::load(v + N_LANES * format::n_bytes, last);
#pragma GCC unroll 6
            for (int i = 0; i < n; ++i) {
                const __m512 p = _mm512_set1_ps(weights[i][cell]);
                added[i][0]    = _mm512_fmadd_ps(p, low, added[i][0]);
                added[i][1]    = _mm512_fmadd_ps(p, high, added[i][1]);
            }
        }
#pragma GCC unroll 6
        for (int i = 0; i < n; ++i) {
            int32_t * own = sums + b.rows[r + i] * N_LANES;
            add_integers(added[i][0], own);
            if (last) {
                add_integers(added[i][1], own + N_ROWS * N_LANES);
            }
        }
    }
}

template <class format>
AVX512_FLOATS void add_values(const avx2::block_of_weights & b, const char * values, size_t stride, int64_t n_channels,
                              int64_t n_cells, int32_t * sums, avx2::rows_ahead & ahead, int64_t n_ahead) {
    static constexpr decltype(&add_values<format, 1>) of_rows[N_ROWS_TILE] = {
        add_values<format, 1>, add_values<format, 2>, add_values<format, 3>,
        add_values<format, 4>, add_values<format, 5>, add_values<format, 6>,
    };
    for (int64_t r = 0; r < b.n; r += N_ROWS_TILE) {
        ahead.ask(n_ahead);
        of_rows[std::min<int64_t>(N_ROWS_TILE, b.n - r) - 1](b, r, values, stride, n_channels, n_cells, sums);
    }
}

// See avx2::add_block.
inline void add_block(const avx2::block_of_weights & b, const avx2::cache_rows & values, const float * bounds,
                      int64_t begin, int64_t n, float * scratch, int32_t * sums, avx2::rows_ahead ahead) {
    const int64_t n_tiles   = (n + N_CHANNELS - 1) / N_CHANNELS * ((b.n + N_ROWS_TILE - 1) / N_ROWS_TILE);
    const int64_t n_ahead   = (ahead.n_lines() + n_tiles - 1) / n_tiles;
    const bool    is_finite = !avx2::has_infinite(bounds, values.n);
    const bool    is_direct = is_finite && avx2::is_read_directly(b, values);
    for (int64_t i = 0; i < n; i += N_CHANNELS) {
        const int64_t n_together = std::min(N_CHANNELS, n - i);
        int32_t *     own        = sums + i * N_ROWS;
        if (is_direct) {
            const char * v = values.first + (begin + i) * f16::n_bytes;
            avx512::add_values<f16>(b, v, values.stride, n_together, values.n, own, ahead, n_ahead);
        } else {
            avx2::to_finite_f32(values, is_finite ? nullptr : bounds, begin + i, n_together, scratch);
            const auto * v = reinterpret_cast<const char *>(scratch);
            avx512::add_values<f32>(b, v, n_together * sizeof(float), n_together, values.n, own, ahead, n_ahead);
        }
    }
}

} // namespace eagle3::kernels::avx512
#endif
