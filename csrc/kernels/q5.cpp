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
    const __m256i bits = load_dwords(p, stride);
    const __m256i low  = _mm256_set1_epi32(0x08040201);
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0x80402010));
    for (int i = 0; i < 4; ++i) {
        // byte i of each channel, four times
        const __m256i places = _mm256_add_epi8(
            _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c),
            _mm256_set1_epi8(static_cast<char>(i)));
        const __m256i byte = _mm256_shuffle_epi8(bits, places);
        for (int half = 0; half < 2; ++half) {
            const __m256i mask = half ? high : low;
            const __m256i set  = _mm256_cmpeq_epi8(_mm256_and_si256(byte, mask), mask);
            q[2 * i + half]    = _mm256_or_si256(q[2 * i + half], _mm256_and_si256(set, _mm256_set1_epi8(16)));
        }
    }
}

struct q5 {
    static constexpr int64_t n_channels = 1;
    static constexpr int64_t n_together = 0;
    static constexpr bool    eights     = false;
    static constexpr bool    is_signed  = false;
    static constexpr int     largest    = 31;
};

struct q5_0 : q5 {
    static constexpr int64_t block_bytes = 22;
    using sums                           = offset_sums<16>;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        w.d = load_halves(p, stride);
        load_nibbles(p + 6, stride, w.q);
        add_fifth_bits(p + 2, stride, w.q);
    }
};

struct q5_1 : q5 {
    static constexpr int64_t block_bytes = 24;
    using sums                           = value_sums;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        load_scale_and_min(p, stride, w);
        load_nibbles(p + 8, stride, w.q);
        add_fifth_bits(p + 4, stride, w.q);
    }
};

} // namespace

const std::vector<kernel> q5_0_kernels = blocks_kernels<q5_0>("q5_0", GGML_TYPE_Q5_0);
const std::vector<kernel> q5_1_kernels = blocks_kernels<q5_1>("q5_1", GGML_TYPE_Q5_1);

} // namespace eagle3::kernels
#endif
