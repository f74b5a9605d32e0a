#pragma once

#include "kernels/avx2.h"

#ifdef EAGLE3_HAS_KERNELS
namespace eagle3::kernels::avx2 {

// Load eight floats, or four doubles, from value i of a row on.
struct f16 {
    static constexpr size_t SIZE = 2;

    AVX2_INLINE static __m256 load8(const char * p, int64_t i) { return _mm256_cvtph_ps(load128(p + 2 * i)); }

    AVX2_INLINE static __m256d load4(const char * p, int64_t i) {
        return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p + 2 * i))));
    }
};

struct f32 {
    static constexpr size_t SIZE = 4;

    AVX2_INLINE static __m256 load8(const char * p, int64_t i) {
        return _mm256_loadu_ps(reinterpret_cast<const float *>(p + 4 * i));
    }

    AVX2_INLINE static __m256d load4(const char * p, int64_t i) {
        return _mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<const float *>(p + 4 * i)));
    }
};

// The sums of the lanes of four vectors, each ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
AVX2_INLINE __m128 sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

} // namespace eagle3::kernels::avx2
#endif
