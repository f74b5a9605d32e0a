// IQ2_XXS, IQ2_XS and IQ2_S: indices into a grid of eight values, and their signs. IQ3_XXS and IQ3_S: of four values.
// 256 inputs have a scale, and each 32 or 16 of them one of four bits.
#include "kernels/blocks.h"
#include "kernels/formats.h"
#include "kernels/grids.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

namespace {

using namespace avx2;

template <int64_t BYTES, int SCALES>
struct of_grid : mapped_blocks<BYTES, QK_K, SCALES> {
    static constexpr bool has_signs = true;
    static constexpr bool is_signed = true;
    static constexpr int  largest   = 62;
    using sums                      = offset_sums<0>;

    // The super-block's scale, times 2^-3 or another power of two, is kept from its first 32 inputs on.
    AVX2_INLINE static void keep_scale(const uint8_t * p, int i, size_t stride, float power, unpacked & w) {
        if (i == 0) {
            w.super_d = _mm256_mul_ps(load_halves(p, stride), _mm256_set1_ps(power));
        }
    }

    // Two scales of each 32 inputs are a byte. Four of them are kept.
    AVX2_INLINE static void next_scales(const uint8_t * p, int i, size_t stride, unpacked & w) {
        if (i % 4 == 0) {
            w.super_scales[0] = load_dwords(p + i, stride);
        }
        w.d               = odd_scale(w.super_d, bits_of(w.super_scales[0], 0, 15));
        w.d_high          = odd_scale(w.super_d, bits_of(w.super_scales[0], 4, 15));
        w.super_scales[0] = _mm256_srli_epi32(w.super_scales[0], 8);
    }
};

// A block is a scale, then for 32 inputs each four indices, and a dword of four times seven signs and a scale.
struct iq2_xxs : of_grid<66, 1> {
    inline static const auto grid = read_grid<int64_t>(GGML_TYPE_IQ2_XXS, 256, [](uint8_t * p, int64_t i, int64_t at) {
        put_half(p, 0x4800); // 8
        p[2 + 8 * (i / 4) + i % 4] = static_cast<uint8_t>(at);
    });

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const auto      i  = static_cast<int>(b % 8);
        const int64_t * of = grid.data();
        p += b / 8 * block_bytes;
        keep_scale(p, i, stride, 0.125f, w);
        p += 2 + 8 * i;
        const __m256i signs = load_dwords(p + 4, stride);
        w.d                 = odd_scale(w.super_d, _mm256_srli_epi32(signs, 28));
        load_eights([=](int c, int l) { return of[p[c * stride + l]]; }, w.q);
        w.signs = with_parity(spread_sevens(signs));
    }
};

// A block is a scale, words of an index of nine bits and seven signs, then two scales for each 32 inputs.
struct iq2_xs : of_grid<74, 2> {
    inline static const auto grid = read_grid<int64_t>(GGML_TYPE_IQ2_XS, 512, [](uint8_t * p, int64_t i, int64_t at) {
        put_half(p, 0x4800);
        put_half(p + 2 + 2 * i, static_cast<uint16_t>(at));
    });

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const auto      i  = static_cast<int>(b % 8);
        const int64_t * of = grid.data();
        p += b / 8 * block_bytes;
        keep_scale(p, i, stride, 0.125f, w);
        next_scales(p + 66, i, stride, w);
        p += 2 + 8 * i;
        load_eights([=](int c, int l) { return of[read<uint16_t>(p + c * stride + 2 * l) & 511]; }, w.q);
        const __m256i first = load_dwords(p, stride), last = load_dwords(p + 4, stride);
        const __m256i even = _mm256_set1_epi32(0x7f), odd = _mm256_set1_epi32(0x7f00);
        const __m256i low  = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(first, 9), even),
                                             _mm256_and_si256(_mm256_srli_epi32(first, 17), odd));
        const __m256i high = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(last, 9), even),
                                             _mm256_and_si256(_mm256_srli_epi32(last, 17), odd));
        w.signs            = with_parity(_mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
    }
};

