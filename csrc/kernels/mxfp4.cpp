// MXFP4: a block is an exponent and 32 floats of four bits; as the file has it, and repacked (block_mxfp4x8 of
// ggml/src/ggml-cpu/repack.cpp, on ARM block_mxfp4x4). NVFP4: 64 such floats follow four scales, which are floats of
// eight bits.
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

struct mxfp4 : mapped_blocks<17> {
    static constexpr bool is_signed = false;
    static constexpr int  largest   = 24;
    using sums                      = offset_sums<12>;

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

struct nvfp4 : mapped_blocks<36, 64, 2> {
    static constexpr bool is_signed = false;
    static constexpr int  largest   = 24;
    using sums                      = offset_sums<12, 2>;

    AVX2_INLINE static void unpack(const uint8_t * p, int64_t b, size_t stride, unpacked & w) {
        p += b / 2 * block_bytes;
        if (b % 2 == 0) {
            w.super_scales[0] = load_dwords(p, stride);
        }
        const __m256i s = _mm256_srli_epi32(w.super_scales[0], 16 * static_cast<int>(b % 2));
        w.d             = scales(s);
        w.d_high        = scales(_mm256_srli_epi32(s, 8));
        __m256i v[4], q[8];
        load_transposed(p + 4 + 16 * (b % 2), stride, v);
        split_nibbles(v, q);
        constexpr int from[] = { 0, 1, 4, 5, 2, 3, 6, 7 }; // the nibbles of eight bytes are 16 values
        for (int i = 0; i < 8; ++i) {
            w.q[i] = q[from[i]];
        }
        look_up(values(), w.q);
    }

  private:
    // Half of the floats in the low bytes, which have four bits of exponent and three of fraction, and no sign; 0x7f is
    // a zero.
    AVX2_INLINE static __m256 scales(__m256i x) {
        const __m256i seven  = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
        const __m256i tiny   = _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtepi32_ps(seven), _mm256_set1_ps(0x1p-10f)));
        const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(seven, 20), _mm256_set1_epi32((127 - 8) << 23));
        const __m256i float_ = _mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(8), seven));
        const __m256i byte   = _mm256_and_si256(x, _mm256_set1_epi32(0xff));
        const __m256i none   = _mm256_cmpeq_epi32(byte, _mm256_set1_epi32(0x7f));
        return _mm256_andnot_ps(_mm256_castsi256_ps(none), _mm256_castsi256_ps(float_));
    }
};

} // namespace

#if defined(__aarch64__)
const std::vector<kernel> mxfp4_4x4_kernels = blocks_kernels<mxfp4_4x4>("mxfp4_4x4", GGML_TYPE_MXFP4);
#endif
const std::vector<kernel> mxfp4x8_kernels = blocks_kernels<mxfp4x8>("mxfp4x8", GGML_TYPE_MXFP4);
const std::vector<kernel> mxfp4_kernels   = blocks_kernels<mxfp4>("mxfp4", GGML_TYPE_MXFP4);
const std::vector<kernel> nvfp4_kernels   = blocks_kernels<nvfp4>("nvfp4", GGML_TYPE_NVFP4);

} // namespace eagle3::kernels
#endif
