#pragma once

#include "kernels/avx512.h"

#if defined(__x86_64__)
namespace eagle3::kernels::avx512 {

// Load the lanes in `mask` of sixteen floats; the others are 0.

struct f32 {
    static constexpr int64_t n_bytes = 4;

    AVX512_FLOATS_INLINE static __m512 load(const void * p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
};

struct f16 {
    static constexpr int64_t n_bytes = 2;

    AVX512_FLOATS_INLINE static __m512 load(const void * p, __mmask16 mask) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
    }
};

struct bf16 {
    static constexpr int64_t n_bytes = 2;

    AVX512_FLOATS_INLINE static __m512 load(const void * p, __mmask16 mask) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(low, 16));
    }
};

} // namespace eagle3::kernels::avx512
#endif
