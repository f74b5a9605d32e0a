// Makes a row's weights from its scores so that sums of their products with values are exact (attention_values.h).
#pragma once

#include "kernels/attention_cache.h"
#include "kernels/attention_exp.h"
#include "kernels/attention_values.h"

#ifdef EAGLE3_HAS_KERNELS

#include <cmath>

namespace eagle3::kernels::avx2 {

// The largest of n numbers; NaN counts as infinite.
AVX2 inline float largest(const float * x, int64_t n) {
    __m256 max = _mm256_set1_ps(-INF);
    for (int64_t i = 0; i < n; i += 8) {
        max = _mm256_max_ps(max, or_infinite(_mm256_loadu_ps(x + i)));
    }
    return largest_lane(max);
}

// Replaces the scores of n cells by e^(score - max), adds these to `sum`, and raises `bound` to the bounds of the
// values of all cells whose weight is not 0.
AVX2_INLINE void to_exponentials(float * y, const float * bounds, int64_t n, __m256 max, exact_sum & sum,
                                 __m256 & bound) {
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(y + i), max));
        _mm256_storeu_ps(y + i, e);
        sum.add(e);
        const __m256 empty = _mm256_cmp_ps(e, _mm256_setzero_ps(), _CMP_EQ_OQ);
        bound              = _mm256_max_ps(bound, _mm256_andnot_ps(empty, _mm256_loadu_ps(bounds + i)));
    }
}

// A row's weights are multiplied by one number, so that all products add up to less than 2^27. A cell of about 1/32 or
// more of the sum is heavy: it is summed apart from its block, divided by a power of two, so that each product is below
// 2^22.
constexpr float   SUM_MAX      = (1 << 27) / 1.01f; // less what rounding adds
constexpr float   PRODUCTS_MAX = (1 << 22) / 1.01f; // sum of the products that are added as floats
constexpr int64_t N_HEAVY      = 36;                // heavy cells of a row, at most

struct heavy_cell {
    int32_t cell;
    int32_t exponent;
    float   weight; // the cell's weight / 2^exponent
};

// How many of 32 cells may be summed in floats at a time; 64: together with 32 others. loads: bounds of the products of
// eight cells each.
inline int64_t cells_together(const float * loads) {
    const float pairs[] = { loads[0] + loads[1], loads[2] + loads[3] };
    const float all     = pairs[0] + pairs[1];
    return all < PRODUCTS_MAX / 2                               ? 64
           : all < PRODUCTS_MAX                                 ? 32
           : std::max(pairs[0], pairs[1]) < PRODUCTS_MAX        ? 16
           : *std::max_element(loads, loads + 4) < PRODUCTS_MAX ? 8
                                                                : 1;
}

// Appends the heavy ones of eight cells to a list and makes their weights 0. Returns a bound of the others' products.
inline float take_heavy(float * y, const float * bounds, int32_t cell, heavy_cell * heavy, int32_t & n_heavy) {
    float load = 0.0f;
    for (int i = 0; i < 8; ++i) {
        const float product = y[i] == 0.0f ? 0.0f : y[i] * bounds[i];
        if (product < PRODUCTS_MAX || n_heavy == N_HEAVY) {
            load += product;
            continue;
        }
        int exponent = 0;
        std::frexp(product / PRODUCTS_MAX, &exponent);
        heavy[n_heavy++] = { cell + i, exponent, std::ldexp(y[i], -exponent) };
        y[i]             = 0.0f;
    }
    return load;
}

// Multiplies the weights of 32 cells by a factor and sets their last bit; weights too small for 24 bits become 0. Heavy
// cells are appended to a list, and their weights become 0. Returns how many cells may be summed in floats at a time.
AVX2 inline int64_t finish_weights(float * y, const float * bounds, int32_t cell, float factor, heavy_cell * heavy,
                                   int32_t & n_heavy) {
    const __m256 last     = _mm256_castsi256_ps(_mm256_set1_epi32(1));
    const __m256 smallest = _mm256_set1_ps(std::numeric_limits<float>::min());
    __m256       products[4];
    for (int i = 0; i < 4; ++i) {
        __m256 p = _mm256_mul_ps(_mm256_loadu_ps(y + 8 * i), _mm256_set1_ps(factor));
        p        = _mm256_andnot_ps(_mm256_cmp_ps(p, smallest, _CMP_LT_OQ), _mm256_or_ps(p, last));
        _mm256_storeu_ps(y + 8 * i, p);
        const __m256 empty = _mm256_cmp_ps(p, _mm256_setzero_ps(), _CMP_EQ_OQ); // cells whose bound may be infinite
        products[i]        = _mm256_andnot_ps(empty, _mm256_mul_ps(p, _mm256_loadu_ps(bounds + 8 * i)));
    }
    float loads[4];
    _mm_storeu_ps(loads, sum4(products[0], products[1], products[2], products[3]));
    for (int i = 0; i < 4; ++i) {
        if (loads[i] >= PRODUCTS_MAX) {
            loads[i] = take_heavy(y + 8 * i, bounds + 8 * i, cell + 8 * i, heavy, n_heavy);
        }
    }
    return cells_together(loads);
}

} // namespace eagle3::kernels::avx2
#endif
