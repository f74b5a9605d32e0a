// Q5_0: a block is a scale, the highest bits of 32 values, then their other four bits; 16 is subtracted from each
// value. Q5_1 has a minimum instead of that offset.
#include "kernels/blocks.h"
#include "kernels/formats.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

namespace {

using namespace avx2;

// Adds 16 to the values of eight channels whose highest bit is set.
AVX2_INLINE void add_fifth_bits(const uint8_t * p, size_t stride, __m256i * q) {
    __m256i set[8];
    masks_of_bits(load_dwords(p, stride), set);
    for (int i = 0; i < 8; ++i) {
        q[i] = _mm256_or_si256(q[i], _mm256_and_si256(set[i], _mm256_set1_epi8(16)));
    }
}

#if defined(__x86_64__)
AVX512_INLINE void add_fifth_bits(const uint8_t * p, size_t stride, avx512::wide_block & w) {
    const __m512i bits = avx512::load_dwords(p, stride);
    for (int i = 0; i < 8; ++i) {
        w.q[i] = _mm512_mask_add_epi8(w.q[i], avx512::mask_of_bits(bits, i), w.q[i], _mm512_set1_epi8(16));
    }
}
#endif

struct q5_0 : mapped_blocks<22> {
    static constexpr bool is_signed = false;
    static constexpr int  largest   = 31;
    using sums                      = offset_sums<16>;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        w.d = load_halves(p, stride);
        load_nibbles(p + 6, stride, w.q);
        add_fifth_bits(p + 2, stride, w.q);
    }

#if defined(__x86_64__)
    static constexpr bool has_wide = true;

    AVX512_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, avx512::wide_block & w) {
        p += b * block_bytes;
        w.d = avx512::load_halves(p, stride);
        avx512::load_nibbles(p + 6, stride, w);
        add_fifth_bits(p + 2, stride, w);
    }
#endif
};

struct q5_1 : mapped_blocks<24> {
    static constexpr bool is_signed = false;
    static constexpr int  largest   = 31;
    using sums                      = value_sums;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        load_scale_and_min(p, stride, w);
        load_nibbles(p + 8, stride, w.q);
        add_fifth_bits(p + 4, stride, w.q);
    }

#if defined(__x86_64__)
    static constexpr bool has_wide = true;

    AVX512_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, avx512::wide_block & w) {
        p += b * block_bytes;
        avx512::load_scale_and_min(p, stride, w);
        avx512::load_nibbles(p + 8, stride, w);
        add_fifth_bits(p + 4, stride, w);
    }
#endif
};

} // namespace

const std::vector<kernel> q5_0_kernels = blocks_kernels<q5_0>("q5_0", GGML_TYPE_Q5_0);
const std::vector<kernel> q5_1_kernels = blocks_kernels<q5_1>("q5_1", GGML_TYPE_Q5_1);

} // namespace eagle3::kernels
#endif
