// IQ4_NL: a block is a scale and 32 indices of a table; as the file has it, and repacked (block_iq4_nlx8 of
// ggml/src/ggml-cpu/repack.cpp, on ARM block_iq4_nlx4). IQ4_XS: 256 such indices have a scale, and each 32 of them a
// scale of six bits.
#include "kernels/blocks.h"
#include "kernels/formats.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

namespace {

using namespace avx2;

AVX2_INLINE __m128i values() {
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}

template <int64_t BYTES, int64_t INPUTS = QK>
struct iq4 : mapped_blocks<BYTES, INPUTS> {
    static constexpr bool is_signed = true;
    static constexpr int  largest   = 127;
    using sums                      = offset_sums<0>;
};

struct iq4_nl : iq4<18> {
    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        w.d = load_halves(p, stride);
        load_nibbles(p + 2, stride, w.q);
        look_up(values(), w.q);
    }

#if defined(__x86_64__)
    static constexpr bool has_wide = true;

    AVX512_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, avx512::wide_block & w) {
        p += b * block_bytes;
        w.d = avx512::load_halves(p, stride);
        avx512::load_nibbles(p + 2, stride, w);
        avx512::look_up(values(), w);
    }
#endif
};

struct iq4_nlx8 : iq4_nl {
    static constexpr int64_t n_channels = 8;
    static constexpr int64_t n_together = 8;
    static constexpr bool    eights     = true;
    static constexpr int     values_at  = 16;
    static constexpr int     flip       = 0;
    static constexpr bool    has_table  = true;

    AVX2_INLINE static __m128i table() { return values(); }
    AVX2_INLINE static __m256  scales(const uint8_t * p) { return _mm256_cvtph_ps(load128(p)); }
};

#if defined(__aarch64__)
struct iq4_nl_4x4 : iq4_nl {
    static constexpr int64_t n_channels = 4;
    static constexpr int64_t n_together = 4;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * 4 * block_bytes;
        w.d = load_quads_halves(p, stride);
        load_quads_nibbles(p + 8, stride, w.q);
        look_up(values(), w.q);
    }
};
#endif

// A block of IQ4_XS is a scale, the high bits of eight more scales, their low bits, then the indices.
struct iq4_xs : iq4<136, QK_K> {
    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const int i = static_cast<int>(b % 8);
        p += b / 8 * block_bytes;
        if (i == 0) {
            w.super_d         = load_halves(p, stride);
            w.super_scales[0] = load_dwords(p + 4, stride);
            w.super_scales[1] = _mm256_srli_epi32(load_dwords(p, stride), 16);
        }
        const __m256i low   = _mm256_and_si256(w.super_scales[0], _mm256_set1_epi32(15));
        const __m256i high  = _mm256_and_si256(w.super_scales[1], _mm256_set1_epi32(3));
        const __m256i scale = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
        w.d = _mm256_mul_ps(w.super_d, _mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32))));
        w.super_scales[0] = _mm256_srli_epi32(w.super_scales[0], 4);
        w.super_scales[1] = _mm256_srli_epi32(w.super_scales[1], 2);
        load_nibbles(p + 8 + 16 * i, stride, w.q);
        look_up(values(), w.q);
    }

#if defined(__x86_64__)
    static constexpr bool has_wide = true;

    AVX512_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, avx512::wide_block & w) {
        const int i = static_cast<int>(b % 8);
        p += b / 8 * block_bytes;
        if (i == 0) {
            const __m512i first = avx512::load_dwords(p, stride);
            w.super_d           = avx512::floats(first);
            w.super_scales[0]   = avx512::load_dwords(p + 4, stride);
            w.super_scales[1]   = _mm512_srli_epi32(first, 16);
        }
        const __m512i low   = _mm512_and_si512(w.super_scales[0], _mm512_set1_epi32(15));
        const __m512i high  = _mm512_and_si512(w.super_scales[1], _mm512_set1_epi32(3));
        const __m512i scale = _mm512_or_si512(low, _mm512_slli_epi32(high, 4));
        w.d = _mm512_mul_ps(w.super_d, _mm512_cvtepi32_ps(_mm512_sub_epi32(scale, _mm512_set1_epi32(32))));
        w.super_scales[0] = _mm512_srli_epi32(w.super_scales[0], 4);
        w.super_scales[1] = _mm512_srli_epi32(w.super_scales[1], 2);
        avx512::load_nibbles(p + 8 + 16 * i, stride, w);
        avx512::look_up(values(), w);
    }
#endif
};

} // namespace

#if defined(__aarch64__)
const std::vector<kernel> iq4_nl_4x4_kernels = blocks_kernels<iq4_nl_4x4>("iq4_nl_4x4", GGML_TYPE_IQ4_NL);
#endif
const std::vector<kernel> iq4_xs_kernels   = blocks_kernels<iq4_xs, q8_K_rows>("iq4_xs", GGML_TYPE_IQ4_XS);
const std::vector<kernel> iq4_nlx8_kernels = blocks_kernels<iq4_nlx8>("iq4_nlx8", GGML_TYPE_IQ4_NL);
const std::vector<kernel> iq4_nl_kernels   = blocks_kernels<iq4_nl>("iq4_nl", GGML_TYPE_IQ4_NL);

} // namespace eagle3::kernels
#endif
