// MXFP4: a block is an exponent and 32 floats of four bits; as the file has it, and repacked (block_mxfp4x8 of
// ggml/src/ggml-cpu/repack.cpp, on ARM block_mxfp4x4).
#include "kernels/blocks.h"
#include "kernels/formats.h"

#ifdef EAGLE3_HAS_KERNELS

namespace eagle3::kernels {

namespace {

using namespace avx2;

// Twice the values, plus 12: as none is negative, AVX2 can add four products in 16 bits.
AVX2_INLINE __m128i values() {
    return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
}

// 2^(e - 128): half of what the exponents stand for, since values are doubled.
AVX2_INLINE __m256 powers(__m256i e) {
    const __m256i tiny   = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e); // 2^-128, 2^-127
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

struct mxfp4 {
    static constexpr int64_t block_bytes = 17;
    static constexpr int64_t n_channels  = 1;
    static constexpr int64_t n_together  = 0;
    static constexpr bool    eights      = false;
    static constexpr bool    is_signed   = false;
    static constexpr int     largest     = 24;
    using sums                           = offset_sums<12>;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * block_bytes;
        w.d = powers(_mm256_and_si256(load_dwords(p, stride), _mm256_set1_epi32(0xff)));
        load_nibbles(p + 1, stride, w.q);
        look_up(values(), w.q);
    }
};

struct mxfp4x8 : mxfp4 {
    static constexpr int64_t n_channels = 8;
    static constexpr int64_t n_together = 8;
    static constexpr bool    eights     = true;
    static constexpr int     values_at  = 8;
    static constexpr int     flip       = 0;
    static constexpr bool    has_table  = true;

    AVX2_INLINE static __m128i table() { return values(); }
    AVX2_INLINE static __m256  scales(const uint8_t * p) {
        return powers(_mm256_cvtepu8_epi32(load128(p))); // reads only the first eight bytes
    }
};

#if defined(__aarch64__)
struct mxfp4_4x4 : mxfp4 {
    static constexpr int64_t n_channels = 4;
    static constexpr int64_t n_together = 4;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b * 4 * block_bytes;
        w.d = powers(_mm256_cvtepu8_epi32(_mm_unpacklo_epi32(load64(p), load64(p + stride))));
        load_quads_nibbles(p + 4, stride, w.q);
        look_up(values(), w.q);
    }
};
#endif

} // namespace

#if defined(__aarch64__)
const std::vector<kernel> mxfp4_4x4_kernels = blocks_kernels<mxfp4_4x4>("mxfp4_4x4", GGML_TYPE_MXFP4);
#endif
const std::vector<kernel> mxfp4x8_kernels = blocks_kernels<mxfp4x8>("mxfp4x8", GGML_TYPE_MXFP4);
const std::vector<kernel> mxfp4_kernels   = blocks_kernels<mxfp4>("mxfp4", GGML_TYPE_MXFP4);

} // namespace eagle3::kernels
#endif
