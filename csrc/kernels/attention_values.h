// Products of what rows weigh the cells of a block by, and the values of these cells.
#pragma once

#include "kernels/floats_avx2.h"
#include "kernels/rounding.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>

namespace eagle3::kernels::avx2 {

constexpr int64_t N_CELLS     = 32; // of a block
constexpr int64_t N_ROWS      = 48; // whose sums are kept at a time
constexpr int     N_ROWS_TILE = 6;  // that are multiplied by values at a time

// Where sums begin: up to 2,048 to either side they are exact, if the processor rounds downwards
// (attention_product.cpp).
constexpr double MIDDLE = 6144.0;

// How values are summed. Each has vectors of some `channels`, the low and the high half of which are registers.

// in an order that does not matter
struct exactly {
    using number = double;
    using vector = __m256d;

    static constexpr int64_t channels = 8;
    static constexpr double  first    = MIDDLE;

    template <class format>
    AVX2_INLINE static void load(const char * p, size_t /*high*/, vector & low_half, vector & high_half) {
        const __m256 v = format::load8(p, 0);
        low_half       = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
        high_half      = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    }

    AVX2_INLINE static vector load(const double * p) { return _mm256_loadu_pd(p); }

    AVX2_INLINE static void store(double * p, vector v) { _mm256_storeu_pd(p, v); }

    AVX2_INLINE static vector broadcast(const double * p) { return _mm256_broadcast_sd(p); }

    AVX2_INLINE static vector fma(vector a, vector b, vector c) { return _mm256_fmadd_pd(a, b, c); }

    AVX2_INLINE static void store4(double * p, __m128 v) { _mm256_storeu_pd(p, _mm256_cvtps_pd(v)); }
};

// in the order of the cells, twice as fast
struct in_order {
    using number = float;
    using vector = __m256;

    static constexpr int64_t channels = 16;
    static constexpr float   first    = 0.0f;

    template <class format>
    AVX2_INLINE static void load(const char * p, size_t high, vector & low_half, vector & high_half) {
        low_half  = format::load8(p, 0);
        high_half = format::load8(p + high, 0);
    }

    AVX2_INLINE static vector load(const float * p) { return _mm256_loadu_ps(p); }

    AVX2_INLINE static void store(float * p, vector v) { _mm256_storeu_ps(p, v); }

    AVX2_INLINE static vector broadcast(const float * p) { return _mm256_set1_ps(*p); }

    AVX2_INLINE static vector fma(vector a, vector b, vector c) { return _mm256_fmadd_ps(a, b, c); }

    AVX2_INLINE static void store4(float * p, __m128 v) { _mm_storeu_ps(p, v); }
};

// Sums of n rows. A member for each, since GCC would keep an array in memory.
template <class way, int n>
struct value_sums {
    value_sums<way, n - 1> before;
    typename way::vector   low, high;

    AVX2_INLINE void load(const typename way::number * sums) {
        before.load(sums);
        low  = way::load(sums + (n - 1) * way::channels);
        high = way::load(sums + (n - 1) * way::channels + way::channels / 2);
    }

    AVX2_INLINE void add(const typename way::number * weights, typename way::vector values_low,
                         typename way::vector values_high) {
        before.add(weights, values_low, values_high);
        const auto p = way::broadcast(weights + n - 1);
        low          = way::fma(p, values_low, low);
        high         = way::fma(p, values_high, high);
    }

    AVX2_INLINE void store(typename way::number * sums) const {
        before.store(sums);
        way::store(sums + (n - 1) * way::channels, low);
        way::store(sums + (n - 1) * way::channels + way::channels / 2, high);
    }
};

template <class way>
struct value_sums<way, 0> {
    AVX2_INLINE void load(const typename way::number * /*sums*/) {}

    AVX2_INLINE void add(const typename way::number * /*weights*/, typename way::vector /*low*/,
                         typename way::vector /*high*/) {}

