// Activations in ggml's Q8_K: each 256 values have a scale.
#pragma once

#include "kernels/avx2.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels::avx2 {

constexpr int64_t QK_K = 256; // inputs of a block

// Writes 256 values and the sums of each 16 of them, and returns their scale d. Equals ggml's quantize_row_q8_K, except
// that d is never negative: where ggml's is, all values have the other sign here, and products are the same.
AVX2 inline float quantize_q8_K(const float * x, int8_t * qs, int32_t (&sums)[QK_K / 16]) {
    __m256 max = _mm256_setzero_ps();
    for (int i = 0; i < QK_K; i += 8) {
        max = _mm256_max_ps(max, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(x + i)));
    }
    __m128 max4        = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    max4               = _mm_max_ps(max4, _mm_movehl_ps(max4, max4));
    max4               = _mm_max_ss(max4, _mm_movehdup_ps(max4));
    const float  amax  = _mm_cvtss_f32(max4);
    const float  scale = amax != 0.0f ? 127.0f / amax : 0.0f;
    const __m256 id    = _mm256_set1_ps(scale);

    for (int i = 0; i < QK_K; i += 32) {
        __m256i q[4];
        for (int j = 0; j < 4; ++j) {
            q[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * j), id));
        }
        const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(qs + i), bytes);

        // sums of pairs, then of the 16 inputs of a half
        __m256i sum = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
        sum         = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
        sum         = _mm256_hadd_epi32(sum, sum);
        sum         = _mm256_hadd_epi32(sum, sum);

        sums[i / 16]     = _mm256_extract_epi32(sum, 0);
        sums[i / 16 + 1] = _mm256_extract_epi32(sum, 4);
    }
    return amax != 0.0f ? 1.0f / scale : 0.0f;
}

} // namespace eagle3::kernels::avx2
#endif
