// Activations in blocks of 32 values with a scale: ggml's Q8_0 and Q8_1, or Q8_K, whose blocks of 256 have one. A row
// is k int8 values, the scales of its blocks (f32), and what a kernel needs of the sums of the blocks' values (4 bytes
// a block, or for each half of it).
#pragma once

#include "kernels/avx2.h"
#include "kernels/q8_K_avx2.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels::avx2 {

constexpr int64_t QK = 32; // inputs of a block

// The bytes of a row. They are an odd number of cache lines, or the same block of many rows would share few sets of the
// cache.
template <class sums>
size_t q8_row_size(int64_t k) {
    return (((k + k / QK * (4 + 4 * sums::n_parts) + 63) / 64) | 1) * 64;
}

inline const float * q8_scales(const uint8_t * row, int64_t k) {
    return reinterpret_cast<const float *>(row + k);
}

inline const uint8_t * q8_sums(const uint8_t * row, int64_t k) {
    return row + k + k / QK * sizeof(float);
}

// A row keeps of each block's sum, or of its halves' sums: -bias times it as an int32, as weights are read as w + bias
// (0 = nothing), ...
template <int bias, int n = 1>
struct offset_sums {
    static constexpr int  n_parts    = n;
    static constexpr bool has_offset = bias != 0;
    static constexpr bool has_min    = false;

    AVX2_INLINE static int32_t keep(int32_t sum, float /*d*/) { return -bias * sum; }
};

// ... or, for weights with a minimum, scale * sum, rounded as ggml does for Q8_1.
struct value_sums {
    static constexpr int  n_parts    = 1;
    static constexpr bool has_offset = false;
    static constexpr bool has_min    = true;

    AVX2_INLINE static float keep(int32_t sum, float d) {
        return _cvtsh_ss(_cvtss_sh(d * static_cast<float>(sum), _MM_FROUND_TO_NEAREST_INT));
    }
};

// Writes what a row keeps of block b, whose halves have these sums.
template <class sums>
AVX2_INLINE void keep_sums(uint8_t * kept, int64_t b, int32_t first, int32_t second, float d) {
    using value = decltype(sums::keep(first, d));
    static_assert(sizeof(value) == 4, "4 bytes a part");
    const value halves[] = { sums::keep(sums::n_parts == 2 ? first : first + second, d), sums::keep(second, d) };
    std::memcpy(kept + 4 * sums::n_parts * b, halves, 4 * sums::n_parts);
}

// Equals ggml's quantize_row_q8_0 and quantize_row_q8_1.
template <class sums>
AVX2 void quantize_q8(const float * x, int64_t k, uint8_t * row) {
    uint8_t * scales = row + k;
    uint8_t * kept   = scales + k / QK * sizeof(float);
    for (int64_t b = 0; b < k / QK; ++b) {
        __m256 max = _mm256_setzero_ps();
        __m256 v[4];
        for (int i = 0; i < 4; ++i) {
            v[i] = _mm256_loadu_ps(x + QK * b + 8 * i);
            max  = _mm256_max_ps(max, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v[i]));
        }
        __m128 max4       = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
        max4              = _mm_max_ps(max4, _mm_movehl_ps(max4, max4));
        max4              = _mm_max_ss(max4, _mm_movehdup_ps(max4));
        const float  amax = _mm_cvtss_f32(max4);
        const __m256 id   = _mm256_set1_ps(amax != 0.0f ? 127.0f / amax : 0.0f);

        __m256i q[4];
        for (int i = 0; i < 4; ++i) {
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], id));
        }
        const __m256i words = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(row + QK * b),
                            _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
        const __m256i pairs = _mm256_hadd_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        const __m128i sum4  = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
        const __m128i sum2  = _mm_hadd_epi32(sum4, sum4);

        const float d     = amax / 127.0f;
        const float scale = _cvtsh_ss(_cvtss_sh(d, _MM_FROUND_TO_NEAREST_INT));
        std::memcpy(scales + 4 * b, &scale, 4);
        keep_sums<sums>(kept, b, _mm_cvtsi128_si32(sum2), _mm_extract_epi32(sum2, 1), d);
    }
}

// How a type's rows are made: with a scale for each 32 values, ...
struct q8_0_rows {
    static constexpr int64_t n_inputs = QK;

    template <class sums>
    static void quantize(const float * x, int64_t k, uint8_t * row) {
        quantize_q8<sums>(x, k, row);
    }
};

// ... or with one for 256, which is written for each 32 of them.
struct q8_K_rows {
    static constexpr int64_t n_inputs = QK_K;

    template <class sums>
    AVX2 static void quantize(const float * x, int64_t k, uint8_t * row) {
        auto *    scales = reinterpret_cast<float *>(row + k);
        uint8_t * kept   = row + k + k / QK * sizeof(float);
        for (int64_t b = 0; b < k / QK; b += QK_K / QK) {
            int32_t     sums16[QK_K / 16];
            const float d = quantize_q8_K(x + QK * b, reinterpret_cast<int8_t *>(row + QK * b), sums16);
            for (int64_t i = 0; i < QK_K / QK; ++i) {
                scales[b + i] = d;
                keep_sums<sums>(kept, b + i, sums16[2 * i], sums16[2 * i + 1], d);
            }
        }
    }
};

} // namespace eagle3::kernels::avx2
#endif
