// Q4_0: a block is a scale and 32 values below 16, from which 8 is subtracted; as the file has it, and repacked
// (block_q4_0x8 of ggml/src/ggml-cpu/repack.cpp, on ARM block_q4_0x4; there the highest bit of each value is inverted).
#include "kernels/blocks.h"
#include "kernels/formats.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

namespace {

using namespace avx2;

struct q4_0 : mapped_blocks<18> {
    static constexpr bool is_signed = false;
    static constexpr int  largest   = 15;
    using sums                      = offset_sums<8>;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        w.d = load_halves(p, stride);
        load_nibbles(p + 2, stride, w.q);
    }

#if defined(__x86_64__)
    static constexpr bool has_wide = true;

    AVX512_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, avx512::wide_block & w) {
        p += b * block_bytes;
        w.d = avx512::load_halves(p, stride);
        avx512::load_nibbles(p + 2, stride, w);
    }
#endif
};

struct q4_0x8 : q4_0 {
    static constexpr int64_t n_channels = 8;
    static constexpr int64_t n_together = 8;
    static constexpr bool    eights     = true;
    static constexpr int     values_at  = 16;
    static constexpr int     flip       = 0x88;
    static constexpr bool    has_table  = false;

    AVX2_INLINE static __m256 scales(const uint8_t * p) { return _mm256_cvtph_ps(load128(p)); }
};

#if defined(__aarch64__)
struct q4_0_4x4 : q4_0 {
    static constexpr int64_t n_channels = 4;
    static constexpr int64_t n_together = 4;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * 4 * block_bytes;
        w.d = load_quads_halves(p, stride);
        load_quads_nibbles(p + 8, stride, w.q);
        flip(w);
    }

    AVX2_INLINE static void flip(unpacked & w) {
        for (__m256i & q : w.q) {
            q = _mm256_xor_si256(q, _mm256_set1_epi8(8));
        }
    }
};

struct q4_0_4x8 : q4_0_4x4 {
    static constexpr int64_t n_together = 8;
    static constexpr bool    eights     = true;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * 4 * block_bytes;
        w.d               = load_quads_halves(p, stride);
        const __m256i low = _mm256_set1_epi8(15);
        __m256i       v[4];
        load_quads_eights(p + 8, stride, v);
        for (int i = 0; i < 4; ++i) {
            const int place = i % 2 + 4 * (i / 2);
            w.q[place]      = _mm256_and_si256(v[i], low);
            w.q[place + 2]  = _mm256_and_si256(_mm256_srli_epi16(v[i], 4), low);
        }
        flip(w);
    }
};
#endif

} // namespace

#if defined(__aarch64__)
const std::vector<kernel> q4_0_4x4_kernels = blocks_kernels<q4_0_4x4>("q4_0_4x4", GGML_TYPE_Q4_0);
const std::vector<kernel> q4_0_4x8_kernels = blocks_kernels<q4_0_4x8>("q4_0_4x8", GGML_TYPE_Q4_0);
#endif
const std::vector<kernel> q4_0x8_kernels = blocks_kernels<q4_0x8>("q4_0x8", GGML_TYPE_Q4_0);
const std::vector<kernel> q4_0_kernels   = blocks_kernels<q4_0>("q4_0", GGML_TYPE_Q4_0);

} // namespace eagle3::kernels
#endif
