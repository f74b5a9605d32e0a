// Q4_1: a block is a scale, a minimum and 32 values below 16.
#include "kernels/blocks.h"
#include "kernels/formats.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

namespace {

using namespace avx2;

struct q4_1 : mapped_blocks<20> {
    static constexpr bool is_signed = false;
    static constexpr int  largest   = 15;
    using sums                      = value_sums;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        load_scale_and_min(p, stride, w);
        load_nibbles(p + 4, stride, w.q);
    }

#if defined(__x86_64__)
    static constexpr bool has_wide = true;

    AVX512_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, avx512::wide_block & w) {
        p += b * block_bytes;
        avx512::load_scale_and_min(p, stride, w);
        avx512::load_nibbles(p + 4, stride, w);
    }
#endif
};

} // namespace

const std::vector<kernel> q4_1_kernels = blocks_kernels<q4_1>("q4_1", GGML_TYPE_Q4_1);

} // namespace eagle3::kernels
#endif
