#pragma once

#include "kernels/avx2.h"

#ifdef EAGLE3_HAS_KERNELS

#include <cmath>

namespace eagle3::kernels::avx2 {

// e^x for x <= 0, exact to about the last bit; NaN stays.
AVX2_INLINE __m256 exp8(__m256 x) {
    const __m256 is_zero = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
    const __m256 y       = _mm256_max_ps(_mm256_set1_ps(-87.0f), x);
    const __m256 n =
        _mm256_round_ps(_mm256_mul_ps(y, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // ln 2 in two parts
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), y);
    r        = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    for (const float c : { 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f }) {
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
    }
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(is_zero, _mm256_mul_ps(p, _mm256_castsi256_ps(exponent)));
}

// A sum of numbers from 0 to 1, each rounded to a multiple of 2^-32. The sum of up to 2^19 of them is exact, so their
// order does not matter.
class exact_sum {
  public:
    AVX2_INLINE exact_sum() : low_(_mm256_setzero_pd()), high_(_mm256_setzero_pd()) {}

    // Goes on with the eight lanes that `store` wrote.
    AVX2_INLINE explicit exact_sum(const double * lanes) :
        low_(_mm256_loadu_pd(lanes)), high_(_mm256_loadu_pd(lanes + 4)) {}

    AVX2_INLINE void store(double * lanes) const {
        _mm256_storeu_pd(lanes, low_);
        _mm256_storeu_pd(lanes + 4, high_);
    }

    AVX2_INLINE void add(__m256 x) {
        const __m256d middle = _mm256_set1_pd(1.5 * (1 << 20));
        const __m256d low    = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)), middle);
        const __m256d high   = _mm256_add_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)), middle);
        low_                 = _mm256_add_pd(low_, _mm256_sub_pd(low, middle));
        high_                = _mm256_add_pd(high_, _mm256_sub_pd(high, middle));
    }

    AVX2_INLINE double total() const {
        double lanes[4];
        _mm256_storeu_pd(lanes, _mm256_add_pd(low_, high_));
        return lanes[0] + lanes[1] + lanes[2] + lanes[3];
    }

  private:
    __m256d low_, high_;
};

// Replaces y by e^(y - max), and returns the sum.
AVX2 inline double exponentials(float * y, int64_t n, float max) {
    exact_sum sum;
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(y + i), _mm256_set1_ps(max)));
        _mm256_storeu_ps(y + i, e);
        sum.add(e);
    }
    return sum.total();
}

AVX2 inline void multiply_by(float * y, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i += 8) {
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(y + i), _mm256_set1_ps(factor)));
    }
}

// The factor by which a head multiplies the mask (ALiBi).
inline float slope_of(int64_t head, int64_t n_head, float max_bias) {
    if (max_bias <= 0.0f) {
        return 1.0f;
    }
    const int64_t n_even = int64_t{ 1 } << static_cast<int>(std::log2(n_head));
    return head < n_even ? std::pow(std::pow(2.0f, -max_bias / n_even), head + 1)
                         : std::pow(std::pow(2.0f, -max_bias / 2.0f / n_even), 2 * (head - n_even) + 1);
}

} // namespace eagle3::kernels::avx2
#endif