// A block is a scale, the low bytes of the indices, signs, the indices' other two bits, two scales for each 32 inputs.
struct iq2_s : of_grid<82, 2> {
    inline static const auto grid = read_grid<int64_t>(GGML_TYPE_IQ2_S, 1024, [](uint8_t * p, int64_t i, int64_t at) {
        put_half(p, 0x4800);
        p[2 + i] = static_cast<uint8_t>(at);
        p[66 + i / 4] |= static_cast<uint8_t>(at >> 8 << 2 * (i % 4));
    });

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const auto      i  = static_cast<int>(b % 8);
        const int64_t * of = grid.data();
        p += b / 8 * block_bytes;
        keep_scale(p, i, stride, 0.125f, w);
        next_scales(p + 74, i, stride, w);
        if (i % 4 == 0) {
            w.super_scales[1] = load_dwords(p + 66 + i, stride);
        }
        indices<4> at;
        at.put<2, 2>(0, load_dwords(p + 2 + 4 * i, stride), w.super_scales[1]);
        w.super_scales[1] = _mm256_srli_epi32(w.super_scales[1], 8);
        load_eights([&](int c, int l) { return of[at.at(c, l)]; }, w.q);
        w.signs = load_dwords(p + 34 + 4 * i, stride);
    }
};

// A block is a scale, the indices, then dwords of signs and scale as in IQ2_XXS.
struct iq3_xxs : of_grid<98, 1> {
    inline static const auto grid = read_grid<int32_t>(GGML_TYPE_IQ3_XXS, 256, [](uint8_t * p, int64_t i, int64_t at) {
        put_half(p, 0x4400); // 4
        p[2 + i] = static_cast<uint8_t>(at);
    });

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const auto      i  = static_cast<int>(b % 8);
        const int32_t * of = grid.data();
        p += b / 8 * block_bytes;
        keep_scale(p, i, stride, 0.25f, w);
        const __m256i signs = load_dwords(p + 66 + 4 * i, stride);
        w.d                 = odd_scale(w.super_d, _mm256_srli_epi32(signs, 28));
        p += 2 + 8 * i;
        load_fours([=](int c, int l) { return of[p[c * stride + l]]; }, w.q);
        w.signs = with_parity(spread_sevens(signs));
    }
};

// A block is a scale, the low bytes of the indices, their ninth bits, signs, and scales.
struct iq3_s : of_grid<110, 1> {
    static constexpr int     largest = 15;
    inline static const auto grid    = read_grid<int32_t>(GGML_TYPE_IQ3_S, 512, [](uint8_t * p, int64_t i, int64_t at) {
        put_half(p, 0x3c00); // 1
        p[2 + i] = static_cast<uint8_t>(at);
        p[66 + i / 8] |= static_cast<uint8_t>(at >> 8 << i % 8);
    });

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const auto      i  = static_cast<int>(b % 8);
        const int32_t * of = grid.data();
        p += b / 8 * block_bytes;
        keep_scale(p, i, stride, 1.0f, w);
        w.d = odd_scale(w.super_d, bits_of(load_dwords(p + 106, stride), 4 * i, 15));
        if (i % 4 == 0) {
            w.super_scales[1] = load_dwords(p + 66 + i, stride);
        }
        indices<8> at;
        at.put<1, 1>(0, load_dwords(p + 2 + 8 * i, stride), w.super_scales[1]);
        at.put<1, 1>(4, load_dwords(p + 6 + 8 * i, stride), _mm256_srli_epi32(w.super_scales[1], 4));
        w.super_scales[1] = _mm256_srli_epi32(w.super_scales[1], 8);
        load_fours([&](int c, int l) { return of[at.at(c, l)]; }, w.q);
        w.signs = load_dwords(p + 74 + 4 * i, stride);
    }
};

} // namespace

const std::vector<kernel> iq2_xxs_kernels = blocks_kernels<iq2_xxs, q8_K_rows>("iq2_xxs", GGML_TYPE_IQ2_XXS);
const std::vector<kernel> iq2_xs_kernels  = blocks_kernels<iq2_xs, q8_K_rows>("iq2_xs", GGML_TYPE_IQ2_XS);
const std::vector<kernel> iq2_s_kernels   = blocks_kernels<iq2_s, q8_K_rows>("iq2_s", GGML_TYPE_IQ2_S);
const std::vector<kernel> iq3_xxs_kernels = blocks_kernels<iq3_xxs, q8_K_rows>("iq3_xxs", GGML_TYPE_IQ3_XXS);
const std::vector<kernel> iq3_s_kernels   = blocks_kernels<iq3_s, q8_K_rows>("iq3_s", GGML_TYPE_IQ3_S);

} // namespace eagle3::kernels
#endif
