// Q4_0 in ggml's repacked layout (block_q4_0x8, ggml/src/ggml-cpu/repack.cpp): eight channels by 32 inputs a block.
#include "kernels/q4_0_avx2.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>

#define AVX2 __attribute__((target("avx2,fma,f16c")))

namespace eagle3::kernels {

namespace {

constexpr int64_t QK = 32; // inputs of a block

struct block_q4_0x8 {
    uint16_t d[8];    // scales of the channels, half floats
    uint8_t  qs[128]; // byte 64 j + 8 c + i: inputs 8 j + i (low half) and 16 + 8 j + i of channel c, as q - 8
};

// a row is k int8 values, then the scales of its blocks (f32), then -8 times the sums of their values (i32)
size_t row_size(int64_t k) {
    return k + k / QK * (sizeof(float) + sizeof(int32_t));
}

// as ggml's quantize_row_q8_0
AVX2 void quantize(const float * x, int64_t k, uint8_t * row) {
    auto * d       = reinterpret_cast<float *>(row + k);
    auto * offsets = reinterpret_cast<int32_t *>(d + k / QK);
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

        __m256i sum = _mm256_setzero_si256();
        __m256i q[4];
        for (int i = 0; i < 4; ++i) {
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], id));
            sum  = _mm256_add_epi32(sum, q[i]);
        }
        const __m256i words = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(row + QK * b),
                            _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
        __m128i sum4 = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        sum4         = _mm_hadd_epi32(sum4, sum4);
        sum4         = _mm_hadd_epi32(sum4, sum4);

        const float   scale = _cvtsh_ss(_cvtss_sh(amax / 127.0f, _MM_FROUND_TO_NEAREST_INT));
        const int32_t s     = -8 * _mm_cvtsi128_si32(sum4);
        std::memcpy(d + b, &scale, sizeof(scale));
        std::memcpy(offsets + b, &s, sizeof(s));
    }
}

// One group of channels times R rows. The sums of a channel's 32 products stay below 2^15: four pairs of 15 * 127 in a
// lane, and two lanes.
template <int R>
AVX2 void compute_group(const block_q4_0x8 * w, int64_t nb, const uint8_t * rows, size_t row_bytes, float * out,
                        int64_t ldo) {
    const __m256i low   = _mm256_set1_epi8(15);
    const __m256i flip  = _mm256_set1_epi8(static_cast<char>(0x88));
    const __m256i ones  = _mm256_set1_epi16(1);
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7); // of the channels in the sums, and back

    __m256 acc[R];
    for (auto & sum : acc) {
        sum = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < nb; ++b) {
        __m256i v[8]; // inputs 0 - 7, 8 - 15, 16 - 23, 24 - 31 of channels 0 - 3, then of 4 - 7
        for (int i = 0; i < 4; ++i) {
            const auto *  qs    = reinterpret_cast<const __m256i *>(w[b].qs) + i;
            const __m256i both  = _mm256_xor_si256(_mm256_loadu_si256(qs), flip);
            const int     place = i / 2 + 4 * (i % 2);
            v[place]            = _mm256_and_si256(both, low);
            v[place + 2]        = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        }
        const __m256 d_w = _mm256_permutevar8x32_ps(
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w[b].d))), order);
        for (int r = 0; r < R; ++r) {
            const uint8_t * row = rows + r * row_bytes;
            __m256i         a   = _mm256_setzero_si256();
            __m256i         c   = _mm256_setzero_si256();
            for (int i = 0; i < 4; ++i) {
                int64_t q;
                std::memcpy(&q, row + QK * b + 8 * i, sizeof(q));
                const __m256i y = _mm256_set1_epi64x(q);
                a               = _mm256_add_epi16(a, _mm256_maddubs_epi16(v[i], y));
                c               = _mm256_add_epi16(c, _mm256_maddubs_epi16(v[i + 4], y));
            }
            float   d;
            int32_t offset;
            std::memcpy(&d, row + QK * nb + 4 * b, sizeof(d));
            std::memcpy(&offset, row + (QK + 4) * nb + 4 * b, sizeof(offset));
            const __m256i sums =
                _mm256_add_epi32(_mm256_madd_epi16(_mm256_hadd_epi16(a, c), ones), _mm256_set1_epi32(offset));
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_mul_ps(d_w, _mm256_set1_ps(d)), acc[r]);
        }
    }
    for (int r = 0; r < R; ++r) {
        _mm256_storeu_ps(out + r * ldo, _mm256_permutevar8x32_ps(acc[r], order));
    }
}

AVX2 void compute(const uint8_t * weights, int64_t k, const uint8_t * rows, int64_t n_rows, int64_t first, int64_t last,
                  float * out, int64_t ldo) {
    const int64_t nb        = k / QK;
    const size_t  row_bytes = row_size(k);
    for (int64_t group = first; group < last; ++group) {
        const auto * w = reinterpret_cast<const block_q4_0x8 *>(weights) + group * nb;
        float *      o = out + 8 * group;
        int64_t      r = 0;
        for (; r + 4 <= n_rows; r += 4) {
            compute_group<4>(w, nb, rows + r * row_bytes, row_bytes, o + r * ldo, ldo);
        }
        switch (n_rows - r) {
            case 3: compute_group<3>(w, nb, rows + r * row_bytes, row_bytes, o + r * ldo, ldo); break;
            case 2: compute_group<2>(w, nb, rows + r * row_bytes, row_bytes, o + r * ldo, ldo); break;
            case 1: compute_group<1>(w, nb, rows + r * row_bytes, row_bytes, o + r * ldo, ldo); break;
            default: break;
        }
    }
}

bool is_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

} // namespace

const kernel q4_0x8_avx2 = { "q4_0x8/avx2", GGML_TYPE_Q4_0, layout::repacked, 8,      QK,
                             is_supported,  row_size,       quantize,         compute };

} // namespace eagle3::kernels
#endif
