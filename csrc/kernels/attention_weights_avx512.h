// The loops of attention_weights.h with AVX-512, which do the same in each lane.
#pragma once

#include "kernels/attention_weights.h"
#include "kernels/avx512.h"

#if defined(__x86_64__)

namespace eagle3::kernels::avx512 {

using avx2::INF;
using avx2::N_CELLS;

// See exp8.
AVX512_FLOATS_INLINE __m512 exp16(__m512 x) {
    const __mmask16 is_zero = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    const __m512    y       = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);
    const __m512    n       = _mm512_roundscale_ps(_mm512_mul_ps(y, _mm512_set1_ps(1.44269504f)),
                                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512          r       = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), y);
    r                       = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p                = _mm512_set1_ps(1.0f / 5040);
    for (const float c : { 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f }) {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    }
    const __m512i exponent = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    return _mm512_mask_mul_ps(_mm512_setzero_ps(), static_cast<__mmask16>(~is_zero), p, _mm512_castsi512_ps(exponent));
}

// See avx2::finish_scores.
AVX512_FLOATS inline float finish_scores(float * x, const float * mask, float scale, float cap, float slope) {
    const __m512 none = _mm512_set1_ps(-INF);
    __m512       max  = none;
    for (int64_t i = 0; i < N_CELLS; i += 16) {
        __m512 y = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(scale));
        if (cap != 0.0f) { // tanh
            const __m512 sign = _mm512_and_ps(y, _mm512_set1_ps(-0.0f));
            const __m512 e    = exp16(_mm512_mul_ps(_mm512_set1_ps(-2.0f), _mm512_xor_ps(y, sign)));
            const __m512 one  = _mm512_set1_ps(1.0f);
            y                 = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
            y                 = _mm512_or_ps(_mm512_mul_ps(y, _mm512_set1_ps(cap)), sign);
        }
        const __m512 added = _mm512_loadu_ps(mask + i);
        y                  = _mm512_fmadd_ps(added, _mm512_set1_ps(slope), y);
        y                  = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(added, none, _CMP_EQ_OQ), none);
        _mm512_storeu_ps(x + i, y);
        const __mmask16 is_number = _mm512_cmp_ps_mask(y, y, _CMP_EQ_OQ); // NaN counts as infinite
        max                       = _mm512_max_ps(max, _mm512_mask_mov_ps(_mm512_set1_ps(INF), is_number, y));
    }
    return _mm512_reduce_max_ps(max);
}

// See exact_sum.
AVX512_FLOATS_INLINE void add_exactly(__m256 x, double * sums) {
    const __m512d middle = _mm512_set1_pd(1.5 * (1 << 20));
    const __m512d whole  = _mm512_sub_pd(_mm512_add_pd(_mm512_cvtps_pd(x), middle), middle);
    _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), whole));
}

// See avx2::to_exponentials.
AVX512_FLOATS inline void to_exponentials(float * y, const float * bounds, float max, avx2::sums_of_row & sums) {
    __m512 bound = _mm512_loadu_ps(sums.bounds);
    for (int64_t i = 0; i < N_CELLS; i += 16) {
        const __m512 e = exp16(_mm512_sub_ps(_mm512_loadu_ps(y + i), _mm512_set1_ps(max)));
        _mm512_storeu_ps(y + i, e);
        add_exactly(_mm512_castps512_ps256(e), sums.exponentials);
        add_exactly(_mm512_extractf32x8_ps(e, 1), sums.exponentials + 8);
        const __mmask16 counts = _mm512_cmp_ps_mask(e, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        bound                  = _mm512_mask_max_ps(bound, counts, bound, _mm512_loadu_ps(bounds + i));
    }
    _mm512_storeu_ps(sums.bounds, bound);
}

// See avx2::finish_weights.
AVX512_FLOATS inline int64_t finish_weights(float * y, const float * bounds, int32_t cell, float factor,
                                            avx2::heavy_cell * heavy, int32_t & n_heavy) {
    const __m512 last     = _mm512_castsi512_ps(_mm512_set1_epi32(1));
    const __m512 smallest = _mm512_set1_ps(std::numeric_limits<float>::min());
    __m256       products[4];
    for (int i = 0; i < 2; ++i) {
        const __m512    p    = _mm512_mul_ps(_mm512_loadu_ps(y + 16 * i), _mm512_set1_ps(factor));
        const __mmask16 kept = _mm512_cmp_ps_mask(p, smallest, _CMP_NLT_UQ);
        const __m512    odd  = _mm512_mask_or_ps(_mm512_setzero_ps(), kept, p, last);
        _mm512_storeu_ps(y + 16 * i, odd);
        const __m512 x      = _mm512_mask_mul_ps(_mm512_setzero_ps(), kept, odd,
                                                 _mm512_loadu_ps(bounds + 16 * i)); // others may be infinite
        products[2 * i]     = _mm512_castps512_ps256(x);
        products[2 * i + 1] = _mm512_extractf32x8_ps(x, 1);
    }
    return avx2::take_heavy_cells(products, y, bounds, cell, heavy, n_heavy);
}

} // namespace eagle3::kernels::avx512
#endif
