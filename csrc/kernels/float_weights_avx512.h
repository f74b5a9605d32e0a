// Multiplies F16, BF16 and F32 weights by rows in float32 with AVX-512: four channels by up to six rows at a time.
#pragma once

#include "kernels/floats_avx512.h"

#if defined(__x86_64__)

#include <algorithm>

namespace eagle3::kernels::avx512 {

// Multiplies channels of k weights by n_rows rows, `row_bytes` apart. next: the channels to prefetch, or null.
template <class format, int n_channels, int n_rows>
AVX512_FLOATS void compute_tile(const uint8_t * weights, int64_t k, const uint8_t * rows, size_t row_bytes,
                                const uint8_t * next, float * out, int64_t ldo) {
    __m512 sums[n_channels * n_rows]; // in registers, as all loops over them are unrolled
#pragma GCC unroll 24
    for (int i = 0; i < n_channels * n_rows; ++i) {
        sums[i] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < k; i += 16) {
        const __mmask16   mask    = k - i >= 16 ? 0xffff : 0xff; // k is a multiple of eight
        constexpr int64_t n_bytes = n_channels * format::n_bytes * 16;
        for (int64_t at = 0; next && at < n_bytes; at += 64) {
            _mm_prefetch(reinterpret_cast<const char *>(next) + n_channels * format::n_bytes * i + at, _MM_HINT_T1);
        }
        __m512 w[n_channels];
#pragma GCC unroll 4
        for (int c = 0; c < n_channels; ++c) {
            w[c] = format::load(weights + format::n_bytes * (c * k + i), mask);
        }
#pragma GCC unroll 6
        for (int r = 0; r < n_rows; ++r) {
            const __m512 y = _mm512_maskz_loadu_ps(mask, rows + r * row_bytes + i * sizeof(float));
#pragma GCC unroll 4
            for (int c = 0; c < n_channels; ++c) {
                sums[r * n_channels + c] = _mm512_fmadd_ps(w[c], y, sums[r * n_channels + c]);
            }
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < n_channels * n_rows; ++i) {
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums[i]), _mm512_extractf32x8_ps(sums[i], 1));
        out[i / n_channels * ldo + i % n_channels] = avx2::sum(half);
    }
}

template <class format, int n_channels>
void compute_float_channels(const uint8_t * weights, int64_t k, const uint8_t * rows, size_t row_bytes, int64_t n_rows,
                            float * out, int64_t ldo) {
    using tile = void (*)(const uint8_t *, int64_t, const uint8_t *, size_t, const uint8_t *, float *, int64_t);
    static constexpr tile tiles[] = { compute_tile<format, n_channels, 1>, compute_tile<format, n_channels, 2>,
                                      compute_tile<format, n_channels, 3>, compute_tile<format, n_channels, 4>,
                                      compute_tile<format, n_channels, 5>, compute_tile<format, n_channels, 6> };
    const uint8_t *       next    = weights + format::n_bytes * n_channels * k;
    for (int64_t n_tiles = (n_rows + 5) / 6; n_tiles > 0; --n_tiles) {
        const int64_t n = (n_rows + n_tiles - 1) / n_tiles; // tiles get about the same number of rows
        tiles[n - 1](weights, k, rows, row_bytes, next, out, ldo);
        next = nullptr;
        rows += n * row_bytes;
        out += n * ldo;
        n_rows -= n;
    }
}

} // namespace eagle3::kernels::avx512
#endif
