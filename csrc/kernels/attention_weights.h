// Makes a row's weights from its scores so that sums of their products with values are exact (attention_values.h).
#pragma once

#include "kernels/attention_cache.h"
#include "kernels/attention_exp.h"
#include "kernels/attention_values.h"

#ifdef EAGLE3_HAS_KERNELS

#include <cmath>
#include <numeric>

namespace eagle3::kernels::avx2 {

constexpr int64_t N_CELLS = 32; // cells of a block of keys

// The largest of n numbers; NaN counts as infinite.
AVX2 inline float largest(const float * x, int64_t n) {
    __m256 max = _mm256_set1_ps(-INF);
    for (int64_t i = 0; i < n; i += 8) {
        max = _mm256_max_ps(max, or_infinite(_mm256_loadu_ps(x + i)));
    }
    return largest_lane(max);
}

// Scales and caps the scores of a block, and adds the mask. A masked cell gets -INF whatever its score is, NaN
// included. Returns the largest score.
AVX2 inline float finish_scores(float * x, const float * mask, float scale, float cap, float slope) {
    const __m256 none = _mm256_set1_ps(-INF);
    for (int64_t i = 0; i < N_CELLS; i += 8) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(scale));
        if (cap != 0.0f) { // tanh
            const __m256 sign = _mm256_and_ps(y, _mm256_set1_ps(-0.0f));
            const __m256 e    = exp8(_mm256_mul_ps(_mm256_set1_ps(-2.0f), _mm256_xor_ps(y, sign)));
            const __m256 one  = _mm256_set1_ps(1.0f);
            y                 = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
            y                 = _mm256_or_ps(_mm256_mul_ps(y, _mm256_set1_ps(cap)), sign);
        }
        const __m256 added = _mm256_loadu_ps(mask + i);
        y                  = _mm256_fmadd_ps(added, _mm256_set1_ps(slope), y);
        _mm256_storeu_ps(x + i, _mm256_blendv_ps(y, none, _mm256_cmp_ps(added, none, _CMP_EQ_OQ)));
    }
    return largest(x, N_CELLS);
}

// Sums over the cells of a row, by lanes.
struct sums_of_row {
    alignas(64) double exponentials[16] = {}; // exact, see exact_sum
    alignas(64) float bounds[16]        = {}; // of the values of all cells whose weight is not 0

    double total() const { return std::accumulate(exponentials, exponentials + 16, 0.0); }

    float bound() const { return *std::max_element(bounds, bounds + 16); }
};

// Replaces the scores of a block by e^(score - max), and adds these and their bounds to the sums.
AVX2 inline void to_exponentials(float * y, const float * bounds, float max, sums_of_row & sums) {
    exact_sum sum(sums.exponentials);
    __m256    bound = _mm256_loadu_ps(sums.bounds);
    for (int64_t i = 0; i < N_CELLS; i += 8) {
        const __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(y + i), _mm256_set1_ps(max)));
        _mm256_storeu_ps(y + i, e);
        sum.add(e);
        const __m256 empty = _mm256_cmp_ps(e, _mm256_setzero_ps(), _CMP_EQ_OQ);
        bound              = _mm256_max_ps(bound, _mm256_andnot_ps(empty, _mm256_loadu_ps(bounds + i)));
    }
    sum.store(sums.exponentials);
    _mm256_storeu_ps(sums.bounds, bound);
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

// Appends the heavy ones of 32 cells to a list. products: bounds of each cell's products. Returns how many cells may be
// summed in floats at a time.
AVX2 inline int64_t take_heavy_cells(const __m256 (&products)[4], float * y, const float * bounds, int32_t cell,
                                     heavy_cell * heavy, int32_t & n_heavy) {
    float loads[4];
    _mm_storeu_ps(loads, sum4(products[0], products[1], products[2], products[3]));
    for (int i = 0; i < 4; ++i) {
        if (loads[i] >= PRODUCTS_MAX) {
            loads[i] = take_heavy(y + 8 * i, bounds + 8 * i, cell + 8 * i, heavy, n_heavy);
        }
    }
    return cells_together(loads);
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
    return take_heavy_cells(products, y, bounds, cell, heavy, n_heavy);
}

} // namespace eagle3::kernels::avx2
#endif
