// IQ1_S and IQ1_M: indices into a grid of eight values, which are -1, 0 or 1, and an eighth that is added to them or
// subtracted. Kernels multiply eight times the values.
#include "kernels/blocks.h"
#include "kernels/formats.h"
#include "kernels/grids.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

namespace {

using namespace avx2;

// The grid of both types, with the eighth added.
const auto grid = read_grid<int64_t>(GGML_TYPE_IQ1_S, 2048, [](uint8_t * p, int64_t i, int64_t at) {
    put_half(p, 0x4800); // 8
    p[2 + i]       = static_cast<uint8_t>(at);
    uint8_t * word = p + 34 + i / 4 * 2;
    put_half(word, static_cast<uint16_t>(read<uint16_t>(word) | at >> 8 << 3 * (i % 4)));
});

template <int64_t BYTES, int SCALES>
struct iq1 : mapped_blocks<BYTES, QK_K, SCALES> {
    static constexpr bool is_signed = true;
    static constexpr int  largest   = 9;
    using sums                      = offset_sums<0>;
};

// A block is a scale, the low bytes of the indices, then words of their other three bits, a scale, and a sign.
struct iq1_s : iq1<50, 1> {
    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const auto i = static_cast<int>(b % 8);
        p += b / 8 * block_bytes;
        if (i == 0) {
            w.super_d = _mm256_mul_ps(load_halves(p, stride), _mm256_set1_ps(0.125f));
        }
        const int64_t * of    = grid.data();
        const uint8_t * words = p + 34 + 2 * i;
        const __m256i   high  = _mm256_srli_epi32(load_dwords(words - 2, stride), 16); // memory may end after the block
        w.d                   = odd_scale(w.super_d, bits_of(high, 12, 7));
        indices<4> at;
        at.put<3, 3>(0, load_dwords(p + 2 + 4 * i, stride), high);
        load_eights([&](int c, int l) { return of[at.at(c, l)]; }, w.q);
        const __m256i is_less = _mm256_cmpgt_epi32(high, _mm256_set1_epi32(0x7fff));
        for (__m256i & q : w.q) {
            q = _mm256_sub_epi8(q, _mm256_and_si256(is_less, _mm256_set1_epi8(2)));
        }
    }
};

// A block is the low bytes of the indices, nibbles of their other three bits and a sign, then four words of four scales
// and a quarter of the super-block's scale.
struct iq1_m : iq1<56, 2> {
    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        const auto i = static_cast<int>(b % 8);
        p += b / 8 * block_bytes;
        if (i == 0) {
            w.super_scales[0] = load_dwords(p + 48, stride);
            w.super_scales[1] = load_dwords(p + 52, stride);
            w.super_d         = _mm256_mul_ps(super_scale(w.super_scales), _mm256_set1_ps(0.125f));
        }
        const __m256i scales = _mm256_srli_epi32(w.super_scales[i / 4], 16 * (i / 2 % 2) + 6 * (i % 2));
        w.d                  = odd_scale(w.super_d, bits_of(scales, 0, 7));
        w.d_high             = odd_scale(w.super_d, bits_of(scales, 3, 7));
        const int64_t * of   = grid.data();
        const __m256i   high = load_dwords(p + 32 + 2 * i, stride); // with the next 32 inputs' bits
        indices<4>      at;
        at.put<3, 4>(0, load_dwords(p + 4 * i, stride), high);
        load_eights([&](int c, int l) { return of[at.at(c, l)]; }, w.q);
        for (int l = 0; l < 4; ++l) {
            const __m256i bit     = _mm256_set1_epi32(8 << 4 * l);
            const __m256i is_less = _mm256_cmpeq_epi32(_mm256_and_si256(high, bit), bit);
            for (int j = 2 * l; j < 2 * l + 2; ++j) {
                w.q[j] = _mm256_sub_epi8(w.q[j], _mm256_and_si256(is_less, _mm256_set1_epi8(2)));
            }
        }
    }

  private:
    AVX2_INLINE static __m256 super_scale(const __m256i (&words)[2]) {
        const __m256i half =
            _mm256_or_si256(_mm256_or_si256(bits_of(words[0], 12, 0xf), bits_of(words[0], 24, 0xf0)),
                            _mm256_or_si256(bits_of(words[1], 4, 0xf00), bits_of(words[1], 16, 0xf000)));
        const __m256i both = _mm256_packus_epi32(half, half);
        return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(both, 0xd8)));
    }
};

} // namespace

const std::vector<kernel> iq1_s_kernels = blocks_kernels<iq1_s, q8_K_rows>("iq1_s", GGML_TYPE_IQ1_S);
const std::vector<kernel> iq1_m_kernels = blocks_kernels<iq1_m, q8_K_rows>("iq1_m", GGML_TYPE_IQ1_M);

} // namespace eagle3::kernels
#endif