    AVX2_INLINE void store(typename way::number * /*sums*/) const {}
};

// A block's cells: what each row weighs them by [N_CELLS][N_ROWS], and some channels of their values.
template <class way>
struct block_of_values {
    const typename way::number * weights;
    const char *                 values;
    size_t                       stride; // bytes from one cell to the next
    int64_t                      n_cells, n_channels, n_rows;
    size_t                       next; // from a cell to the one that memory is asked for meanwhile; 0: none
};

// channels from i and n rows from r on
template <class way, class format, int n>
AVX2 void add_values(const block_of_values<way> & b, int64_t i, int64_t r, typename way::number * sums) {
    const char *       values = b.values + i * format::SIZE;
    const size_t       high   = i + 8 < b.n_channels ? 8 * format::SIZE : 0; // else nobody reads those sums
    value_sums<way, n> s;
    s.load(sums);
    const bool prefetches = b.next && r == 0 && i * format::SIZE % 64 == 0;
    for (int64_t cell = 0; cell < b.n_cells; ++cell) {
        if (prefetches) {
            _mm_prefetch(values + cell * b.stride + b.next, _MM_HINT_T0);
        }
        typename way::vector low_half, high_half;
        way::template load<format>(values + cell * b.stride, high, low_half, high_half);
        s.add(b.weights + cell * N_ROWS + r, low_half, high_half);
    }
    s.store(sums);
}

// Sums lie by channels of a vector, row and channel. Not inlined: it stays between the changes of the mode of rounding.
template <class way, class format>
AVX2 __attribute__((noinline)) void add_all(const block_of_values<way> & b, typename way::number * sums) {
    constexpr decltype(&add_values<way, format, 1>) of_rows[N_ROWS_TILE] = {
        add_values<way, format, 1>, add_values<way, format, 2>, add_values<way, format, 3>,
        add_values<way, format, 4>, add_values<way, format, 5>, add_values<way, format, 6>,
    };
    for (int64_t i = 0; i < b.n_channels; i += way::channels) {
        for (int64_t r = 0; r < b.n_rows; r += N_ROWS_TILE) {
            const int64_t n = std::min<int64_t>(N_ROWS_TILE, b.n_rows - r);
            of_rows[n - 1](b, i, r, sums + i * N_ROWS + r * way::channels);
        }
    }
}

template <class format>
AVX2 void add_block(const block_of_values<exactly> & b, double * sums) {
    const rounding_downwards mode;
    add_all<exactly, format>(b, sums);
}

template <class format>
AVX2 void add_block(const block_of_values<in_order> & b, float * sums) {
    add_all<in_order, format>(b, sums);
}

// Weights of a block [N_CELLS][N_ROWS], of rows of them. There is room for up to three rows more.
template <class way>
AVX2 void transpose(const float * rows, int64_t stride, int64_t n_rows, typename way::number * weights) {
    for (int64_t r = 0; r < n_rows; r += 4) {
        const float * x[4];
        for (int64_t i = 0; i < 4; ++i) {
            x[i] = rows + std::min(r + i, n_rows - 1) * stride;
        }
        for (int64_t c = 0; c < N_CELLS; c += 4) {
            const __m128 a = _mm_loadu_ps(x[0] + c), b = _mm_loadu_ps(x[1] + c);
            const __m128 d = _mm_loadu_ps(x[2] + c), e = _mm_loadu_ps(x[3] + c);
            const __m128 ab = _mm_unpacklo_ps(a, b), de = _mm_unpacklo_ps(d, e);
            const __m128 ab_high = _mm_unpackhi_ps(a, b), de_high = _mm_unpackhi_ps(d, e);
            auto *       out = weights + c * N_ROWS + r;
            way::store4(out, _mm_movelh_ps(ab, de));
            way::store4(out + N_ROWS, _mm_movehl_ps(de, ab));
            way::store4(out + 2 * N_ROWS, _mm_movelh_ps(ab_high, de_high));
            way::store4(out + 3 * N_ROWS, _mm_movehl_ps(de_high, ab_high));
        }
    }
}

} // namespace eagle3::kernels::avx2
#endif
