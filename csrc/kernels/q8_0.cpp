// Q8_0: a block is a scale and 32 int8 values; as the file has it, and on ARM repacked (block_q8_0x4 of
// ggml/src/ggml-cpu/repack.cpp).
#include "kernels/blocks.h"
#include "kernels/formats.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

namespace {

using namespace avx2;

struct q8_0 : mapped_blocks<34> {
    static constexpr bool is_signed = true;
    static constexpr int  largest   = 128;
    using sums                      = offset_sums<0>;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        w.d = load_halves(p, stride);
        load_transposed(p + 2, stride, w.q);
        load_transposed(p + 18, stride, w.q + 4);
    }

#if defined(__x86_64__)
    static constexpr bool has_wide = true;

    AVX512_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, avx512::wide_block & w) {
        p += b * block_bytes;
        w.d = avx512::load_halves(p, stride);
        avx512::load_transposed(p + 2, stride, w.q);
        avx512::load_transposed(p + 18, stride, w.q + 4);
    }
#endif
};

#if defined(__aarch64__)
struct q8_0_4x4 : q8_0 {
    static constexpr int64_t n_channels = 4;
    static constexpr int64_t n_together = 4;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * 4 * block_bytes;
        w.d = load_quads_halves(p, stride);
        load_quads_fours(p + 8, stride, w.q);
        load_quads_fours(p + 72, stride, w.q + 4);
    }
};

struct q8_0_4x8 : q8_0_4x4 {
    static constexpr int64_t n_together = 8;
    static constexpr bool    eights     = true;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * 4 * block_bytes;
        w.d = load_quads_halves(p, stride);
        for (int i = 0; i < 4; ++i) {
            w.q[i]     = load256(p + 8 + 32 * i);
            w.q[i + 4] = load256(p + stride + 8 + 32 * i);
        }
    }
};
#endif

} // namespace

#if defined(__aarch64__)
const std::vector<kernel> q8_0_4x4_kernels = blocks_kernels<q8_0_4x4>("q8_0_4x4", GGML_TYPE_Q8_0);
const std::vector<kernel> q8_0_4x8_kernels = blocks_kernels<q8_0_4x8>("q8_0_4x8", GGML_TYPE_Q8_0);
#endif
const std::vector<kernel> q8_0_kernels = blocks_kernels<q8_0>("q8_0", GGML_TYPE_Q8_0);

} // namespace eagle3::kernels
#endif
