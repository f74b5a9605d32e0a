// The products of attention_keys.h with AVX-512: a vector has eight dimensions of each of two keys. Their sums are
// added up in the same order, so that the results are the same bits.
#pragma once

#include "kernels/attention_keys.h"
#include "kernels/avx512.h"

#if defined(__x86_64__)

namespace eagle3::kernels::avx512 {

using avx2::N_KEYS_TILE;

constexpr int N_QUERIES_TILE = 8;

// Loads eight dimensions, from i on, of two keys.
struct two_f32 {
    AVX512_FLOATS_INLINE static __m512 load(const char * a, const char * b, int64_t i) {
        const __m512 low = _mm512_castps256_ps512(avx2::f32::load8(a, i));
        return _mm512_insertf32x8(low, avx2::f32::load8(b, i), 1);
    }
};

struct two_f16 {
    AVX512_FLOATS_INLINE static __m512 load(const char * a, const char * b, int64_t i) {
        const __m256i low = _mm256_castsi128_si256(avx2::load128(a + 2 * i));
        return _mm512_cvtph_ps(_mm256_inserti128_si256(low, avx2::load128(b + 2 * i), 1));
    }
};

// The sums of neighbours in a, then of those in b, in each lane of 128 bits.
AVX512_FLOATS_INLINE __m512 add_pairs(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

// Writes the sums of four keys for two rows; a[0] and b[0] are those of the first two keys.
AVX512_FLOATS_INLINE void store_sums(const __m512 (&a)[2], const __m512 (&b)[2], float * of_a, float * of_b) {
    const __m512 quarters = add_pairs(add_pairs(a[0], a[1]), add_pairs(b[0], b[1]));
    const __m256 first    = _mm512_castps512_ps256(quarters); // of keys 0 and 2
    const __m256 second   = _mm512_extractf32x8_ps(quarters, 1);
    const __m128 even     = _mm_add_ps(_mm256_castps256_ps128(first), _mm256_extractf128_ps(first, 1));
    const __m128 odd      = _mm_add_ps(_mm256_castps256_ps128(second), _mm256_extractf128_ps(second, 1));
    _mm_storeu_ps(of_a, _mm_unpacklo_ps(even, odd));
    _mm_storeu_ps(of_b, _mm_unpackhi_ps(even, odd));
}

// Multiplies four keys by n rows.
template <class format, int n>
AVX512_FLOATS void multiply_tile(const char * keys, size_t stride, int64_t n_dims, const float * const * queries,
                                 float * const * out, int64_t cell) {
    __m512 sums[n][2];
#pragma GCC unroll 8
    for (auto & row : sums) {
        row[0] = row[1] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < n_dims; i += 8) {
        const __m512 first = format::load(keys, keys + stride, i);
        const __m512 last  = format::load(keys + 2 * stride, keys + 3 * stride, i);
#pragma GCC unroll 8
        for (int r = 0; r < n; ++r) {
            const __m512 q = _mm512_broadcast_f32x8(_mm256_loadu_ps(queries[r] + i));
            sums[r][0]     = _mm512_fmadd_ps(first, q, sums[r][0]);
            sums[r][1]     = _mm512_fmadd_ps(last, q, sums[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r += 2) {
        const int other = r + 1 < n ? r + 1 : r;
        store_sums(sums[r], sums[other], out[r] + cell, out[other] + cell);
    }
}

template <class format>
AVX512_FLOATS void multiply_tiles(const char * keys, size_t stride, int64_t n_dims, const avx2::block_of_queries & rows,
                                  int64_t cell, avx2::keys_ahead & ahead) {
    static constexpr decltype(&multiply_tile<format, 1>) of_rows[N_QUERIES_TILE] = {
        multiply_tile<format, 1>, multiply_tile<format, 2>, multiply_tile<format, 3>, multiply_tile<format, 4>,
        multiply_tile<format, 5>, multiply_tile<format, 6>, multiply_tile<format, 7>, multiply_tile<format, 8>,
    };
    for (int64_t r = 0; r < rows.n; r += N_QUERIES_TILE) {
        ahead.ask();
        of_rows[std::min<int64_t>(N_QUERIES_TILE, rows.n - r) - 1](keys, stride, n_dims, rows.queries + r, rows.out + r,
                                                                   cell);
    }
}

// See avx2::multiply_keys.
inline void multiply_keys(const avx2::cache_rows & keys, int64_t cell, int64_t n_dims,
                          const avx2::block_of_queries & rows, float * scratch, avx2::keys_ahead & ahead) {
    if (keys.type == GGML_TYPE_F16 && rows.n <= N_QUERIES_TILE && keys.n == N_KEYS_TILE) {
        avx512::multiply_tiles<two_f16>(keys.first, keys.stride, n_dims, rows, cell, ahead);
    } else {
        to_f32(keys, 0, n_dims, scratch);
        avx512::multiply_tiles<two_f32>(reinterpret_cast<const char *>(scratch), n_dims * sizeof(float), n_dims, rows,
                                        cell, ahead);
    }
}

} // namespace eagle3::kernels::avx512
#endif
