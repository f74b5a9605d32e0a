// Reads rows of the K/V cache as float32.
#pragma once

#include "kernels/floats_avx2.h"

#include "ggml.h"

#ifdef EAGLE3_HAS_KERNELS

#include <algorithm>
#include <limits>

namespace eagle3::kernels::avx2 {

constexpr float INF = std::numeric_limits<float>::infinity();

struct cache_rows {
    ggml_type    type;
    const char * first;
    size_t       stride; // bytes from one cell to the next
    int64_t      n;

    const char * row(int64_t i) const { return first + i * stride; }
};

// Rows to prefetch, a few lines at a time, while other rows are multiplied: memory delivers more if the prefetches are
// spread evenly.
struct rows_ahead {
    const char * row     = nullptr;
    size_t       stride  = 0;
    int64_t      n       = 0; // rows that are left
    size_t       n_bytes = 0; // of each row
    size_t       at      = 0; // byte of the row that is next

    int64_t n_lines() const { return n * ((n_bytes + 63) / 64); }

    AVX2_INLINE void ask(int64_t n_lines) {
        for (; n_lines > 0 && n > 0; --n_lines) {
            _mm_prefetch(row + at, _MM_HINT_T0);
            at += 64;
            if (at >= n_bytes) {
                at = 0;
                row += stride;
                --n;
            }
        }
    }
};

// Writes values [begin, begin + n) of each row to out, row after row. n is a multiple of 8, begin of the type's block.
AVX2 inline void to_f32(const cache_rows & rows, int64_t begin, int64_t n, float * out) {
    const size_t offset = ggml_row_size(rows.type, begin);
    if (rows.type == GGML_TYPE_F16) {
        for (int64_t c = 0; c < rows.n; ++c, out += n) {
            for (int64_t i = 0; i < n; i += 8) {
                _mm256_storeu_ps(out + i, f16::load8(rows.row(c) + offset, i));
            }
        }
    } else if (rows.type == GGML_TYPE_Q8_0) { // blocks of a scale in F16 and 32 bytes
        for (int64_t c = 0; c < rows.n; ++c, out += n) {
            const char * block = rows.row(c) + offset;
            for (int64_t i = 0; i < n; i += 8) {
                const __m256  scale = _mm256_set1_ps(_cvtsh_ss(read<ggml_fp16_t>(block + i / 32 * 34)));
                const __m256i q     = _mm256_cvtepi8_epi32(load64(block + i / 32 * 34 + 2 + i % 32));
                _mm256_storeu_ps(out + i, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(q)));
            }
        }
    } else {
        for (int64_t c = 0; c < rows.n; ++c, out += n) {
            if (rows.type == GGML_TYPE_F32) {
                std::memcpy(out, rows.row(c) + offset, n * sizeof(float));
            } else {
                ggml_get_type_traits(rows.type)->to_float(rows.row(c) + offset, out, n);
            }
        }
    }
}

// The largest lane of each of four vectors.
AVX2_INLINE __m128 largest_lanes(__m128 a, __m128 b, __m128 c, __m128 d) {
    const __m128 ab = _mm_max_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    const __m128 cd = _mm_max_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    return _mm_max_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

AVX2_INLINE __m128 halves(__m256 v) {
    return _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

AVX2 inline float largest_lane(__m256 v) {
    const __m128 x = halves(v);
    const __m128 y = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

// Infinite in place of NaN.
AVX2_INLINE __m256 or_infinite(__m256 v) {
    return _mm256_blendv_ps(_mm256_set1_ps(INF), v, _mm256_cmp_ps(v, v, _CMP_EQ_OQ));
}

// Four magnitudes of which the largest is that of the row. NaN counts as infinite.
AVX2_INLINE __m128 greatest_f16(const char * x, int64_t n) {
    const __m256i no_sign = _mm256_set1_epi16(0x7fff);
    __m256i       max     = _mm256_setzero_si256();
    int64_t       i       = 0;
    for (; i + 16 <= n; i += 16) { // without their signs, halves are ordered as integers are
        max = _mm256_max_epi16(max, _mm256_and_si256(load256(x + 2 * i), no_sign));
    }
    __m128i half = _mm_max_epi16(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    if (i < n) {
        half = _mm_max_epi16(half, _mm_and_si128(load128(x + 2 * i), _mm256_castsi256_si128(no_sign)));
    }
    return halves(_mm256_cvtph_ps(_mm_min_epi16(half, _mm256_castsi256_si128(_mm256_set1_epi16(0x7c00)))));
}

AVX2_INLINE __m128 greatest_f32(const float * x, int64_t n) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256       max  = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i));
        max            = _mm256_max_ps(max, or_infinite(v));
    }
    return halves(max);
}

// Writes a bound of the magnitudes of each row's values. `scratch` has room for a row, `out` for a multiple of four.
AVX2 inline void bounds_of_values(const cache_rows & rows, int64_t n_dims, float * scratch, float * out) {
    for (int64_t c = 0; c < rows.n; c += 4) {
        __m128 greatest[4];
        for (int64_t i = 0; i < 4; ++i) {
            const char * row = rows.row(std::min(c + i, rows.n - 1));
            if (rows.type == GGML_TYPE_F16) {
                greatest[i] = greatest_f16(row, n_dims);
            } else if (rows.type == GGML_TYPE_Q8_0) { // the bound is the largest scale times 128
                float scale = 0.0f;
                for (int64_t block = 0; block < n_dims / 32; ++block) {
                    const float d = std::abs(_cvtsh_ss(read<ggml_fp16_t>(row + 34 * block)));
                    scale         = std::max(scale, d == d ? d : INF);
                }
                greatest[i] = _mm256_castps256_ps128(_mm256_set1_ps(128.0f * scale));
            } else {
                to_f32({ rows.type, row, rows.stride, 1 }, 0, n_dims, scratch);
                greatest[i] = greatest_f32(scratch, n_dims);
            }
        }
        _mm_storeu_ps(out + c, largest_lanes(greatest[0], greatest[1], greatest[2], greatest[3]));
    }
}

} // namespace eagle3::kernels::avx2
#endif
